"""The list of sessions: conversations, goals that several agents pursue, and what automations left; and new ones."""

from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from rota.db import agents, runs, sessions
from rota.db.listener import RUNS
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.http.api.paging import Cursor
from rota.http.bodies import clean_text
from rota.http.context import InUnit, Shared
from rota.http.shapes.fields import LONGEST_PROMPT
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import PageRoute, fingerprint, is_live
from rota.http.ui.words import SESSION_KINDS, SESSIONS
from rota.model.caller import Caller, Level
from rota.model.session import SessionStatus
from rota.sessions import opening

LISTED, OFFERED = 50, 200

Kind = Literal["interactive", "background", "automation"]

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/sessions", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    kind: Kind = "interactive",
    status: SessionStatus | None = None,
    cursor: Cursor = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Sessions of one kind, newest first."""
    if kind == "automation" and status is not None:
        raise Invalid("Sessions of automations are told by their runs, which have statuses.", field="status")
    look = partial(_list, kind=kind, status=status, before=read_cursor(cursor))
    view = View("sessions/list.html", "sessions/_results.html", "sessions/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(
    conn: Connection, caller: Caller, *, kind: str, status: SessionStatus | None, before: UUID | None
) -> dict[str, Any]:
    workspace_id = caller.workspace_id
    found = await sessions.page(conn, workspace_id, before=before, limit=LISTED + 1, kind=kind, status=status)
    older, found = len(found) > LISTED, found[:LISTED]
    latest = await runs.latest_of_sessions(conn, workspace_id, [each["id"] for each in found])
    return {
        "sessions": found,
        "latest": latest,
        "agents": await _agents(conn, caller) if kind == "interactive" and before is None else [],
        "kind": kind,
        "kinds": list(SESSION_KINDS.items()),
        "chosen": status,
        "filters": [] if kind == "automation" else list(SESSIONS.items()),
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "seen": fingerprint(found, latest, older),
    }


async def _agents(conn: Connection, caller: Caller) -> list[dict[str, Any]]:
    """Whom this reader may talk to."""
    if caller.level == Level.VIEWER:
        return []
    found = await agents.page(conn, caller.workspace_id, before=None, limit=OFFERED)
    return sorted((each for each in found if each["status"] == "active"), key=lambda each: each["name"].lower())


@router.post("")
async def converse(
    unit: InUnit, request: Request, agent: Annotated[str, Form()] = "", prompt: Annotated[str, Form()] = ""
) -> Response:
    """A new conversation, which begins with this prompt; on to its page."""
    said = clean_text(prompt, "prompt").strip()
    if not said or len(said) > LONGEST_PROMPT:
        raise Invalid(f"Write something, of at most {LONGEST_PROMPT:,} characters.", field="prompt")
    session_id = await opening.converse(unit.conn, unit.caller, clean_text(agent, "agent"), prompt=said)
    unit.about(session_id)
    unit.wake(RUNS, unit.caller.workspace_id)
    address = f"/w/{unit.caller.workspace_slug}/sessions/{session_id}"
    if is_live(request):
        return Response(status_code=200, headers={"HX-Redirect": address})
    return RedirectResponse(address, 303)
