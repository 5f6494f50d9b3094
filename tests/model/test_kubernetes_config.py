"""What the configuration of an agent in a cluster may say: refused with its field, or with safe defaults."""

from datetime import timedelta
from typing import Any

import pytest

from rota.errors import Invalid
from rota.model.agent_config import check
from rota.model.agent_config.kubernetes import LIMITS, REQUESTS, Toleration, read_kubernetes

IMAGE = {"image": "registry.example/team/agent:1.4"}


@pytest.mark.parametrize(
    ("config", "field", "says"),
    [
        ({}, "config.image", "must name an image"),
        ({"image": ""}, "config.image", "must name an image"),
        ({"image": ["a"]}, "config.image", "must name an image"),
        ({"image": "a b"}, "config.image", "must name an image"),
        ({"image": "--privileged"}, "config.image", "must name an image"),
        ({**IMAGE, "privileged": True}, "config.privileged", "never has more rights"),
        ({**IMAGE, "namespace": "kube-system"}, "config.namespace", "ROTA_KUBERNETES_NAMESPACE"),
        ({**IMAGE, "stdin": "prompt"}, "config.stdin", "ROTA_PROMPT_FILE"),
        ({**IMAGE, "imge": "x"}, "config.imge", "did you mean 'image'"),
        ({**IMAGE, "command": "sh -c true"}, "config.command", "must be a list"),
        ({**IMAGE, "command": []}, "config.command", "must be a list"),
        ({**IMAGE, "args": "x"}, "config.args", "must be a list"),
        ({**IMAGE, "args": ["\0"]}, "config.args[0]", "character"),
        ({**IMAGE, "env": {"ROTA_URL": "x"}}, "config.env.ROTA_URL", "belong to Rota"),
        ({**IMAGE, "working_dir": "work"}, "config.working_dir", "absolute"),
        ({**IMAGE, "run_as_user": 0}, "config.run_as_user", "0 is root"),
        ({**IMAGE, "run_as_user": "root"}, "config.run_as_user", "must be a number"),
        ({**IMAGE, "run_as_group": True}, "config.run_as_group", "must be a number"),
        ({**IMAGE, "fs_group": 2**31}, "config.fs_group", "must be a number"),
        ({**IMAGE, "read_only_root": "no"}, "config.read_only_root", "true or false"),
        ({**IMAGE, "image_pull_policy": "Allways"}, "config.image_pull_policy", "did you mean 'Always'"),
        ({**IMAGE, "image_pull_secrets": "registry"}, "config.image_pull_secrets", "must be a list"),
        ({**IMAGE, "image_pull_secrets": ["A"]}, "config.image_pull_secrets[0]", "small letters"),
        ({**IMAGE, "service_account": "../x"}, "config.service_account", "small letters"),
        ({**IMAGE, "resources": {"limit": {}}}, "config.resources.limit", "did you mean 'limits'"),
        ({**IMAGE, "resources": {"limits": {"memory": "1GB"}}}, "config.resources.limits.memory", "512Mi"),
        ({**IMAGE, "resources": {"limits": {"memory": "0"}}}, "config.resources.limits.memory", "512Mi"),
        ({**IMAGE, "resources": {"limits": {"cpu": True}}}, "config.resources.limits.cpu", "500m"),
        (
            {**IMAGE, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}}},
            "config.resources.requests.cpu",
            "is more than limits.cpu, 500m",
        ),
        ({**IMAGE, "node_selector": {"a": "b c"}}, "config.node_selector.a", "63 letters"),
        ({**IMAGE, "node_selector": {"a": 1}}, "config.node_selector.a", "63 letters"),
        ({**IMAGE, "labels": {"rota/run": "x"}}, "config.labels.rota/run", "not an agent's to set"),
        ({**IMAGE, "labels": {"-x": "x"}}, "config.labels", "is not a name"),
        (
            {**IMAGE, "annotations": {"container.apparmor.security.beta.kubernetes.io/agent": "unconfined"}},
            "config.annotations.container.apparmor.security.beta.kubernetes.io/agent",
            "not an agent's to set",
        ),
        ({**IMAGE, "tolerations": [{"operator": "Equal"}]}, "config.tolerations[0].key", "needs a key"),
        ({**IMAGE, "tolerations": [{"operator": "Exists", "value": "x"}]}, "config.tolerations[0].value", "no value"),
        ({**IMAGE, "tolerations": [{"key": "a", "effect": "No"}]}, "config.tolerations[0].effect", "NoSchedule"),
        ({**IMAGE, "start_timeout": "2h"}, "config.start_timeout", "at most an hour"),
        ({**IMAGE, "keep_finished": "8d"}, "config.keep_finished", "at most 7 days"),
        ({**IMAGE, "keep_finished": False}, "config.keep_finished", "duration"),
        ({**IMAGE, "success_exit_codes": [300]}, "config.success_exit_codes", "0 and 255"),
    ],
)
def test_what_cannot_work_is_refused_with_its_field(config: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(Invalid) as refusal:
        check("kubernetes", config)
    assert refusal.value.field == field
    assert says in refusal.value.message


def test_an_image_is_enough() -> None:
    read = read_kubernetes(IMAGE)
    assert (read.run_as_user, read.run_as_group, read.fs_group) == (65532, 65532, 65532)
    assert (read.read_only_root, read.service_account_token) == (True, False)
    assert (read.requests, read.limits) == (REQUESTS, LIMITS)
    assert check("kubernetes", IMAGE) == []


def test_a_default_never_contradicts_what_was_said() -> None:
    read = read_kubernetes({**IMAGE, "resources": {"requests": {"cpu": 4}, "limits": {"memory": "64Mi"}}})
    assert (read.limits["cpu"], read.requests["memory"]) == ("4", "64Mi")


def test_the_rest_is_read() -> None:
    read = read_kubernetes({**IMAGE, "keep_finished": 0, "start_timeout": 90, "tolerations": [{"operator": "Exists"}]})
    assert (read.keep_finished, read.start_timeout) == (timedelta(), timedelta(seconds=90))
    assert read.tolerations == (Toleration(None, "Exists", None, None, None),)


@pytest.mark.parametrize("keep", [0, 0.0, "0", "0s", "0d"])
def test_a_job_that_has_ended_may_go_at_once(keep: object) -> None:
    assert read_kubernetes({**IMAGE, "keep_finished": keep}).keep_finished == timedelta()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"image": "busybox"}, "config.image: names no version"),
        ({"image": "localhost:5000/busybox"}, "config.image: names no version"),
        ({"image": "busybox:latest"}, "config.image: names no version"),
        ({**IMAGE, "service_account_token": True}, "config.service_account_token: "),
        ({**IMAGE, "env": {"API_KEY": "x"}}, "config.env.API_KEY can be read"),
    ],
)
def test_what_is_seldom_meant_is_a_warning(config: dict[str, Any], says: str) -> None:
    [warning] = check("kubernetes", config)
    assert warning.startswith(says)


def test_without_its_library_it_says_what_to_install() -> None:
    [warning] = check("kubernetes", IMAGE, has=lambda _: False)
    assert warning.endswith("pip install 'rota[kubernetes]'")
