"""Runs: what became of a slot, a run now, a task or a chat turn."""

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response

from rota.db import events
from rota.db import runs as rows
from rota.db.listener import RUNS
from rota.errors import NotFound
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit, Owner
from rota.http.api.repeats import IdempotencyKey
from rota.http.context import InUnit, Unit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.http.shapes.runs import AttemptOut, RunOut, RunStory
from rota.model.caller import Level
from rota.model.ids import RunId, SessionId
from rota.roster import automations, members, running
from rota.sessions import story

router = APIRouter(prefix=API + "/runs", tags=["runs"], route_class=Repeatable)

RunStatus = Literal["queued", "running", "awaiting_approval", "succeeded", "failed", "skipped", "cancelled"]


async def _row(unit: Unit, run_id: UUID) -> dict[str, Any]:
    found = await rows.find(unit.conn, unit.caller.workspace_id, RunId(run_id))
    if not found:
        raise NotFound("There is no such run.")
    return found


async def _find(unit: Unit, run_id: UUID) -> RunOut:
    return RunOut.model_validate(await _row(unit, run_id))


@router.get("")
async def list_runs(
    unit: InUnit,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    status: RunStatus | None = None,
    automation: Annotated[str | None, Query(min_length=1, description="Id or slug")] = None,
    session: Annotated[UUID | None, Query(description="Id")] = None,
    owner: Owner = None,
) -> Page[RunOut]:
    """Runs of the workspace, newest first. The owner of a run is that of its automation; of one without an automation,
    whoever started it."""
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True) if automation else None
    page = await rows.page(
        unit.conn,
        unit.caller.workspace_id,
        before=read_cursor(cursor),
        limit=limit + 1,
        status=status,
        session_id=session,
        owner_id=await members.find_owner(unit.conn, unit.caller, owner),
        automation_id=found["id"] if found else None,
    )
    return page_of(page, limit, RunOut)


@router.get("/{run_id}")
async def get_run(unit: InUnit, run_id: UUID) -> RunStory:
    """One run, with the story of each attempt: its worker, its times and how it ended."""
    found = await _row(unit, run_id)
    run, told = RunOut.model_validate(found), []
    if run.session_id:
        session_id = SessionId(run.session_id)
        told = await events.of_run(unit.conn, unit.caller.workspace_id, session_id, RunId(run_id))
    attempts = [AttemptOut.model_validate(each) for each in story.attempts(told, found["executor"])]
    return RunStory(**run.model_dump(), attempts=attempts)


@router.post("/{run_id}/cancel", responses={202: {"model": RunOut, "description": "Its worker has to stop it"}})
async def cancel_run(unit: InUnit, run_id: UUID, response: Response) -> RunOut:
    """Cancel a run: at once if it is queued or parked; 202 if its worker has to stop it; 409 once it has ended."""
    await running.cancel(unit.conn, unit.caller, RunId(run_id))
    unit.wake(RUNS, unit.caller.workspace_id)
    run = await _find(unit, run_id)
    response.status_code = 200 if run.finished_at else 202
    return run


@router.post("/{run_id}/retry", status_code=201)
async def retry_run(unit: InUnit, run_id: UUID, idempotency_key: IdempotencyKey = None) -> RunOut:
    """Start a new run in place of one that failed, was cancelled or skipped; `retry_of` names the old one."""
    conn, caller = unit.conn, unit.caller
    caller.must_be(Level.MEMBER, "retry a run")
    request = {"run": "retry", "of": str(run_id)}
    new = await running.once_for_key(
        conn, caller, idempotency_key, request, lambda: running.retry(conn, caller, RunId(run_id))
    )
    unit.wake(RUNS, unit.caller.workspace_id)
    return await _find(unit, new)
