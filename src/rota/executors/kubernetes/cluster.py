"""The door to a cluster's API, by the official client: it knows kubeconfig files, service accounts and certificates.

Its generic layer is used, not its generated methods: they take seconds to import, cannot ask for a log since a time,
and would refuse an answer of a newer cluster that has a value they don't know.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

from rota.errors import Invalid
from rota.executors.kubernetes.manifest import Object

JOBS, PODS, SECRETS = "/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/secrets"
MERGE = "application/merge-patch+json"
WATCH_SECONDS = 240
CALL = aiohttp.ClientTimeout(total=30)
WATCH = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=WATCH_SECONDS + 60)
FOLLOW = aiohttp.ClientTimeout(total=None, sock_connect=30)
PIECE = 65536
LONGEST_EVENT = 16_000_000
IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class Refused(Exception):
    """The cluster answered, with a refusal."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.passing = status == 429 or status >= 500


class Unreachable(Exception):
    """The cluster did not answer, or its answer broke off."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster: a kubeconfig and a context of it, or the cluster that this process runs in."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    async def load(self, configuration: Configuration) -> str:
        """Fill in how the cluster is reached, and give the namespace."""
        try:
            if self._inside():
                kube_config.load_incluster_config(configuration)
                return self.namespace or _namespace_here()
            loader = await kube_config.load_kube_config(
                self.kubeconfig or None, self.context or None, configuration, persist_config=False
            )
        except (kube_config.ConfigException, OSError) as mistake:
            raise Invalid(f"no way to a cluster was found: {mistake}", field="ROTA_KUBERNETES_CONFIG") from mistake
        context: Mapping[str, Any] = loader.current_context["context"]
        return str(self.namespace or context.get("namespace") or "default")

    def _inside(self) -> bool:
        return not self.kubeconfig and not self.context and "KUBERNETES_SERVICE_HOST" in os.environ


def _namespace_here() -> str:
    with suppress(OSError):
        return IN_CLUSTER_NAMESPACE.read_text().strip() or "default"
    return "default"


class Cluster:
    """One namespace of a cluster. Objects come and go as the API's own JSON."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._configuration = Configuration()
        self._api: ApiClient | None = None
        self._namespace = ""
        self._loading = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def reached(cls, where: Where) -> AsyncIterator["Cluster"]:
        cluster = cls(where)
        await cluster._load()
        try:
            yield cluster
        finally:
            if cluster._api is not None:
                await cluster._api.close()

    async def _load(self) -> None:
        self._namespace = await self._where.load(self._configuration)

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

    async def watch(self, kind: str, version: str, **query: str) -> AsyncGenerator[Object, None]:
        """Events after a version, until the server or the line ends them. The last may be of the type ERROR."""
        asked = {
            **query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }  # fmt: skip
        held = b""
        async with self._answer("GET", kind, asked, timeout=WATCH) as answer:
            async for piece in _pieces(answer):
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
        async with self._answer("GET", f"{PODS}/{pod}/log", asked, timeout=FOLLOW) as answer:
            async for piece in _pieces(answer):
                yield piece

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Object | None = None,
        media_type: str = "application/json",
    ) -> Object:
        async with self._answer(method, path, query or {}, body=body, media_type=media_type) as answer:
            try:
                found: Object = await answer.json()
            except (*BROKEN, ValueError) as failure:
                raise Unreachable(_told(failure)) from failure
            return found

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Object | None = None,
        media_type: str = "application/json",
        timeout: aiohttp.ClientTimeout = CALL,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        for last in (False, True):
            answer = await self._send(method, path.format(self._namespace), query, body, media_type, timeout)
            try:
                if answer.status == 401 and not last:
                    await self._renew()
                    continue
                if answer.status >= 400:
                    raise Refused(answer.status, await _refusal(answer))
                yield answer
                return
            finally:
                answer.close()  # also of a stream of which more would come

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None,
        media_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if self._api is None:
            self._api = ApiClient(self._configuration)
            self._api.user_agent = "rota"
        headers = {"Accept": "application/json, */*", "Content-Type": media_type}
        asked = await self._api.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            answer = await self._api.call_api(*asked, _request_timeout=timeout)
        except BROKEN as failure:
            raise Unreachable(_told(failure)) from failure
        found: aiohttp.ClientResponse = answer.response
        return found

    async def _renew(self) -> None:
        """Tokens that a program makes last for minutes; a run may last for hours."""
        async with self._loading:
            await self._load()


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.content.iter_chunked(PIECE):
            yield piece
    except BROKEN as failure:
        raise Unreachable(_told(failure)) from failure


async def _refusal(answer: aiohttp.ClientResponse) -> str:
    """The words of a `Status`, or whatever stands there instead."""
    try:
        text = (await answer.content.read(PIECE)).decode(errors="replace")
    except BROKEN as failure:
        text = _told(failure)
    try:
        words = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        words = " ".join(text.split())[:500]
    return f"{answer.status} {words or answer.reason}"


def _told(failure: Exception) -> str:
    return str(failure) or type(failure).__name__
