"""The chart as Helm renders it, where there is one: objects that the official schemas know, and refusals that help."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rota.http.hosts import allowed_hosts
from rota.settings import read_settings
from support import clusters
from support.cluster_double import check
from support.deploy_files import CHART, MARGIN

HELM = shutil.which("helm", path=Path(sys.executable).parent) or shutil.which("helm")
pytestmark = pytest.mark.skipif(
    not HELM, reason="there is no Helm for this machine among the packages, nor on its path"
)

Values = Mapping[str, Any]
KEY = "k1:" + "A" * 43 + "="
IMAGE = {"image": {"repository": "registry.example/team/rota"}}
PLAIN = {**IMAGE, "database": {"url": "postgresql://rota@db.example/rota"}, "vault": {"keys": KEY}}
INGRESS = {
    **PLAIN,
    "ingress": {"enabled": True, "className": "nginx", "host": "rota.example", "tlsSecret": "rota-tls"},
    "env": {"ROTA_MAX_BODY_BYTES": 2_097_152, "ROTA_REQUIRE_RLS": True, "FORWARDED_ALLOW_IPS": "10.0.0.0/8"},
}
EXISTING = {
    **IMAGE,
    "existingSecret": "ours",
    "home": {"existingClaim": "shared"},
    "serviceAccount": {"name": "ours"},
    "worker": {"replicas": 5, "graceSeconds": 600, "tolerations": [{"key": "agents", "operator": "Exists"}]},
}
KUBERNETES = {**IMAGE, "existingSecret": "ours", "kubernetes": {"enabled": True, "namespace": "agents"}}
ALL = {"plain": PLAIN, "ingress": INGRESS, "existing": EXISTING, "kubernetes": KUBERNETES}


def helm(values: Values) -> subprocess.CompletedProcess[str]:
    assert HELM
    words = [HELM, "template", "rota", str(CHART), "--namespace", "duty", "--values", "-"]
    return subprocess.run(words, input=json.dumps(values), capture_output=True, text=True, check=False)


def rendered(values: Values) -> list[dict[str, Any]]:
    done = helm(values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def pods(values: Values) -> dict[str, dict[str, Any]]:
    deployments = [each for each in rendered(values) if each["kind"] == "Deployment"]
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in deployments}


def environment(pod: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}


@pytest.mark.parametrize("values", ALL.values(), ids=ALL)
def test_every_object_is_what_the_official_schemas_know(values: Values) -> None:
    for each in rendered(values):
        check(each)


@pytest.mark.parametrize("values", ALL.values(), ids=ALL)
def test_rota_would_start_with_what_each_pod_is_given(values: Values) -> None:
    for pod in pods(values).values():
        read_settings(environment(pod))


def test_workers_have_time_to_drain_and_tell_agents_of_the_service() -> None:
    for values in (PLAIN, EXISTING):
        worker = pods(values)["rota-worker"]
        grace = read_settings(environment(worker)).grace_seconds.total_seconds()
        assert worker["terminationGracePeriodSeconds"] >= grace + MARGIN
        assert environment(worker)["ROTA_URL"] == "http://rota.duty.svc:7682"
    assert environment(pods(INGRESS)["rota-api"])["ROTA_URL"] == "https://rota.example"


def test_every_name_that_the_chart_gives_to_the_api_is_let_in() -> None:
    for pod in pods({**PLAIN, "allowedHosts": ["rota.lan"]}).values():
        given = environment(pod)
        read = read_settings({name: given[name] for name in ("ROTA_URL", "ROTA_ALLOWED_HOSTS")})
        inside = {"rota", "rota.duty", "rota.duty.svc", "rota.duty.svc.cluster.local"}
        assert allowed_hosts(read, read.url) >= {*inside, "rota.lan"}


def test_only_workers_may_do_something_in_the_cluster_and_then_without_programs_beside_them() -> None:
    assert not any(pod["automountServiceAccountToken"] for pod in pods(PLAIN).values())
    found = pods(KUBERNETES)
    assert [name for name, pod in found.items() if pod["automountServiceAccountToken"]] == ["rota-worker"]
    assert {environment(pod)["ROTA_LOCAL_AGENTS"] for pod in found.values()} == {"off"}
    [binding] = [each for each in rendered(KUBERNETES) if each["kind"] == "RoleBinding"]
    assert binding["metadata"]["namespace"] == "agents"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "rota", "namespace": "duty"}]


def test_rota_may_do_with_agents_what_the_page_says() -> None:
    [role] = [each for each in rendered(KUBERNETES) if each["kind"] == "Role"]
    assert role["rules"] == clusters.rules()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "must be set"),
        ({**PLAIN, "image": {}}, "image.repository must be set"),
        ({**PLAIN, "vault": {}}, "vault.keys must be set"),
        ({**PLAIN, "vault": {"keys": "secret"}}, "vault.keys"),
        ({**PLAIN, "ingress": {"enabled": True}}, "ingress.host must be set"),
        ({**PLAIN, "replicas": 3}, "replicas is not allowed"),
        ({**PLAIN, "worker": {"env": {"ROTA_GRACE_SECONDS": 5}}}, "set worker.graceSeconds instead"),
    ],
)
def test_a_refusal_names_the_value(values: Values, told: str) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert told in done.stderr
