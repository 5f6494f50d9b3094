"""A real HTTP server on this machine, for agents that are called: it remembers requests and answers as told."""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

END = b"0\r\n\r\n"


@dataclass(frozen=True)
class Request:
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Serves until the loop ends, or until `close`."""

    def __init__(self, answer: Answer | bytes, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._answer = _always(answer) if isinstance(answer, bytes) else answer
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/"
        self.requests: list[Request] = []
        self.connections = 0
        self.hung_up = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._serve(tls))

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _serve(self, tls: ssl.SSLContext | None) -> None:
        async with await asyncio.start_server(self._handle, sock=self._socket, ssl=tls) as server:
            await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            request = await _read(reader)
            self.requests.append(request)
            await self._answer_until_hung_up(request, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _answer_until_hung_up(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answering = asyncio.ensure_future(self._answer(request, writer))
        leaving = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                writer.close()
                await writer.wait_closed()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            self.hung_up.set()


async def _read(reader: asyncio.StreamReader) -> Request:
    line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in fields)}
    return Request(line, headers, await reader.readexactly(int(headers["content-length"])))


def _always(data: bytes) -> Answer:
    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


def response(status: str = "200 OK", body: bytes | str = b"", **headers: str) -> bytes:
    """A whole answer; headers are given as `content_type="…"`."""
    body = body.encode() if isinstance(body, str) else body
    fields = {"content-length": str(len(body)), **{name.replace("_", "-"): text for name, text in headers.items()}}
    return head(status, **fields) + body


def head(status: str = "200 OK", **headers: str) -> bytes:
    fields = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
    return f"HTTP/1.1 {status}\r\n{fields}\r\n".encode()


def chunked(media_type: str, status: str = "200 OK") -> bytes:
    return head(status, content_type=media_type, transfer_encoding="chunked")


def chunk(data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def line(**event: Any) -> bytes:
    return chunk(json.dumps(event) + "\n")


async def forever() -> None:
    await asyncio.Event().wait()
