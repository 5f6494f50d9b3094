"""The page of recent runs, and what can be done with one."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from rota.db import runs as rows
from rota.db.listener import CANCELS, RUNS
from rota.errors import Invalid, NotFound
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Unit
from rota.http.shapes import cursor_of, read_cursor
from rota.http.ui.rendering import Next, PageRoute, done, fingerprint, is_live, page, part, unchanged
from rota.http.ui.words import STATUS
from rota.model.caller import Level
from rota.model.ids import RunId, as_uuid
from rota.model.run import Status
from rota.roster import running

LISTED = 50
FILTERS = (Status.RUNNING, Status.QUEUED, Status.FAILED, Status.SKIPPED, Status.SUCCEEDED)
# Those of which the newest are found without reading past all others, however often a page looks again.
INDEXED = (None, Status.RUNNING, Status.QUEUED)

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/runs", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit, request: Request, status: str | None = None, cursor: Cursor = None, seen: str | None = None
) -> Response:
    """Runs of the whole workspace, newest first."""
    if status is not None and status not in set(Status):
        raise Invalid("There is no such status.", field="status")
    conn, workspace_id = unit.conn, unit.caller.workspace_id
    found = await rows.page(conn, workspace_id, before=read_cursor(cursor), limit=LISTED + 1, status=status)
    older, found = len(found) > LISTED, found[:LISTED]
    subjects = await rows.subjects(conn, workspace_id, [each["id"] for each in found])
    facts: dict[str, Any] = {
        "runs": found,
        "subjects": subjects,
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": cursor is None,
        "grows": cursor is None and status in INDEXED,
        "chosen": status,
        "filters": [(each.value, STATUS[each]) for each in FILTERS],
        "seen": fingerprint(found, subjects, older),
    }
    if is_live(request) and seen == facts["seen"]:
        return unchanged()
    if is_live(request):
        return part(unit, request, "runs/_list.html", **facts)
    return await page(unit, request, "runs/list.html", **facts)


def _id(ref: str) -> RunId:
    found: UUID | None = as_uuid(ref)
    if found is None:
        raise NotFound("There is no such run.")
    return RunId(found)


async def _session(unit: Unit, run_id: RunId) -> str:
    found = await rows.find(unit.conn, unit.caller.workspace_id, run_id)
    assert found
    return f"/w/{unit.caller.workspace_slug}/sessions/{found['session_id']}"


@router.post("/{run}/cancel")
async def cancel(unit: InUnit, request: Request, run: str, to: Next = "") -> Response:
    asked = await running.cancel(unit.conn, unit.caller, _id(run))
    for each in asked:
        unit.wake(CANCELS, each)
    unit.wake(RUNS, unit.caller.workspace_id)
    told = "The agent is asked to stop." if asked else "The run is cancelled."
    return done(request, to or await _session(unit, _id(run)), told)


@router.post("/{run}/retry")
async def retry(unit: InUnit, request: Request, run: str) -> Response:
    """A new run in place of this one; on to its session."""
    unit.caller.must_be(Level.MEMBER, "retry a run")
    new = await running.retry(unit.conn, unit.caller, _id(run))
    unit.wake(RUNS, unit.caller.workspace_id)
    session = await _session(unit, new)
    if is_live(request):
        return Response(status_code=200, headers={"HX-Redirect": session})
    return RedirectResponse(session, 303)
