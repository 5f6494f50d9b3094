"""A page that stays true while it is open: one stream sends its live part anew whenever the facts behind it changed."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from rota.db import glance, isolation
from rota.db.listener import BELL, RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.errors import NotFound
from rota.http.context import Shared, Signed, Unit, Web
from rota.http.streams import STILL_HERE, EventStream
from rota.http.ui.rendering import PageRoute, here, html, is_live, page, render, told_to
from rota.model.caller import Caller

LOOK_SECONDS = 2.0  # when no notification comes
SETTLE_SECONDS = 0.1  # many changes at once are shown once
BEAT_SECONDS = 15.0

_LINE_END = re.compile(r"\r\n|\r|\n")  # what ends a line of an event stream

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/top", include_in_schema=False)

Facts = dict[str, Any]
Look = Callable[[Connection, Caller], Awaitable[Facts]]
Live = Annotated[
    str | None, Query(max_length=64, description="Stream the page's live part; what of it is shown already")
]
LastEventId = Annotated[str | None, Header()]


@dataclass(frozen=True, slots=True)
class View:
    """A page, its part that is replaced in place, and how the facts of both are found: with `seen`, which tells them
    from all others, and `lives`, whether it may change while somebody looks.
    """

    page: str
    results: str
    part: str
    look: Look


async def shown(unit: Unit, request: Request, shared: Web, view: View, live: str | None, last: str | None) -> Response:
    """The page; for htmx what stands in it; or, with `live`, the stream that keeps it true."""
    if live is not None:
        return EventStream(request, parts(request, shared, unit.caller, view, last or live))
    facts = await _look(view, unit.conn, unit.caller)
    if is_live(request):
        return html(request, render(view.results, here=here(request), **told_to(request, unit.caller), **facts))
    return await page(unit, request, view.page, **facts)


async def parts(
    request: Request, shared: Web, caller: Caller, view: View, seen: str, *, marked: bool = True
) -> AsyncGenerator[bytes]:
    """The part whenever it is not what the reader has seen. Each carries the mark of its facts, so that a browser which
    lost the line says on any replica what it shows. Once there is nothing left to show, the last part says that.
    """
    changed = asyncio.Event()
    mine = {"", str(caller.workspace_id), str(caller.user_id)}  # one that names nobody is for everybody

    def hear(about: str) -> None:
        if about in mine:
            changed.set()

    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        for channel in (RUNS, TRIGGERS, BELL):
            await stack.enter_async_context(shared.listener.subscribed(channel, hear))
        spoke = loop.time()
        while not shared.closing.is_set():
            changed.clear()
            try:
                async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
                    facts = await _look(view, conn, caller)
            except NotFound as gone:
                yield message(None, render("_gone.html", told=gone.message))
                return
            if facts["seen"] != seen:
                seen, spoke = facts["seen"], loop.time()
                told = {"here": here(request), **told_to(request, caller), **facts}
                yield message(seen if marked else None, render("_live.html", part=view.part, **told))
            elif loop.time() - spoke >= BEAT_SECONDS:
                spoke = loop.time()
                yield STILL_HERE
            await _rest(changed, shared.closing)


async def _look(view: View, conn: Connection, caller: Caller) -> Facts:
    """With what the top of every page tells."""
    facts = await view.look(conn, caller)
    told = await glance.waiting(conn, caller)
    return {**facts, "glance": told, "seen": f"{facts['seen']}-{told.mark}"}


async def _nothing(conn: Connection, caller: Caller) -> Facts:  # noqa: ARG001
    return {"seen": "top"}


TOP = View("", "", "", _nothing)  # of a page that has nothing else that lives


@router.get("")
async def top(
    request: Request, caller: Signed, shared: Shared, live: Live = None, last_event_id: LastEventId = None
) -> Response:
    """The stream of a page that does not change while it is open, but for its top."""
    return EventStream(request, parts(request, shared, caller, TOP, last_event_id or live or ""))


async def with_top(
    request: Request, shared: Web, caller: Caller, lines: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    """Two streams as one: what a page says of its own, and its top. Only the first says how far the page has come; what
    its top shows by now nobody knows after a line was lost, so it is always told first.
    """
    top = parts(request, shared, caller, TOP, "", marked=False)
    async with aclosing(lines), aclosing(top), aclosing(_merged(lines, top)) as merged:
        async for line in merged:
            yield line


async def _merged(*streams: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Whatever comes, from whichever it comes, until one of them ends."""
    awaited = {asyncio.ensure_future(anext(each, None)): each for each in streams}
    try:
        while True:
            ready, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for each in ready:
                stream, line = awaited.pop(each), each.result()
                if line is None:
                    return
                yield line
                awaited[asyncio.ensure_future(anext(stream, None))] = stream
    finally:
        for each in awaited:
            each.cancel()
        await asyncio.gather(*awaited, return_exceptions=True)


async def _rest(changed: asyncio.Event, closing: asyncio.Event) -> None:
    waits = {asyncio.ensure_future(each.wait()) for each in (changed, closing)}
    try:
        await asyncio.wait(waits, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    if changed.is_set() and not closing.is_set():
        await asyncio.sleep(SETTLE_SECONDS)


def message(mark: object | None, text: str) -> bytes:
    """One message of an event stream. A piece is applied whole or, when the line breaks within it, not at all."""
    data = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    known = "" if mark is None else f"id: {mark}\n"
    return f"{known}{data}\n".encode()
