"""Waiting until the container of a Job begins, and saying why it does not."""

import time

from rota.executors.kubernetes import words
from rota.executors.kubernetes.cluster import EVENTS, Cluster, Refused
from rota.executors.kubernetes.gateway import Unreachable
from rota.executors.kubernetes.manifest import Object
from rota.executors.kubernetes.mirror import Mirror
from rota.executors.kubernetes.node import NodeWatch
from rota.model.agent_config import KubernetesConfig
from rota.model.duration import format_duration
from rota.model.executor import Desk
from rota.model.outcome import ErrorClass, Failed

PAUSE_SECONDS = 0.5
EVENT_SECONDS = 1.0
BY_STATUS = "FailedScheduling"  # the status of the pod says so as long as it is true


class Start:
    """Looks at the state of Job and pod, and where that says nothing, at the warnings among their events."""

    def __init__(
        self,
        cluster: Cluster,
        mirror: Mirror,
        node: NodeWatch,
        config: KubernetesConfig,
        desk: Desk,
        *,
        patience: float,
    ) -> None:
        self._cluster, self._mirror, self._node = cluster, mirror, node
        self._config, self._desk, self._patience = config, desk, patience
        self._noted: words.Obstacle | None = None
        self._warning: tuple[str, words.Obstacle] | None = None  # with the uid of the object that it is about
        self._read_at = time.monotonic()
        self._may_read = True

    async def wait(self) -> Failed | None:
        """None once the container has begun or the Job has ended."""
        began = since = time.monotonic()
        while not self._has_begun():
            now, obstacle = time.monotonic(), await self._obstacle()
            if obstacle is None or (self._noted and self._noted.kind != obstacle.kind):
                since = now
            await self._note(obstacle)
            if obstacle and (obstacle.final or (obstacle.stubborn and now - since >= self._patience)):
                return obstacle.failure
            if now - began >= self._config.start_timeout.total_seconds():
                return self._never_began(obstacle)
            await self._mirror.change(within=min(self._patience, PAUSE_SECONDS) if obstacle else PAUSE_SECONDS)
        return None

    def _has_begun(self) -> bool:
        job, pod = self._mirror.job, self._mirror.pod
        return words.begun(pod) or words.is_over(job) or job is None or self._node.is_lost(pod)

    async def _obstacle(self) -> words.Obstacle | None:
        job, pod = self._mirror.job, self._mirror.pod
        found = words.obstacle(job, pod, self._config, self._mirror.pull_failure)
        about = pod or job
        if found is not None or about is None:
            return found
        if time.monotonic() - self._read_at >= EVENT_SECONDS:
            await self._read_events("Pod" if pod else "Job", about["metadata"]["uid"])
        if self._warning is None or self._warning[0] != about["metadata"]["uid"]:
            return None
        return self._warning[1]

    async def _read_events(self, kind: str, uid: str) -> None:
        """Keep the newest warning. A Role of an older Rota does not allow this; the wait goes on without it."""
        query = f"involvedObject.kind={kind},involvedObject.uid={uid},type=Warning"
        try:
            listed = await self._cluster.list(EVENTS, fieldSelector=query)
        except (Refused, Unreachable) as failure:
            self._may_read = isinstance(failure, Unreachable) or failure.passing
        else:
            self._may_read = True
            events = [each for each in listed.get("items") or [] if each.get("reason") != BY_STATUS]
            if events:
                self._warning = uid, words.warning(max(events, key=_happened_at))
        self._read_at = time.monotonic()

    async def _note(self, obstacle: words.Obstacle | None) -> None:
        """Tell the trace once. The same warning comes with other words at each try."""
        if obstacle is None:
            return
        before, self._noted = self._noted, obstacle
        is_repeated = before is not None and before.kind == obstacle.kind
        if not is_repeated or (before != obstacle and not obstacle.kind.startswith("event ")):
            await self._desk.tool("kubernetes", {"job": self._mirror.name, "waiting": obstacle.words})

    def _never_began(self, obstacle: words.Obstacle | None) -> Failed:
        span = format_duration(self._config.start_timeout)
        unread = "" if self._may_read else "; Rota may not read the events of the namespace, which would say why"
        unknown = "nobody knows why" if self._mirror.pod else "the cluster has made no pod"
        why = obstacle.words if obstacle else unknown + unread
        return Failed(ErrorClass.EXECUTOR_ERROR, f"the agent did not begin within {span}: {why}")


def _happened_at(event: Object) -> str:
    """Times of the API in UTC, which sort as text; microseconds do not matter."""
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return str(next(filter(None, times), ""))[:19]
