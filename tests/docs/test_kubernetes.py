"""docs/agents/kubernetes.md against the real thing: its examples are saved and run, its manifests are what is needed."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from rota import executors
from rota.executors.kubernetes import manifest
from rota.model.agent_config import KubernetesConfig, read_kubernetes
from rota.model.executor import Executor
from rota.worker.worker import Worker
from support import clusters
from support.cluster_double import check
from support.clusters import PAGE
from support.doc_pages import blocks, column, spans, table
from support.doc_requests import Api
from support.stand_ins import assignment


@pytest.fixture
def _a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the cluster of this test run."""
    load = executors.load

    def loaded() -> dict[str, Executor]:
        return load(["kubernetes"], kubernetes={"kubeconfig": clusters.shared().kubeconfig})

    monkeypatch.setattr(executors, "load", loaded)


@pytest.mark.usefixtures("_a_cluster")
async def test_the_example_counts_words(api: Api, worker: Worker) -> None:
    for block in blocks(PAGE, "json")[-2:]:
        method, path = block.purpose.split()
        answer = await api.ask(method, path, json.loads(block.text))
    run = await api.ended(answer["id"])
    assert (run["status"], run["summary"]) == ("succeeded", "5 words")


@pytest.mark.parametrize("given", clusters.manifests(), ids=lambda each: each["kind"])
def test_each_manifest_is_what_the_official_schemas_know(given: dict[str, object]) -> None:
    check(given)


def test_the_role_is_bound_to_the_account_in_its_namespace() -> None:
    found = {each["kind"]: each for each in clusters.manifests()}
    space = found["Namespace"]["metadata"]["name"]
    assert {each["metadata"].get("namespace", space) for each in found.values()} == {space}
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    [subject] = found["RoleBinding"]["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", found["ServiceAccount"]["metadata"]["name"])


def test_every_key_of_the_configuration_is_documented() -> None:
    known = {each.name for each in fields(KubernetesConfig)} - {"requests", "limits"} | {"resources"}
    assert column(PAGE, "key of `config`") == known


def test_every_variable_of_a_pod_is_documented(tmp_path: Path) -> None:
    ours = {"ROTA_WORKSPACE": "w", "ROTA_URL": "u", "TRACEPARENT": "t", "ROTA_TOKEN": "s"}
    given = assignment({"image": "a/b:1"}, tmp_path, environment=ours)
    made = manifest.secret(given, read_kubernetes(given.config))
    variables = {key.removeprefix("env.") for key in made["data"] if key.startswith("env.")}
    named = {name for row in table(PAGE, "variable") for name in spans(row[0])} - {"config.env"}
    assert named == variables
