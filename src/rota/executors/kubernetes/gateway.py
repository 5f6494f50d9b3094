"""The worker's way to the process that holds the client of clusters: one for all attempts, started when needed."""

import asyncio
import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from rota.errors import Invalid

CLIENT = str(Path(__file__).with_name("client.py"))
BROKEN = 0xFFFFFFFF
CALL_SECONDS = 40.0  # the client itself gives up before


class Unreachable(Exception):
    """The cluster did not answer, or its answer broke off."""


class Answer:
    """The head of an answer, and its body piece by piece."""

    def __init__(self, head: Mapping[str, Any], reader: asyncio.StreamReader) -> None:
        self.status, self.reason = int(head["status"]), str(head["reason"])
        self._reader = reader

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            while size := int.from_bytes(await self._reader.readexactly(4), "big"):
                if size == BROKEN:
                    raise Unreachable((await self._reader.read()).decode(errors="replace"))
                yield await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as failure:
            raise _gone() from failure

    async def body(self, most: int | None = None) -> bytes:
        read = bytearray()
        async for piece in self.pieces():
            read += piece
            if most is not None and len(read) >= most:
                break
        return bytes(read)


class Process:
    """The one of this worker. It ends with the worker, whose end of the line nobody else has."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fileno(self) -> int | None:
        return self._line.fileno() if self._line else None

    def session(self) -> socket.socket:
        """A line for the requests of one attempt."""
        for _ in range(2):
            line = self._line = self._line or self._start()
            try:
                return _handed_in(line)
            except OSError:  # it was killed: the next one is as good
                self.end()
        raise _gone()

    def end(self) -> None:
        """Let the process go; another one is started when it is needed."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._line = self._process = None

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: who interrupts the worker at its terminal leaves it to end in order.
            self._process = subprocess.Popen(
                [sys.executable, "-P", CLIENT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={name: value for name, value in os.environ.items() if not name.startswith("ROTA_")},
                start_new_session=True,
            )
        ours.setblocking(False)
        atexit.register(self.end)
        return ours


THE_PROCESS = Process()


class Session:
    """The requests of one attempt. Should the process be killed, what was asked is unreachable, and what is asked next
    goes to another one."""

    def __init__(self, where: Mapping[str, str]) -> None:
        self._where = where
        self._line: socket.socket | None = None

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None

    @asynccontextmanager
    async def ask(self, *, patient: bool = False, **asked: Any) -> AsyncIterator[Answer]:
        """`patient` is who asks for what may take long to begin."""
        reader, writer = await asyncio.open_connection(sock=self._request())
        try:
            writer.write(json.dumps({"where": self._where, **asked}).encode() + b"\n")
            yield _answer(await _head(reader, None if patient else CALL_SECONDS), reader)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _request(self) -> socket.socket:
        for _ in range(2):
            line = self._line = self._line or THE_PROCESS.session()
            try:
                return _handed_in(line)
            except OSError:
                self.close()
        raise _gone()


async def _head(reader: asyncio.StreamReader, seconds: float | None) -> Mapping[str, Any] | None:
    try:
        async with asyncio.timeout(seconds):
            head: Mapping[str, Any] | None = json.loads(await reader.readline() or "null")
            return head
    except TimeoutError as silence:
        THE_PROCESS.end()  # it is stopped or stuck: another one may not be
        raise _gone() from silence
    except OSError as failure:
        raise _gone() from failure


def _answer(head: Mapping[str, Any] | None, reader: asyncio.StreamReader) -> Answer:
    if head is None:
        raise _gone()
    if "no_way" in head:
        raise Invalid(f"no cluster is configured: {head['no_way']}", field="ROTA_KUBERNETES_CONFIG")
    if "broken" in head:
        raise Unreachable(head["broken"])
    return Answer(head, reader)


def _handed_in(line: socket.socket) -> socket.socket:
    """Our end of a socket whose other end goes over the line."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            socket.send_fds(line, [b"."], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
    return ours


def _gone() -> Unreachable:
    return Unreachable("the process that talks to clusters has ended")
