"""Holds the client of clusters, which takes a second to import: a process of its own, for all attempts of a worker.

Runs as `python client.py FD`, with nothing of Rota but this file. Its socket hands in sessions, sockets too: each is
one attempt's, with a client of its own, and hands in requests. A request is a socket with a line of JSON; the answer is
another line, then pieces behind their length. A length of nothing is the proper end, and `BROKEN` begins the words for
one that is none. Whoever hangs up wants no more of it; when the worker hangs up, this process ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    Request = Mapping[str, Any]

BROKEN = 0xFFFFFFFF
PIECE = 65536
LONGEST_REQUEST = 16_000_000
TIMEOUTS = {
    "call": aiohttp.ClientTimeout(total=30),
    "watch": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=300),
    "follow": aiohttp.ClientTimeout(total=None, sock_connect=30),
}
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)
IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoWay(Exception):
    """Nothing says how a cluster is reached."""


class Session:
    def __init__(self) -> None:
        self._configuration = Configuration()
        self._api: ApiClient | None = None
        self._namespace = ""
        self._loading = asyncio.Lock()

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()

    async def answer(self, asked: Request, writer: asyncio.StreamWriter) -> None:
        try:
            await self._load(asked["where"])
            if asked.get("method") is None:  # it is only asked whether there is a way
                _head(writer, status=200, reason="")
            else:
                await self._pass_on(asked, writer)
        except NoWay as mistake:
            _head(writer, no_way=str(mistake))
        except FAILURES as failure:
            _head(writer, broken=_told(failure))
        await writer.drain()

    async def _load(self, where: Mapping[str, str], *, again: bool = False) -> None:
        async with self._loading:
            if again or not self._namespace:
                self._namespace = await load(where, self._configuration)

    async def _pass_on(self, asked: Request, writer: asyncio.StreamWriter) -> None:
        answer = await self._send(asked)
        if answer.status == 401:  # tokens that a program makes last for minutes; a run may last for hours
            answer.close()
            await self._load(asked["where"], again=True)
            answer = await self._send(asked)
        try:
            _head(writer, status=answer.status, reason=answer.reason)
            await _stream(answer, writer)
        finally:
            answer.close()  # also of a stream of which more would come

    async def _send(self, asked: Request) -> aiohttp.ClientResponse:
        if self._api is None:
            self._api = ApiClient(self._configuration)
            self._api.user_agent = "rota"
        headers = {"Accept": "application/json, */*", "Content-Type": asked["media_type"]}
        made = await self._api.param_serialize(
            asked["method"], asked["path"].format(self._namespace), query_params=list(asked["query"].items()),
            header_params=headers, body=asked["body"], auth_settings=["BearerToken"],
        )  # fmt: skip
        answer = await self._api.call_api(*made, _request_timeout=TIMEOUTS[asked["timeout"]])
        found: aiohttp.ClientResponse = answer.response
        return found


async def load(where: Mapping[str, str], configuration: Configuration) -> str:
    """Fill in how the cluster is reached, and give the namespace."""
    inside = not where["kubeconfig"] and not where["context"] and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if inside:
            kube_config.load_incluster_config(configuration)
            return where["namespace"] or _namespace_here()
        _require_kubeconfig(where["kubeconfig"])
        loader = await kube_config.load_kube_config(
            where["kubeconfig"] or None, where["context"] or None, configuration, persist_config=False
        )
    except (kube_config.ConfigException, OSError) as mistake:
        raise NoWay(str(mistake)) from mistake
    context: Mapping[str, Any] = loader.current_context["context"]
    return str(where["namespace"] or context.get("namespace") or "default")


def _require_kubeconfig(path: str) -> None:
    """Name the missing file; the library calls a file that does not exist invalid."""
    if path and not Path(path).is_file():
        raise NoWay(f"there is no kubeconfig {path!r} on this worker; name a file that it can read")
    named = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not path and not any(Path(each).expanduser().is_file() for each in named.split(os.pathsep) if each):
        raise NoWay(
            f"this worker does not run in a cluster, and there is no kubeconfig {named!r}; "
            "set ROTA_KUBERNETES_CONFIG to the path of one"
        )


def _namespace_here() -> str:
    with suppress(OSError):
        return IN_CLUSTER_NAMESPACE.read_text().strip() or "default"
    return "default"


def _head(writer: asyncio.StreamWriter, **head: object) -> None:
    writer.write(json.dumps(head).encode() + b"\n")


async def _stream(answer: aiohttp.ClientResponse, writer: asyncio.StreamWriter) -> None:
    try:
        async for piece in answer.content.iter_chunked(PIECE):
            writer.write(len(piece).to_bytes(4, "big") + piece)
            await writer.drain()
    except FAILURES as failure:
        writer.write(BROKEN.to_bytes(4, "big") + _told(failure).encode(errors="replace"))
    else:
        writer.write(bytes(4))


def _told(failure: Exception) -> str:
    return str(failure) or type(failure).__name__


async def _handed_in(line: socket.socket) -> AsyncIterator[socket.socket]:
    """The sockets that come over a line, until that ends."""
    loop = asyncio.get_running_loop()
    line.setblocking(False)
    with line:
        while True:
            readable = asyncio.Event()
            loop.add_reader(line, readable.set)
            try:
                await readable.wait()
                data, fds, _flags, _address = socket.recv_fds(line, 1, 1)
            except BlockingIOError:
                continue
            except OSError:
                return
            finally:
                loop.remove_reader(line)
            if not data:
                return
            for fd in fds:
                yield socket.socket(fileno=fd)


async def _attend(line: socket.socket) -> None:
    """One session, with all its requests at once."""
    session, at_work = Session(), set[asyncio.Task[None]]()
    try:
        async for request in _handed_in(line):
            task = asyncio.create_task(_answer(session, request))
            at_work.add(task)
            task.add_done_callback(at_work.discard)
    finally:
        for task in tuple(at_work):
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)
        await session.close()


async def _answer(session: Session, request: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=request, limit=LONGEST_REQUEST)
    try:
        asked = json.loads(await reader.readline() or "null")
        if asked is None:
            return
        answering = asyncio.create_task(session.answer(asked, writer))
        hung_up = asyncio.create_task(reader.read())
        await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        for task in (answering, hung_up):
            task.cancel()
        await asyncio.gather(answering, hung_up, return_exceptions=True)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def main(line: socket.socket) -> None:
    sessions = set[asyncio.Task[None]]()
    async for session in _handed_in(line):
        task = asyncio.create_task(_attend(session))
        sessions.add(task)
        task.add_done_callback(sessions.discard)


if __name__ == "__main__":
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1]))))
