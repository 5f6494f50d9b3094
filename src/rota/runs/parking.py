"""Running → awaiting approval, with or without its process, and back."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from rota.db import abandonments, approvals, events, run_status
from rota.db.events import NewEvent
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.model.approval import ApprovalStatus
from rota.model.ids import ApprovalId, RunId, WorkspaceId
from rota.model.outcome import ErrorClass
from rota.notify import telling
from rota.runs import ending


class ParkedRun(NamedTuple):
    """A run that was just parked: the question it waits for, and how long its try has run by now."""

    run: Ended
    approval_id: ApprovalId
    ran: timedelta


async def wait(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> None:
    """The agent waits for an answer in its process, and keeps place and lease."""
    await run_status.wait(conn, workspace_id, run_id, attempt)


async def answered(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> None:
    """Once nothing is left to answer: a parked run goes to the head of the queue, a process that waits goes on. A run
    whose worker was lost meanwhile is left to the rescue."""
    resumed = await run_status.resume(conn, workspace_id, run_id)
    if not resumed:
        await run_status.go_on(conn, workspace_id, run_id)
    await ending.end(conn, resumed)


async def follow_up(conn: Connection, parked: Sequence[ParkedRun]) -> None:
    """What happened to these runs while they were on the way to being parked. Their rows are locked: who answers or
    cancels from now on finds them parked."""
    await approvals.set_ran(conn, [(each.run.workspace_id, each.approval_id, each.ran) for each in parked])
    for run, approval_id, _ in parked:
        found = await approvals.find(conn, run.workspace_id, approval_id)
        if cancelled := await run_status.end_parked(conn, run.workspace_id, [run.id]):
            await ending.end(conn, cancelled)
        elif found is None or found.status in {ApprovalStatus.EXPIRED, ApprovalStatus.CANCELLED}:
            await _fail(conn, run, found)
        elif found.status != ApprovalStatus.PENDING:
            await answered(conn, run.workspace_id, run.id)


async def _fail(conn: Connection, run: Ended, found: approvals.Approval | None) -> None:
    expired = found is not None and found.status == ApprovalStatus.EXPIRED
    ended = await run_status.fail_parked(
        conn,
        run.workspace_id,
        run.id,
        error_class=ErrorClass.APPROVAL_EXPIRED if expired else ErrorClass.EXECUTOR_ERROR,
        error_detail="Nobody answered in time." if expired else "It waits for an approval that nobody can give.",
    )
    await ending.end(conn, ended)


class Expiry(NamedTuple):
    """What a sweep found: runs that ended for want of an answer, and how many questions nobody can answer any more."""

    ended: list[Ended]
    closed: list[tuple[WorkspaceId, approvals.Approval]]


async def expire(conn: Connection, limit: int) -> Expiry:
    """Fail runs whose question nobody answered in time, and close the questions of runs that have ended otherwise."""
    ended = await run_status.end_expired(conn, limit)
    await abandonments.add(conn, [(each.workspace_id, each.id, each.attempt) for each in ended])
    await ending.end(conn, ended)
    closed = await approvals.expire(conn, limit) + await approvals.withdraw(conn, limit)
    await _settle(conn, closed)
    await events.append(conn, [_closed(workspace_id, approval) for workspace_id, approval in closed])
    return Expiry(ended, closed)


async def _settle(conn: Connection, closed: Sequence[tuple[WorkspaceId, approvals.Approval]]) -> None:
    for workspace_id in sorted({workspace_id for workspace_id, _ in closed}):
        await telling.settled(conn, workspace_id, [each.id for theirs, each in closed if theirs == workspace_id])


def _closed(workspace_id: WorkspaceId, approval: approvals.Approval) -> NewEvent:
    told = {"approval_id": approval.id, "status": approval.status}
    return NewEvent(workspace_id, approval.session_id, "approval", told, approval.run_id, approval.attempt)
