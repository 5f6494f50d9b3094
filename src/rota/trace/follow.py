"""Stored, then live: everything after a sequence number, without gap or repeat, on any replica."""

import asyncio
from collections.abc import AsyncGenerator

from rota.db import events, isolation
from rota.db.events import Event
from rota.db.listener import Listener, session_channel
from rota.db.pool import Database
from rota.model.ids import SessionId, WorkspaceId

PAGE = 500
POLL_SECONDS = 1.0


async def follow(
    db: Database,
    listener: Listener,
    workspace_id: WorkspaceId,
    session_id: SessionId,
    *,
    after: int,
    until: asyncio.Event,
    beat: float = 15.0,
) -> AsyncGenerator[list[Event]]:
    """Pages of events as they come; an empty page when nothing came for `beat` seconds, to keep the line alive. Ends
    soon after `until` is set.

    A session's numbers are in commit order, so "after N" can never pass over a row that is committed later.
    """
    changed = asyncio.Event()
    async with listener.subscribed(session_channel(session_id), lambda _: changed.set()):
        quiet = 0.0
        while not until.is_set():
            changed.clear()
            async with isolation.in_workspace(db, workspace_id) as conn:
                page = await events.page(conn, workspace_id, session_id, after=after, limit=PAGE)
            if page:
                after, quiet = page[-1].seq, 0.0
                yield page
                continue
            quiet += await _rest(changed)
            if quiet >= beat:
                quiet = 0.0
                yield []


async def _rest(changed: asyncio.Event) -> float:
    started = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(POLL_SECONDS):
            await changed.wait()
    except TimeoutError:
        pass
    return asyncio.get_running_loop().time() - started
