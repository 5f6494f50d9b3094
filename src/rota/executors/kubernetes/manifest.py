"""What a cluster is asked for: a Job named after the run, and beside it a Secret with all that the agent is told."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rota.errors import Invalid
from rota.executors.briefing import as_json
from rota.model.agent_config import KubernetesConfig, Toleration
from rota.model.executor import Assignment
from rota.model.ids import RunId

Object = dict[str, Any]

CONTAINER = "agent"
RUN, ATTEMPT = "rota/run", "rota/attempt"  # labels
TOLD, OUTCOME, VERDICT = "rota/told", "rota/outcome", "rota/verdict"  # annotations
BRIEFING, HOME = "/rota/briefing", "/rota/home"
FILES = {"ROTA_TOKEN_FILE": "token", "ROTA_PROMPT_FILE": "prompt", "ROTA_ASSIGNMENT_FILE": "assignment.json"}
LARGEST_SECRET = 1_048_576
READ_BY_GROUP = 0o440
UNHEARD = timedelta(hours=1)  # so long a Job waits for a worker to come and see how it ended
MARGIN = timedelta(minutes=2)  # the worker ends a run that is too long; the Job's own deadline is for when nobody does


def name_of(run_id: RunId) -> str:
    return f"rota-{run_id}"


def attempt_of(found: Object) -> int:
    text = (found["metadata"].get("labels") or {}).get(ATTEMPT, "")
    return int(text) if text.isdecimal() else 0


def annotation(found: Object | None, name: str) -> str | None:
    text: str | None = ((found or {}).get("metadata", {}).get("annotations") or {}).get(name)
    return text


def deadline(left: timedelta) -> int:
    return math.ceil((left + MARGIN).total_seconds())


def secret(assignment: Assignment, config: KubernetesConfig, *, url: str = "") -> Object:
    data = _secret_data(assignment, config, url)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name_of(assignment.run_id), "labels": _labels(assignment, config)},
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def owned_by(job: Object) -> list[Object]:
    """`blockOwnerDeletion` would need a right over the Job's finalizers, and the Secret is deleted first anyway."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    return [{**owner, "blockOwnerDeletion": False}]


def job(assignment: Assignment, config: KubernetesConfig, *, grace: timedelta) -> Object:
    labels = _labels(assignment, config)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name_of(assignment.run_id), "labels": labels, "annotations": dict(config.annotations)},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline(assignment.timeout),
            "ttlSecondsAfterFinished": math.ceil(max(config.keep_finished, UNHEARD).total_seconds()),
            "template": {
                "metadata": {"labels": labels, "annotations": {**_UNDISTURBED, **config.annotations}},
                "spec": _pod(assignment, config, grace),
            },
        },
    }


# A run is not repeated because a node would be better used otherwise.
_UNDISTURBED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


def _pod(assignment: Assignment, config: KubernetesConfig, grace: timedelta) -> Object:
    spec: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": config.service_account_token,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(1, math.ceil(grace.total_seconds())),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": config.run_as_user,
            "runAsGroup": config.run_as_group,
            "fsGroup": config.fs_group,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(assignment, config)],
        "volumes": _volumes(assignment, config),
    }
    wishes = {
        "serviceAccountName": config.service_account,
        "nodeSelector": dict(config.node_selector),
        "tolerations": [_toleration(each) for each in config.tolerations],
        "imagePullSecrets": [{"name": name} for name in config.image_pull_secrets],
        "priorityClassName": config.priority_class,
        "runtimeClassName": config.runtime_class,
    }
    return {**spec, **_given(wishes)}


def _container(assignment: Assignment, config: KubernetesConfig) -> Object:
    name = name_of(assignment.run_id)
    container: Object = {
        "name": CONTAINER,
        "image": config.image,
        "env": [
            {"name": each, "valueFrom": {"secretKeyRef": {"name": name, "key": _key(each)}}}
            for each in _environment(assignment, config, "")
        ],
        "resources": {"requests": dict(config.requests), "limits": dict(config.limits)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": config.read_only_root,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "briefing", "mountPath": BRIEFING, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},  # nosec B108 # noqa: S108 — the container's own
        ],
    }
    wishes = {
        "imagePullPolicy": config.image_pull_policy,
        "command": list(config.command),
        "args": list(config.args),
        "workingDir": config.working_dir,
    }
    return {**container, **_given(wishes)}


def _volumes(assignment: Assignment, config: KubernetesConfig) -> list[Object]:
    """The briefing is no `subPath`: only whole volumes follow when an adopting attempt rewrites the Secret."""
    room = {"sizeLimit": config.limits["ephemeral-storage"]}
    files = [{"key": file, "path": file} for file in FILES.values()]
    briefing = {"secretName": name_of(assignment.run_id), "items": files, "defaultMode": READ_BY_GROUP}
    return [
        {"name": "briefing", "secret": briefing},
        {"name": "home", "emptyDir": room},
        {"name": "tmp", "emptyDir": room},
    ]


def _toleration(told: Toleration) -> Object:
    seconds = {"tolerationSeconds": told.seconds} if told.seconds is not None else {}
    return _given({"key": told.key, "operator": told.operator, "value": told.value, "effect": told.effect}) | seconds


def _given(wishes: Mapping[str, Any]) -> Object:
    return {name: value for name, value in wishes.items() if value}


def _labels(assignment: Assignment, config: KubernetesConfig) -> dict[str, str]:
    return {
        **config.labels,
        "app.kubernetes.io/managed-by": "rota",
        "rota/workspace": str(assignment.workspace_id),
        "rota/session": str(assignment.session_id),
        RUN: str(assignment.run_id),
        ATTEMPT: str(assignment.attempt),
    }


def _key(variable: str) -> str:
    return f"env.{variable}"


def _environment(assignment: Assignment, config: KubernetesConfig, url: str) -> dict[str, str]:
    """The later wins. The token is a file, which can be rewritten; a variable could not."""
    given = {**assignment.environment, **({"ROTA_URL": url} if url else {})}
    given.pop("ROTA_TOKEN", None)
    return {
        "HOME": HOME,
        **config.env,
        "ROTA_RUN_ID": str(assignment.run_id),
        "ROTA_SESSION_ID": str(assignment.session_id),
        "ROTA_ATTEMPT": str(assignment.attempt),
        "ROTA_IDEMPOTENCY_KEY": assignment.idempotency_key,
        **{variable: f"{BRIEFING}/{file}" for variable, file in FILES.items()},
        **given,
    }


def _secret_data(assignment: Assignment, config: KubernetesConfig, url: str) -> dict[str, bytes]:
    env = _environment(assignment, config, url)
    data = {
        **{_key(name): value.encode(errors="replace") for name, value in env.items()},
        "token": assignment.environment.get("ROTA_TOKEN", "").encode(),
        "prompt": (assignment.prompt or "").encode(errors="replace"),
    }
    told = {**as_json(assignment), "directory": HOME}
    room = LARGEST_SECRET - sum(map(len, data.values()))
    return {**data, "assignment.json": _fitting(told, room)}


def _fitting(told: Object, room: int) -> bytes:
    """The assignment with as much of the transcript's end as there is room for; it is whole at the API."""
    whole = json.dumps(told).encode()
    if len(whole) <= room:
        return whole
    without = json.dumps({**told, "transcript": []}).encode()
    if len(without) > room:
        size = LARGEST_SECRET - room + len(without)
        raise Invalid(
            f"the prompt, input, payload and environment of this run take {size:,} bytes, "
            f"and a Secret of Kubernetes holds {LARGEST_SECRET:,}",
            field="assignment",
        )
    return json.dumps({**told, "transcript": _last(told["transcript"], room - len(without))}).encode()


def _last(turns: Sequence[Object], room: int) -> list[Object]:
    kept: list[Object] = []
    for turn in reversed(turns):
        room -= len(json.dumps(turn)) + len(", ")
        if room < 0:
            break
        kept.append(turn)
    return kept[::-1]
