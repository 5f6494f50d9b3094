"""One HTTP request and its answer over one connection, which is read piece by piece and within limits."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import h11

from rota.executors.outbound import CutShort, Streams, told
from rota.model.address import Target
from rota.model.duration import format_duration
from rota.model.outcome import ErrorClass

LARGEST_HEAD = 65536
PIECE = 65536
MOST_CHUNKS = 500


@dataclass(frozen=True, slots=True)
class Head:
    """The first part of an answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def encoding(self) -> str:
        return self.headers.get("content-encoding", "identity").strip().lower()

    @property
    def says_where_it_ends(self) -> bool:
        """Otherwise the body ends with the connection, and nobody knows whether that was all."""
        return self.status == 204 or "content-length" in self.headers or "transfer-encoding" in self.headers


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the whole head may take to come, and then each next byte."""

    head: timedelta
    idle: timedelta


class Exchange:
    def __init__(self, streams: Streams, patience: Patience) -> None:
        self._reader, self._writer = streams
        self._patience = patience
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self._received = 0
        self._closed = self._whole = False
        self._mistake: CutShort | None = None
        self._end_at = float("inf")

    def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> None:
        """Does not wait: many answer before they have read everything."""
        fields = {"host": target.authority, **headers, "content-length": str(len(body)), "connection": "close"}
        request = h11.Request(method="POST", target=target.path, headers=list(fields.items()))
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(part))

    async def head(self) -> Head:
        patience = self._patience.head
        try:
            async with asyncio.timeout(patience.total_seconds()):
                return await self._head()
        except TimeoutError:
            raise _broken_off(f"no answer within {format_duration(patience)}") from None

    async def read(self) -> bytes:
        """The next piece of the body, or nothing at its proper end."""
        await asyncio.sleep(0)  # a flood must not starve the loop
        while not (data := self._arrived()) and not self._whole:
            await self._wait()
        return data

    def end_within(self, grace: timedelta) -> None:
        """For an answer that has said all it had to say but may not end."""
        self._end_at = min(self._end_at, asyncio.get_running_loop().time() + grace.total_seconds())

    async def _head(self) -> Head:
        while not isinstance(event := self._next(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                await self._receive(LARGEST_HEAD - self._received)
        headers: dict[str, str] = {}
        for name, value in event.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return Head(event.status_code, headers)

    def _arrived(self) -> bytes:
        """What is there: an answer in many small chunks is not as many pieces."""
        pieces: list[bytes] = []
        while not self._whole and len(pieces) < MOST_CHUNKS:
            match self._next():
                case h11.Data(data=data):
                    pieces.append(bytes(data))
                case h11.EndOfMessage():
                    self._whole = True
                case _:
                    break
        return b"".join(pieces)

    async def _wait(self) -> None:
        idle = self._patience.idle.total_seconds()
        try:
            async with asyncio.timeout_at(min(self._end_at, asyncio.get_running_loop().time() + idle)):
                await self._receive(PIECE)
        except TimeoutError:
            raise _broken_off(f"nothing came for {format_duration(self._patience.idle)}") from None

    async def _receive(self, most: int) -> None:
        if self._mistake is not None:
            raise self._mistake
        if most <= 0:
            raise _garbled(f"headers of over {LARGEST_HEAD:,} bytes")
        try:
            data = await self._reader.read(min(most, PIECE))
        except OSError as failure:
            raise _broken_off(told(failure)) from None
        self._received += len(data)
        self._closed = not data
        self._http.receive_data(data)

    def _next(self) -> object:
        """What came before a mistake counts, in whatever pieces it arrived: `_receive` is the one to raise it."""
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as mistake:
            found = _broken_off("the connection was closed") if self._closed else _garbled(str(mistake))
            self._mistake = self._mistake or found
            return None


def _broken_off(why: str) -> CutShort:
    return CutShort(ErrorClass.EXECUTOR_ERROR, f"the answer broke off: {why}")


def _garbled(why: str) -> CutShort:
    return CutShort(ErrorClass.AGENT_ERROR, f"the answer is not proper HTTP: {why[:200]}", retryable=False)
