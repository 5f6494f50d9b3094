"""What a cluster says about a Job and its pod, in words that a person understands."""

import re
import signal
from dataclasses import dataclass
from typing import Any

from rota.executors.ending import LONGEST
from rota.executors.kubernetes.manifest import CONTAINER, Object
from rota.model.agent_config import KubernetesConfig
from rota.model.outcome import ErrorClass, Failed, Outcome, TimedOut

_FOR_GOOD = re.compile(r"not found|not exist|manifest unknown|denied|unauthorized|forbidden|invalid", re.IGNORECASE)
_PULLING = {"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}
_MAKING = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError"}
_AT_ONCE = {"InvalidImageName": "is not the name of an image", "ErrImageNeverPull": "is not on the node"}
_UNSTARTED = {"StartError", "ContainerCannotRun"}
_SIGNALS_FROM = 128


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an agent does not begin. What is `stubborn` seldom goes away by itself; `final` never does."""

    kind: str
    words: str
    stubborn: bool = False
    final: bool = False
    retryable: bool = True

    @property
    def failure(self) -> Failed:
        return Failed(ErrorClass.EXECUTOR_ERROR, self.words, self.retryable)


@dataclass(frozen=True, slots=True)
class Ended:
    """How the container of a pod ended."""

    code: int
    reason: str
    message: str


def obstacle(pod: Object | None, config: KubernetesConfig) -> Obstacle | None:
    if pod is None:
        return None
    waiting = _state(pod).get("waiting") or {}
    reason, message = waiting.get("reason", ""), _short(waiting.get("message"))
    if reason in _AT_ONCE:
        return Obstacle("image", f"the image {config.image!r} {_AT_ONCE[reason]}", final=True, retryable=False)
    if reason in _PULLING:
        words = f"the image {config.image!r} cannot be pulled ({reason}){message}"
        return Obstacle("image", words, stubborn=True, retryable=not _FOR_GOOD.search(message))
    if reason in _MAKING:
        return Obstacle(
            "container", f"the container cannot be made ({reason}){message}", stubborn=True, retryable=False
        )
    return _unscheduled(pod)


def _unscheduled(pod: Object) -> Obstacle | None:
    placed = _condition(pod, "PodScheduled")
    if placed.get("status") != "False":
        return None
    return Obstacle("schedule", f"no node takes the pod ({placed.get('reason')}){_short(placed.get('message'))}")


def begun(pod: Object | None) -> bool:
    """Whether there is something to hear, or nothing more to wait for."""
    if pod is None:
        return False
    state = _state(pod)
    return "running" in state or "terminated" in state or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def ended(pod: Object | None) -> Ended | None:
    terminated = _state(pod or {}).get("terminated")
    if terminated is None:
        return None
    code = int(terminated.get("exitCode", 0))
    return Ended(code, terminated.get("reason") or "", terminated.get("message") or "")


def is_over(job: Object | None) -> bool:
    """Whether the cluster is done with a Job, one way or the other."""
    conditions = (job or {}).get("status", {}).get("conditions") or []
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def interruption(pod: Object | None, job: Object | None) -> Outcome | None:
    """The end of a pod that the agent did not bring about, if there was one."""
    reasons = {_condition(job or {}, kind).get("reason") for kind in ("Failed", "FailureTarget")}
    if "DeadlineExceeded" in reasons:
        return TimedOut("It ran longer than the deadline of its Job, while no worker attended to it.")
    status = (pod or {}).get("status", {})
    if status.get("reason"):  # Evicted, Preempting, NodeLost, Shutdown …
        return _interrupted(f"the pod was ended by the cluster ({status['reason']}){_short(status.get('message'))}")
    disrupted = _condition(pod or {}, "DisruptionTarget")
    if disrupted.get("status") == "True":
        told = f"({disrupted.get('reason')}){_short(disrupted.get('message'))}"
        return _interrupted(f"the pod was ended by the cluster {told}")
    if pod is not None and pod["metadata"].get("deletionTimestamp"):
        return vanished(pod, job)
    return None


def vanished(pod: Object | None, job: Object | None) -> Outcome:
    """A pod, or a whole Job, that is gone before its end was seen."""
    if job is None:
        return _interrupted("somebody deleted the Job")
    failed = _condition(job, "Failed")
    if pod is None:
        return _interrupted(f"the Job ended without a pod{_short(failed.get('message'))}")
    return _interrupted(f"somebody deleted the pod{_short(failed.get('message'))}")


def failure(end: Ended, config: KubernetesConfig, last_words: str) -> Failed:
    """As for a program on the worker's machine, with what only a cluster says."""
    if end.reason == "OOMKilled":
        limit = config.limits["memory"]
        return Failed(ErrorClass.AGENT_ERROR, f"killed: it used more memory than resources.limits.memory, {limit}")
    if end.reason in _UNSTARTED:
        program = (*config.command, config.image)[0]
        words = f"cannot start {program!r}{_short(end.message or end.reason)}"
        return Failed(ErrorClass.EXECUTOR_ERROR, words, retryable=False)
    if name := _signal(end.code):
        return Failed(ErrorClass.AGENT_ERROR, f"killed by signal {name}")
    said = f": {last_words[:LONGEST]}" if last_words else ""
    return Failed(ErrorClass.AGENT_ERROR, f"exited with code {end.code}{said}")


def _signal(code: int) -> str | None:
    """Runtimes tell a signal as 128 and its number."""
    try:
        return signal.Signals(code - _SIGNALS_FROM).name
    except ValueError:
        return None


def _interrupted(words: str) -> Failed:
    return Failed(ErrorClass.EXECUTOR_ERROR, words)


def _state(pod: Object) -> dict[str, Any]:
    for each in pod.get("status", {}).get("containerStatuses") or []:
        if each["name"] == CONTAINER:
            state: dict[str, Any] = each.get("state") or {}
            return state
    return {}


def _condition(found: Object, kind: str) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = found.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def _short(message: str | None) -> str:
    text = " ".join((message or "").split())
    return f": {text[:LONGEST]}" if text else ""
