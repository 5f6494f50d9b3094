"""The door to a cluster's API, by the official client, which knows kubeconfig files, service accounts and certificates.

It is held by a process of its own (`client.py`). Its generic layer is used, not its generated methods: they take
seconds to import, cannot ask for a log since a time, and would refuse an answer of a newer cluster that has a value
they don't know.
"""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rota.executors.kubernetes.gateway import Answer, Session, Unreachable
from rota.executors.kubernetes.manifest import Object

JOBS, PODS, SECRETS = "/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/secrets"
EVENTS = "/api/v1/namespaces/{}/events"
JSON, MERGE = "application/json", "application/merge-patch+json"
WATCH_SECONDS = 240
LONGEST_REFUSAL = 65536
LONGEST_EVENT = 16_000_000
DOUBT_SECONDS = 30.0


class Refused(Exception):
    """The cluster answered, with a refusal."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.passing = status == 429 or status >= 500
        self.over_quota = status == 403 and "exceeded quota" in words
        self.doubtful = status in (401, 403) and not self.over_quota
        self.retryable = self.passing or self.over_quota or status == 401


class Doubt:
    """Refusals in a row. An API server that has just started refuses with 401 or 403 what it allows a moment later,
    so these are final only after `DOUBT_SECONDS`."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_final(self, refusal: Refused) -> bool:
        if refusal.passing or not refusal.doubtful:
            return not refusal.passing
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= DOUBT_SECONDS

    def end(self) -> None:
        """The cluster has allowed something again."""
        self._since = None


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster: a kubeconfig and a context of it, or the cluster that this process runs in."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


class Cluster:
    """One namespace of a cluster. Objects come and go as the API's own JSON."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    @asynccontextmanager
    async def reached(cls, where: Where) -> AsyncIterator["Cluster"]:
        session = Session(asdict(where))
        try:
            async with session.ask():
                pass  # there is a way
            yield cls(session)
        finally:
            session.close()

    async def create(self, kind: str, body: Object) -> Object:
        return await self._call("POST", kind, body=body)

    async def find(self, kind: str, name: str) -> Object | None:
        try:
            return await self._call("GET", f"{kind}/{name}")
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise

    async def replace(self, kind: str, name: str, body: Object) -> Object:
        return await self._call("PUT", f"{kind}/{name}", body=body)

    async def patch(self, kind: str, name: str, body: Object) -> Object:
        return await self._call("PATCH", f"{kind}/{name}", body=body, media_type=MERGE)

    async def delete(self, kind: str, name: str, **options: Any) -> None:
        """Ask for its end; that there is none to delete is as good."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        try:
            await self._call("DELETE", f"{kind}/{name}", body=body)
        except Refused as refusal:
            if refusal.status != 404:
                raise

    async def list(self, kind: str, **query: str) -> Object:
        return await self._call("GET", kind, query)

    async def watch(
        self, kind: str, version: str, *, on_accept: Callable[[], None] = lambda: None, **query: str
    ) -> AsyncGenerator[Object, None]:
        """Events after a version, until the server or the line ends them. The last may be of the type ERROR."""
        asked = {
            **query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }  # fmt: skip
        held = b""
        async with self._answer("GET", kind, asked, timeout="watch") as answer:
            on_accept()
            async for piece in answer.pieces():
                *lines, held = (held + piece).split(b"\n")
                if len(held) > LONGEST_EVENT:
                    raise Unreachable("an event of the cluster does not end")
                for line in filter(None, lines):
                    yield json.loads(line)

    async def log(self, pod: str, container: str, *, since: str | None, follow: bool) -> AsyncGenerator[bytes, None]:
        """The lines of a container, each behind its time."""
        asked = {"container": container, "timestamps": "true", "follow": str(follow).lower()}
        if since:
            asked["sinceTime"] = since
        async with self._answer("GET", f"{PODS}/{pod}/log", asked, timeout="follow") as answer:
            async for piece in answer.pieces():
                yield piece

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Object | None = None,
        media_type: str = JSON,
    ) -> Object:
        async with self._answer(method, path, query or {}, body=body, media_type=media_type) as answer:
            text = await answer.body()
        try:
            found: Object = json.loads(text)
        except ValueError as nonsense:
            raise Unreachable(str(nonsense)) from nonsense
        return found

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Object | None = None,
        media_type: str = JSON,
        timeout: str = "call",
    ) -> AsyncIterator[Answer]:
        asked = {"method": method, "path": path, "query": query, "body": body, "media_type": media_type}
        async with self._session.ask(**asked, timeout=timeout, patient=timeout != "call") as answer:
            if answer.status >= 400:
                raise Refused(answer.status, await _refusal(answer))
            yield answer


async def _refusal(answer: Answer) -> str:
    """The words of a `Status`, or whatever stands there instead."""
    try:
        text = (await answer.body(LONGEST_REFUSAL)).decode(errors="replace")
    except Unreachable as failure:
        text = str(failure)
    try:
        words = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        words = " ".join(text.split())[:500]
    return f"{answer.status} {words or answer.reason}"
