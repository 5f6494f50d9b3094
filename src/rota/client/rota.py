"""A person's or a program's way to one workspace: requests, messages, artifacts, memory, and the live trace."""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from rota.client.events import Events
from rota.client.wire import (
    FIRST_PAUSE,
    PASSING,
    AsyncWire,
    Call,
    Line,
    Wire,
    bearer,
    broken_off,
    checked,
    not_rota,
    opened,
    pause_after,
    unreachable,
)

LONGEST_WAIT = 30.0
QUIET_SECONDS = 60.0  # a trace says at least every 15 s that it is still there


class AsyncClient:
    def __init__(
        self,
        url: str,
        *,
        token: str,
        workspace: str = "default",
        patience: float = 30.0,
        connect_patience: float | None = None,
        wire: Wire | None = None,
    ) -> None:
        """`connect_patience` is how many seconds an address that has not answered yet is tried while nothing listens
        there; by default as long as `patience`."""
        self._prefix = f"/api/v1/workspaces/{quote(workspace, safe='')}"
        self.line = Line(wire or AsyncWire(url, bearer(token)), patience=patience, connect_patience=connect_patience)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.line.wire.close()

    async def request(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Any:
        """Any route of the workspace: `request("POST", "/automations/digest/run")`. A write is repeated with one key
        until it is answered."""
        return await self.line.json(Call(method, self._prefix + path, json, params or {}, key=key))

    async def publish(self, session: str, body: Any, *, to: str = "all", key: str | None = None) -> dict[str, Any]:
        """Send a message to one role of a session, or to all."""
        sent: dict[str, Any] = await self.request(
            "POST", f"/sessions/{session}/messages", {"body": body, "to": to}, key=key
        )
        return sent

    async def messages(
        self, session: str, *, role: str | None = None, after: int = 0, unacked: bool = False, wait: float = 0.0
    ) -> list[dict[str, Any]]:
        """The next messages, oldest first; waits so many seconds for the first."""
        params = {"role": role, "after": after, "unacked": unacked, "limit": 100}
        return await first_page(self.line, f"{self._prefix}/sessions/{session}/messages", params, wait)

    async def ack(self, session: str, message: int, *, role: str = "user") -> None:
        await self.request("POST", f"/sessions/{session}/messages/{message}/ack", {"role": role})

    async def add_artifact(
        self,
        session: str,
        name: str,
        content: bytes | str | Path,
        *,
        media_type: str | None = None,
        key: str | None = None,
        told: Callable[[int], object] = lambda _: None,
    ) -> dict[str, Any]:
        """Keep a content; a `Path` is read in pieces, and `told` of the bytes of each."""
        with opened(content, told) as body:
            headers = {"Content-Type": media_type} if media_type else {}
            call = Call(
                "POST",
                f"{self._prefix}/sessions/{session}/artifacts",
                params={"name": name},
                headers=headers,
                content=body,
                key=key,
            )
            added: dict[str, Any] = await self.line.json(call)
        return added

    async def content(self, session: str, artifact: str) -> bytes:
        """The content of an artifact."""
        path = f"{self._prefix}/sessions/{session}/artifacts/{artifact}/content"
        return (await self.line.send(Call("GET", path))).content

    async def export(self, session: str) -> AsyncIterator[bytes]:
        """A whole session as lines of JSON, piece by piece."""
        async with aclosing(self.pieces(f"/sessions/{session}/export")) as pieces:
            async for piece in pieces:
                yield piece

    async def pieces(self, path: str, *, params: Mapping[str, Any] | None = None) -> AsyncGenerator[bytes]:
        """What a route of the workspace gives, piece by piece, however long: a content, an export."""
        call, begun = Call("GET", self._prefix + path, params=params or {}, within=QUIET_SECONDS), False
        try:
            async with self.line.wire.streaming(call, call.options()) as stream:
                if not stream.answer.is_success:
                    await stream.read()
                    checked(stream.answer)
                async for piece in stream.pieces:
                    begun = True
                    yield piece
        except httpx.TransportError as failure:
            raise (broken_off(failure) if begun else unreachable(failure)) from failure

    async def follow(self, session: str, *, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """Every event of a session after a number: stored, then live, on and on; each once, over any number of
        reconnects. Patience is for the first answer only."""
        first_by = time.monotonic() + self.line.patience
        call = Call("GET", f"{self._prefix}/sessions/{session}/trace", within=QUIET_SECONDS)
        tries = 0
        while True:
            headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
            try:
                async with self.line.wire.streaming(call, {**call.options(), "headers": headers}) as stream:
                    if not stream.answer.is_success:
                        await stream.read()
                        if stream.answer.status_code not in PASSING or time.monotonic() >= first_by:
                            checked(stream.answer)
                    elif not stream.answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                        raise not_rota(stream.answer)
                    else:
                        first_by = math.inf
                        events = Events()
                        async for piece in stream.pieces:
                            for event in events.feed(piece):
                                after, tries = event["seq"], 0
                                yield event
            except httpx.TransportError as failure:
                # Later, the server restarts or another takes its place: go on where this one broke off.
                if time.monotonic() >= first_by:
                    raise unreachable(failure) from failure
            tries += 1
            await self.line.wire.pause(pause_after(tries))


async def first_page(line: Line, path: str, params: Mapping[str, Any], wait: float) -> list[dict[str, Any]]:
    """What is on a page of messages, waited for so many seconds, in as many requests as that takes."""
    until = time.monotonic() + wait
    while True:
        left = until - time.monotonic()
        call = Call("GET", path, params={**params, **waiting(left)}, within=LONGEST_WAIT + 30.0)
        items: list[dict[str, Any]] = (await line.json(call))["items"]
        if items or time.monotonic() >= until:
            return items
        await line.wire.pause(FIRST_PAUSE)  # a server that stops has nothing to say at once, until it is gone


def waiting(seconds: float) -> dict[str, str]:
    """How a wait is asked for, in whole milliseconds; a longer one is asked for again."""
    return {"wait": f"{min(max(seconds, 0.001), LONGEST_WAIT):.3f}s"} if seconds > 0 else {}
