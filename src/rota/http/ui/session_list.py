"""The list of sessions: conversations, goals that several agents pursue, and what automations left."""

from functools import partial
from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import runs, sessions, workers
from rota.db.pool import Connection
from rota.http.api.paging import Cursor, Owner
from rota.http.context import InUnit, Shared, Web
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import choosing
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import PageRoute, choose, fingerprint
from rota.http.ui.words import SESSION_KINDS, SESSIONS
from rota.model.caller import Caller, Level
from rota.model.session import SessionStatus
from rota.roster import members

LISTED = 50

Kind = Literal["interactive", "background", "automation"]

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/sessions", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    kind: Kind = "interactive",
    status: str | None = None,
    cursor: Cursor = None,
    owner: Owner = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Sessions of one kind, as they were started, newest first: an index of what changes with each event would cost
    every run."""
    named, unknown = choose(status, set() if kind == "automation" else set(SessionStatus))  # their runs have statuses
    chosen = SessionStatus(named) if named else None
    look = partial(
        _list, shared=shared, kind=kind, status=chosen, unknown=unknown, owner=owner, before=read_cursor(cursor)
    )
    view = View("sessions/list.html", "sessions/_results.html", "sessions/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(
    conn: Connection,
    caller: Caller,
    *,
    shared: Web,
    kind: str,
    status: SessionStatus | None,
    unknown: str = "",
    before: UUID | None,
    owner: str | None = None,
) -> dict[str, Any]:
    workspace_id = caller.workspace_id
    filters = {"kind": kind, "status": status, "owner_id": await members.find_owner(conn, caller, owner)}
    found = await sessions.page(conn, workspace_id, before=before, limit=LISTED + 1, **filters)
    older, found = len(found) > LISTED, found[:LISTED]
    latest = await runs.foremost_of_sessions(conn, workspace_id, [each["id"] for each in found])
    served = await workers.served(conn, dead_after=shared.settings.timeouts.dead)
    asks = kind == "interactive" and before is None and caller.level != Level.VIEWER
    return {
        "sessions": found,
        "latest": latest,
        "served": served,
        "agents": await choosing.agents_offered(conn, caller, active=True) if asks else None,
        "kind": kind,
        "kinds": list(SESSION_KINDS.items()),
        "chosen": status,
        "owner": owner,
        "unknown": unknown,
        "filters": [] if kind == "automation" else list(SESSIONS.items()),
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "seen": fingerprint(found, latest, older, served),
    }
