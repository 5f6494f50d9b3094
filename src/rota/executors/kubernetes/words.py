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
_WITHOUT_CAUSE = "ImagePullBackOff"  # until kubelet 1.32 it has the name of the image, and nothing else
_QUOTA = "exceeded quota"
_BY_KUBELET = {"ContainersNotReady", "ReadinessGatesNotReady", "PodCompleted"}
_UNREACHABLE = "node.kubernetes.io/unreachable"
_AT_ONCE = {"InvalidImageName": "is not the name of an image", "ErrImageNeverPull": "is not on the node"}
_UNSTARTED = {"StartError", "ContainerCannotRun"}
_UNHEARD = {*_UNSTARTED, "ContainerStatusUnknown"}
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


def obstacle(
    job: Object | None, pod: Object | None, config: KubernetesConfig, pull_failure: str = ""
) -> Obstacle | None:
    """What the state of the Job and its pod says. `pull_failure` is why the image could not be pulled before."""
    if pod is None:
        return (
            Obstacle("suspended", "the Job is suspended, and begins when it is resumed") if is_suspended(job) else None
        )
    waiting = _state(pod).get("waiting") or {}
    reason, message = waiting.get("reason", ""), _short(waiting.get("message"))
    if reason in _AT_ONCE:
        return Obstacle("image", f"the image {config.image!r} {_AT_ONCE[reason]}", final=True, retryable=False)
    if reason in _PULLING:
        if reason == _WITHOUT_CAUSE and pull_failure and "ErrImagePull" not in message:
            message = _short(pull_failure)
        words = f"the image {config.image!r} cannot be pulled ({reason}){message}"
        return Obstacle("image", words, stubborn=True, retryable=not _FOR_GOOD.search(message))
    if reason in _MAKING:
        return Obstacle(
            "container", f"the container cannot be made ({reason}){message}", stubborn=True, retryable=False
        )
    return _unscheduled(pod)


def pull_failure(pod: Object | None) -> str:
    """Why the image of a pod could not be pulled, if its status says so at the moment."""
    waiting = _state(pod or {}).get("waiting") or {}
    has_cause = waiting.get("reason") in _PULLING - {_WITHOUT_CAUSE}
    return str(waiting.get("message") or "") if has_cause else ""


def warning(event: Object) -> Obstacle:
    """The obstacle that a warning among the events of a Job or of its pod tells of."""
    reason, message = event.get("reason") or "no reason", _short(event.get("message"))
    if event["involvedObject"]["kind"] != "Job":
        return Obstacle(f"event {reason}", f"the pod does not begin ({reason}){message}")
    words = f"the pod cannot be created{message}"
    if _QUOTA in message:
        return Obstacle("quota", words)
    lasts = bool(_FOR_GOOD.search(message))
    return Obstacle("creation", words, stubborn=lasts, retryable=not lasts)


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


def has_log(pod: Object | None) -> bool:
    """Whether the agent has ended and its log says how. A container that never ran has none."""
    end = ended(pod)
    return end is not None and end.reason not in _UNHEARD


def unread(end: Ended, why: str) -> Failed:
    """A report of an error would be in the part of the log that is missing, so that an exit code says too little."""
    words = f"the agent exited with code {end.code}, but the end of its log could not be read: {why[:LONGEST]}"
    return Failed(ErrorClass.EXECUTOR_ERROR, words)


def node_is_silent(pod: Object | None) -> bool:
    """Whether the cluster has lost contact with the node: its controller then calls a pod unready for which the kubelet
    has given no reason."""
    ready = _condition(pod or {}, "Ready")
    if "running" not in _state(pod or {}):
        return False
    return ready.get("status") == "Unknown" or (
        ready.get("status") == "False" and ready.get("reason") not in _BY_KUBELET
    )


def tolerated_silence(pod: Object) -> float:
    """For how many seconds the pod tolerates a node that does not answer; without limit counts as 0."""
    found = pod["spec"].get("tolerations") or []
    return max((each.get("tolerationSeconds") or 0 for each in found if each.get("key") == _UNREACHABLE), default=0)


def lost_node(pod: Object) -> Failed:
    return _interrupted(f"the node of the pod does not answer any more ({pod['spec'].get('nodeName', 'unknown')})")


def will_end(job: Object | None, pod: Object | None) -> bool:
    """Whether a Job ends without more being done: it has ended already, or every container of its pod has."""
    if job is None or is_over(job):
        return True
    status = (pod or {}).get("status", {})
    containers = status.get("containerStatuses") or []
    all_ended = bool(containers) and all("terminated" in (each.get("state") or {}) for each in containers)
    return all_ended or status.get("phase") in ("Succeeded", "Failed")


def is_suspended(job: Object | None) -> bool:
    return bool((job or {}).get("spec", {}).get("suspend"))


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
    if is_suspended(job):
        return _interrupted("somebody suspended the Job")
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
