"""A page that stays true while it is open: one stream sends its live part anew whenever the facts behind it changed."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Header, Query, Request
from starlette.responses import Response

from rota.db import isolation
from rota.db.listener import RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.http.context import Unit, Web
from rota.http.streams import STILL_HERE, EventStream
from rota.http.ui.rendering import here, html, is_live, page, render, told_to
from rota.model.caller import Caller
from rota.notify import reading

LOOK_SECONDS = 2.0  # when no notification comes
SETTLE_SECONDS = 0.1  # many changes at once are shown once
BEAT_SECONDS = 15.0

_LINE_END = re.compile(r"\r\n|\r|\n")  # what ends a line of an event stream

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


async def parts(request: Request, shared: Web, caller: Caller, view: View, seen: str) -> AsyncGenerator[bytes]:
    """The part whenever it is not what the reader has seen. Each carries the mark of its facts, so that a browser which
    lost the line says on any replica what it shows.
    """
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        for channel in (RUNS, TRIGGERS):
            await stack.enter_async_context(shared.listener.subscribed(channel, lambda _: changed.set()))
        spoke = loop.time()
        while not shared.closing.is_set():
            changed.clear()
            async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
                facts = await _look(view, conn, caller)
            if facts["seen"] != seen:
                seen, spoke = facts["seen"], loop.time()
                told = {"here": here(request), **told_to(request, caller), **facts}
                yield message(seen, render("_live.html", part=view.part, **told))
            elif loop.time() - spoke >= BEAT_SECONDS:
                spoke = loop.time()
                yield STILL_HERE
            await _rest(changed, shared.closing)


async def _look(view: View, conn: Connection, caller: Caller) -> Facts:
    """With the bell, which every page has."""
    facts = await view.look(conn, caller)
    unread = await reading.unread(conn, caller)
    return {**facts, "unread": unread, "seen": f"{facts['seen']}-{unread}"}


async def _rest(changed: asyncio.Event, closing: asyncio.Event) -> None:
    waits = {asyncio.ensure_future(each.wait()) for each in (changed, closing)}
    try:
        await asyncio.wait(waits, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    if changed.is_set() and not closing.is_set():
        await asyncio.sleep(SETTLE_SECONDS)


def message(mark: object, text: str) -> bytes:
    """One message of an event stream. A piece is applied whole or, when the line breaks within it, not at all."""
    data = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    return f"id: {mark}\n{data}\n".encode()
