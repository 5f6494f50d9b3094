"""Cancel: at once what is queued, through its executor what runs; its worker is woken for it."""

from collections.abc import Collection, Sequence
from uuid import UUID

from rota.db import abandonments, events, run_status, runs
from rota.db.events import NewEvent
from rota.db.listener import CANCELS
from rota.db.pool import Connection
from rota.db.run_status import Asked
from rota.errors import Conflict, NotFound
from rota.model.ids import AgentId, AutomationId, GrantId, RunId, SessionId, WorkspaceId
from rota.model.outcome import ErrorClass
from rota.model.run import TERMINAL, SkipReason, Start, Status
from rota.runs import ending


async def cancel(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> None:
    """Cancel a run. Refused once it has ended."""
    while not await _cancelled(conn, workspace_id, run_id):
        # If it has not ended, its worker put it back to the queue between the two looks.
        await _refuse_ended(conn, workspace_id, run_id)


async def _cancelled(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> bool:
    """Whether it was queued, and has ended, or was live, and was asked to end."""
    reason = ErrorClass.CANCELLED_BY_USER
    ended = await run_status.end_queued(conn, workspace_id, run_id=run_id, status=Status.CANCELLED, error_class=reason)
    await ending.end(conn, ended)
    return bool(ended) or await _request(conn, workspace_id, run_id=run_id, reason=reason)


async def _refuse_ended(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> None:
    found = await runs.find(conn, workspace_id, run_id)
    if not found:
        raise NotFound("There is no such run.")
    if found["status"] in TERMINAL:
        told = f"The run has ended already: it {_told(found['status'])}."
        raise Conflict(told, code="run_ended", run_status=found["status"])


def _told(status: str) -> str:
    return {"succeeded": "succeeded", "failed": "failed", "skipped": "was skipped"}.get(status, "was cancelled")


async def replace_earlier(conn: Connection, starts: Sequence[Start], replacing: Collection[RunId]) -> None:
    """Make room for runs that replace what is in flight. Of several of one automation in these `starts` the last stays,
    with those that were started after it."""
    keep: dict[tuple[WorkspaceId, AutomationId | None], list[UUID]] = {}
    for each in starts:
        automation = (each.workspace_id, each.automation_id)
        if each.id in replacing:
            keep[automation] = [each.id]
        elif automation in keep:
            keep[automation].append(each.id)
    for (workspace_id, automation_id), kept in keep.items():
        assert automation_id, "only an automation's run replaces another"
        await _replace(conn, workspace_id, automation_id, kept)


async def _replace(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, keep: list[UUID]) -> None:
    ended = await run_status.end_waiting_except(conn, workspace_id, automation_id, keep)
    await ending.end(conn, ended)
    await _request(conn, workspace_id, automation_id=automation_id, reason=ErrorClass.REPLACED)


async def stop_session(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """End what waits in a session that was ended by hand, and ask for the end of what runs, but for an automation's."""
    await ending.end(conn, await run_status.end_of_session(conn, workspace_id, session_id))
    await _request(conn, workspace_id, session_id=session_id, reason=ErrorClass.CANCELLED_BY_USER)


async def stop_grants(conn: Connection, workspace_id: WorkspaceId, grant_ids: list[GrantId]) -> None:
    """End what waits or is parked under grants that were revoked, and ask for the end of what runs."""
    await ending.end(conn, await run_status.end_of_grants(conn, workspace_id, grant_ids))
    await _on_record(conn, workspace_id, await run_status.request_end_of_grants(conn, workspace_id, grant_ids))


async def _request(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    reason: ErrorClass,
    run_id: RunId | None = None,
    automation_id: AutomationId | None = None,
    session_id: SessionId | None = None,
) -> bool:
    """Whether anything was live."""
    asked = await run_status.request_cancel(
        conn, workspace_id, run_id=run_id, automation_id=automation_id, session_id=session_id, reason=reason
    )
    await _on_record(conn, workspace_id, asked)
    return bool(asked)


async def _on_record(conn: Connection, workspace_id: WorkspaceId, asked: Sequence[Asked]) -> None:
    """The end of what is live was asked for: tell its sessions and its workers. What nobody holds ends here."""
    await events.append(conn, [_asked(workspace_id, each) for each in asked if each.first])
    ids = [each.id for each in asked]
    if ids:
        parked = await run_status.end_parked(conn, workspace_id, ids)
        await abandonments.add(conn, [(each.workspace_id, each.id, each.attempt) for each in parked])
        await ending.end(conn, parked)
    conn.wake(CANCELS, ids)


def _asked(workspace_id: WorkspaceId, run: Asked) -> NewEvent:
    return NewEvent(workspace_id, run.session_id, "run", {"cancel_requested": run.reason}, run.id, run.attempt)


async def skip_waiting_of_agent(conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId) -> None:
    """Turn triggered runs that nobody has claimed into skipped ones: their agent was paused."""
    reason = SkipReason.AGENT_PAUSED
    ended = await run_status.end_queued(
        conn, workspace_id, agent_id=agent_id, status=Status.SKIPPED, skip_reason=reason
    )
    await ending.end(conn, ended)


async def skip_waiting_of_workspace(conn: Connection, workspace_id: WorkspaceId) -> None:
    """Turn triggered runs that nobody has claimed into skipped ones: the workspace was paused."""
    reason = SkipReason.PAUSED
    ended = await run_status.end_queued(conn, workspace_id, of_all=True, status=Status.SKIPPED, skip_reason=reason)
    await ending.end(conn, ended)


async def skip_waiting(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, reason: SkipReason
) -> None:
    """Turn triggered runs that nobody has claimed into skipped ones: the automation was paused or deleted."""
    ended = await run_status.end_queued(
        conn, workspace_id, automation_id=automation_id, status=Status.SKIPPED, skip_reason=reason
    )
    await ending.end(conn, ended)
