"""Sessions: conversations, and their live trace."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Header, Query, Request

from rota.db import events, isolation, sessions
from rota.db.events import Event
from rota.db.pool import Connection
from rota.errors import Invalid, NotFound
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Shared, Signed
from rota.http.shapes import (
    EventOut,
    OriginOut,
    Page,
    SessionOut,
    cursor_of,
    page_of,
    read_cursor,
    read_number_cursor,
)
from rota.http.streams import STILL_HERE, EventStream
from rota.model.ids import SessionId, WorkspaceId
from rota.trace.follow import Told

router = APIRouter(prefix="/sessions", tags=["sessions"])

LARGEST_SEQ = 2**63 - 1
# Ends of lines to many a reader, though not to the standard of server-sent events.
LINE_MARKS = [(mark.encode(), rf"\u{ord(mark):04x}".encode()) for mark in ("\x85", "\u2028", "\u2029")]


async def find(conn: Connection, workspace_id: WorkspaceId, session_id: UUID) -> dict[str, Any]:
    session = await sessions.find(conn, workspace_id, SessionId(session_id))
    if not session:
        raise NotFound("There is no such session.")
    return session


@router.get("")
async def list_sessions(
    unit: InUnit,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    kind: Literal["interactive", "automation", "background"] | None = None,
) -> Page[SessionOut]:
    """Sessions, newest first."""
    found = await sessions.page(
        unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1, kind=kind
    )
    return page_of(found, limit, SessionOut)


@router.get("/{session_id}")
async def get_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """One session."""
    return SessionOut.model_validate(await find(unit.conn, unit.caller.workspace_id, session_id))


@router.get("/{session_id}/origin")
async def get_origin(unit: InUnit, session_id: UUID) -> OriginOut:
    """Which automation started this session; 404 if none did."""
    await find(unit.conn, unit.caller.workspace_id, session_id)
    origin = await sessions.origin(unit.conn, unit.caller.workspace_id, SessionId(session_id))
    if not origin:
        raise NotFound("No automation started this session.")
    return OriginOut.model_validate(origin)


@router.get("/{session_id}/events")
async def list_events(
    unit: InUnit,
    session_id: UUID,
    after: Annotated[int, Query(ge=0, le=LARGEST_SEQ, description="Give events with a higher number")] = 0,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[EventOut]:
    """The session's log, oldest first: page on with `after` set to the last `seq` you have, or with the cursor."""
    after = read_number_cursor(cursor, largest=LARGEST_SEQ) or after
    await find(unit.conn, unit.caller.workspace_id, session_id)
    found = await events.page(unit.conn, unit.caller.workspace_id, SessionId(session_id), after=after, limit=limit + 1)
    shown = [EventOut.model_validate(each) for each in found[:limit]]
    return Page(items=shown, next_cursor=cursor_of(shown[-1].seq) if len(found) > limit else None)


@router.get("/{session_id}/trace", response_class=EventStream, status_code=200)
async def follow_trace(
    request: Request,
    caller: Signed,
    shared: Shared,
    session_id: UUID,
    after: Annotated[int, Query(ge=0, le=LARGEST_SEQ)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventStream:
    """Server-sent events: what is stored, then live. `Last-Event-ID` resumes exactly, on any replica."""
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        session = await find(conn, caller.workspace_id, session_id)
    start = min(read_last_event_id(last_event_id, after), session["last_seq"])
    told = shared.readers.follow(caller.workspace_id, SessionId(session_id), after=start)
    return EventStream(request, _lines(told))


def read_last_event_id(header: str | None, after: int) -> int:
    if header is None or header == "":
        return after
    if not header.isascii() or not header.isdigit() or len(header) > 19 or int(header) > LARGEST_SEQ:
        raise Invalid("Last-Event-ID is the `id` of the last event you saw: a whole number.", field="Last-Event-ID")
    return int(header)


async def _lines(told: AsyncGenerator[Told]) -> AsyncGenerator[bytes]:
    async with aclosing(told):  # a reader who leaves must not stay subscribed
        async for each in told:
            yield each.once("lines", partial(_page, each.events)) or STILL_HERE


def _page(events: Sequence[Event]) -> bytes:
    return b"".join(map(_line, events))


def _line(event: Event) -> bytes:
    data = orjson.dumps(EventOut.model_validate(event).model_dump())
    for mark, escaped in LINE_MARKS:
        data = data.replace(mark, escaped)
    return b"event: %s\nid: %d\ndata: %s\n\n" % (event.kind.encode(), event.seq, data)
