"""The page of recent runs, and what can be done with one."""

from functools import partial
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from rota.db import runs as rows
from rota.db import workers
from rota.db.listener import RUNS
from rota.db.pool import Connection
from rota.errors import NotFound
from rota.http.api.paging import Cursor, Owner
from rota.http.context import InUnit, Shared, Unit, Web
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import Next, PageRoute, choose, done, fingerprint, is_live
from rota.http.ui.words import STATUS
from rota.model.caller import Caller, Level
from rota.model.ids import RunId, as_uuid
from rota.model.run import Status
from rota.roster import members, running

LISTED = 50
FILTERS = (
    *(Status.RUNNING, Status.QUEUED, Status.AWAITING_APPROVAL),
    *(Status.FAILED, Status.SKIPPED, Status.CANCELLED, Status.SUCCEEDED),
)

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/runs", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    status: str | None = None,
    cursor: Cursor = None,
    owner: Owner = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Runs of the whole workspace, newest first."""
    chosen, unknown = choose(status, set(Status))
    look = partial(_list, shared=shared, status=chosen, unknown=unknown, owner=owner, before=read_cursor(cursor))
    view = View("runs/list.html", "runs/_results.html", "runs/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(
    conn: Connection,
    caller: Caller,
    *,
    shared: Web,
    status: str | None,
    unknown: str = "",
    before: UUID | None,
    owner: str | None = None,
) -> dict[str, Any]:
    workspace_id = caller.workspace_id
    owner_id = await members.find_owner(conn, caller, owner)
    found = await rows.page(conn, workspace_id, before=before, limit=LISTED + 1, status=status, owner_id=owner_id)
    older, found = len(found) > LISTED, found[:LISTED]
    subjects = await rows.subjects(conn, workspace_id, [each["id"] for each in found])
    served = await workers.served(conn, dead_after=shared.settings.timeouts.dead)
    return {
        "runs": found,
        "served": served,
        "subjects": subjects,
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "chosen": status,
        "owner": owner,
        "unknown": unknown,
        "filters": [(each.value, STATUS[each]) for each in FILTERS],
        "seen": fingerprint(found, subjects, older, served),
    }


def _id(ref: str) -> RunId:
    found: UUID | None = as_uuid(ref)
    if found is None:
        raise NotFound("There is no such run.")
    return RunId(found)


async def _find(unit: Unit, run_id: RunId) -> dict[str, Any]:
    found = await rows.find(unit.conn, unit.caller.workspace_id, run_id)
    assert found
    return found


def _session(unit: Unit, run: dict[str, Any]) -> str:
    return f"/w/{unit.caller.workspace_slug}/sessions/{run['session_id']}"


@router.post("/{run}/cancel")
async def cancel(unit: InUnit, request: Request, run: str, to: Next = "") -> Response:
    await running.cancel(unit.conn, unit.caller, _id(run))
    unit.wake(RUNS, unit.caller.workspace_id)
    found = await _find(unit, _id(run))
    told = "The run is cancelled." if found["finished_at"] else "The agent is asked to stop."
    return done(request, to or _session(unit, found), told)


@router.post("/{run}/retry")
async def retry(unit: InUnit, request: Request, run: str) -> Response:
    """A new run in place of this one; on to its session."""
    unit.caller.must_be(Level.MEMBER, "retry a run")
    new = await running.retry(unit.conn, unit.caller, _id(run))
    unit.wake(RUNS, unit.caller.workspace_id)
    session = _session(unit, await _find(unit, new))
    if is_live(request):
        return Response(status_code=200, headers={"HX-Redirect": session})
    return RedirectResponse(session, 303)
