"""The Job of one run and its pod as the cluster last told them: listed once, then watched, listed anew when need be."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress

from rota.executors.kubernetes import words
from rota.executors.kubernetes.cluster import JOBS, PODS, Cluster, Doubt, Refused
from rota.executors.kubernetes.gateway import Unreachable
from rota.executors.kubernetes.manifest import RUN, Object, name_of
from rota.model.ids import RunId

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
GONE = 410


class _TooOld(Exception):
    """The cluster no longer knows the version up to which was heard."""


class Mirror:
    def __init__(self, cluster: Cluster, run_id: RunId) -> None:
        self._cluster = cluster
        self._labels = {"labelSelector": f"{RUN}={run_id}"}
        self.name = name_of(run_id)
        self._field = {"fieldSelector": f"metadata.name={self.name}"}
        self._jobs: dict[str, Object] = {}
        self._pods: dict[str, Object] = {}
        self._changed = asyncio.Event()
        self._refusal: Refused | None = None
        self._listed: set[str] = set()
        self._seen = 0
        self.last_pod: Object | None = None  # also when it is gone
        self.pull_failure = ""  # the newest; the state of the pod shows it only for a moment

    @property
    def job(self) -> Object | None:
        return next(iter(self._jobs.values()), None)

    @property
    def pod(self) -> Object | None:
        """The one of this Job; a Job that was replaced may leave others for a while. Once an agent has begun, a second
        pod of its Job does not count: it would be a second agent within one attempt."""
        begun = self.last_pod["metadata"]["uid"] if self.last_pod and words.begun(self.last_pod) else None
        return next((pod for pod in self._own_pods() if begun in (None, pod["metadata"]["uid"])), None)

    @property
    def is_repeated(self) -> bool:
        """Whether the cluster has made a second pod in place of the one whose agent had begun."""
        return self.pod is None and bool(self._own_pods())

    def _own_pods(self) -> list[Object]:
        uid = self.job["metadata"]["uid"] if self.job else None
        return [pod for pod in self._pods.values() if uid is not None and _owner(pod) == uid]

    @property
    def pods(self) -> list[Object]:
        return list(self._pods.values())

    def see(self, job: Object) -> None:
        """What an answer told is known before it is heard."""
        self._jobs[job["metadata"]["name"]] = job
        self._seen += 1
        if self.last_pod is not None and _owner(self.last_pod) != job["metadata"]["uid"]:
            self.last_pod = None

    async def ready(self) -> None:
        """Until both were listed: what is missing in a later list is gone."""
        while self._listed < {JOBS, PODS}:
            await self.change()

    async def change(self, within: float | None = None) -> None:
        """Wait until something is heard. What the cluster refuses to tell is raised here."""
        if self._refusal is not None:
            raise self._refusal
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.wait()
        self._changed.clear()
        if self._refusal is not None:
            raise self._refusal

    async def keep(self) -> None:
        """Follow both, until cancelled."""
        await asyncio.gather(
            self._follow(JOBS, self._field, self._jobs), self._follow(PODS, self._labels, self._pods, self._keep_pod)
        )

    def _keep_pod(self) -> None:
        self.last_pod = self.pod or self.last_pod
        self.pull_failure = words.pull_failure(self.pod) or self.pull_failure

    async def _follow(
        self, kind: str, query: dict[str, str], found: dict[str, Object], heard: Callable[[], None] = lambda: None
    ) -> None:
        pause, doubt = FIRST_PAUSE, Doubt()

        def accept() -> None:
            nonlocal pause
            pause = FIRST_PAUSE
            doubt.end()

        while True:
            try:
                version = await self._list(kind, query, found, heard)
                while True:
                    version = await self._watch(kind, query, version, found, heard, accept)
                    await asyncio.sleep(FIRST_PAUSE)  # a server that ends every watch at once is not stormed
            except _TooOld:
                continue
            except Refused as refusal:
                if doubt.is_final(refusal):
                    self._refusal = refusal
                    self._changed.set()
                    return
            except Unreachable:
                pass
            except Exception as failure:  # somebody else's words: who waits for news must not wait for ever
                log.warning("kubernetes.unread", extra={"kind": kind, "error": f"{type(failure).__name__}: {failure}"})
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _list(self, kind: str, query: dict[str, str], found: dict[str, Object], heard: Callable[[], None]) -> str:
        seen = self._seen
        listed = await self._cluster.list(kind, **query)
        if seen == self._seen:  # else the list may be older than what was seen meanwhile
            found.clear()
        self._listed.add(kind)
        found.update({each["metadata"]["name"]: each for each in listed.get("items") or []})
        heard()
        self._changed.set()
        return str(listed["metadata"]["resourceVersion"])

    async def _watch(
        self,
        kind: str,
        query: dict[str, str],
        version: str,
        found: dict[str, Object],
        heard: Callable[[], None],
        accept: Callable[[], None],
    ) -> str:
        """Hear one answer to its end; a watch ends now and then, and is taken up where it ended."""
        try:
            async with aclosing(self._cluster.watch(kind, version, on_accept=accept, **query)) as events:
                async for event in events:
                    version = _take(event, found)
                    heard()
                    self._changed.set()
        except Refused as refusal:
            if refusal.status == GONE:
                raise _TooOld from refusal
            raise
        return version


def _take(event: Object, found: dict[str, Object]) -> str:
    """Keep what an event tells; gives the version up to which was heard."""
    if event["type"] == "ERROR":
        raise _error(event["object"])
    about = event["object"]["metadata"]
    if event["type"] == "DELETED":
        found.pop(about["name"], None)
    elif event["type"] != "BOOKMARK":
        found[about["name"]] = event["object"]
    return str(about["resourceVersion"])


def _error(status: Object) -> Exception:
    code = int(status.get("code") or 500)
    return _TooOld() if code == GONE else Refused(max(code, 500), str(status.get("message") or code))


def _owner(pod: Object) -> str | None:
    owners = pod["metadata"].get("ownerReferences") or []
    return next((each["uid"] for each in owners if each.get("controller")), None)
