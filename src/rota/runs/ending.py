"""One ending for every way a run ends: its last event, its session, its lane's next run, and what follows from it."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from rota.db import aftermath, events, run_status, triggers
from rota.db.events import NewEvent
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.model.ids import AutomationId, WorkspaceId
from rota.model.run import TERMINAL, SkipReason, Source, Start, Status

UNCOUNTED = frozenset({"chat", "task"})


async def end(conn: Connection, changed: Sequence[Ended], reasons: Mapping[UUID, str] | None = None) -> None:
    """Apply everything that follows when runs end or go back to the queue, for the whole batch."""
    await events.append(conn, [_told(each, (reasons or {}).get(each.id)) for each in changed if each.session_id])
    ended = [each for each in changed if each.status in TERMINAL]
    lanes = {(each.workspace_id, lane) for each in ended if (lane := each.lane or each.automation_id)}
    if lanes:
        await run_status.promote(conn, lanes)
    automated = [each for each in ended if each.automation_id and each.source not in UNCOUNTED]
    if automated:
        await _follow_up(conn, automated)


async def _follow_up(conn: Connection, ended: Sequence[Ended]) -> None:
    """Most endings concern nobody else; one look at the batch finds those that do."""
    concerned = await aftermath.concerned(
        conn, [(each.workspace_id, each.automation_id) for each in ended if each.automation_id]
    )
    failed = any(each.status == Status.FAILED for each in ended)
    if failed or any(each.failures for each in concerned):
        for workspace_id, automation_id in await aftermath.count_failures(conn, _outcomes(ended)):
            await _pause(conn, workspace_id, automation_id)
    if any(each.awaited for each in concerned):
        await _fire_after(conn, [_for_those_after(each) for each in ended])
    if any(each.deleted for each in concerned):
        await aftermath.revoke_of_deleted(conn, [(each.workspace_id, each.id) for each in concerned if each.deleted])


def _outcomes(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    counted = [each for each in ended if each.status in {Status.SUCCEEDED, Status.FAILED}]
    return [
        {"workspace_id": each.workspace_id, "id": each.automation_id, "failed": each.status == Status.FAILED}
        for each in counted
    ]


async def _pause(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> None:
    """It failed as often in a row as it may: rest its triggers and skip what waits."""
    await triggers.rest(conn, workspace_id, automation_id)
    waiting = await run_status.end_queued(
        conn, workspace_id, automation_id=automation_id, status=Status.SKIPPED, skip_reason=SkipReason.PAUSED
    )
    await events.append(conn, [_told(each, None) for each in waiting if each.session_id])


def _for_those_after(run: Ended) -> dict[str, Any]:
    return {
        "workspace_id": run.workspace_id,
        "automation_id": run.automation_id,
        "run_id": run.id,
        "status": run.status,
        "summary": run.summary,
    }


async def tell_of_skips(conn: Connection, skipped: Sequence[Start]) -> None:
    """A run that was skipped as it started has ended too: fire what waits for it."""
    automations = [(each.workspace_id, each.automation_id) for each in skipped if each.automation_id]
    if any(each.awaited for each in await aftermath.concerned(conn, automations)):
        ended = {"status": Status.SKIPPED, "summary": None}
        given = [
            {"workspace_id": each.workspace_id, "automation_id": each.automation_id, "run_id": each.id, **ended}
            for each in skipped
        ]
        await _fire_after(conn, given)


async def _fire_after(conn: Connection, ended: list[dict[str, Any]]) -> None:
    from rota.runs import triggering  # noqa: PLC0415 — starting a run may end others, and an ended run start one

    occurrences = [
        triggering.Occurrence(workspace_id, trigger_id, Source.AFTER, told["run_id"], told)
        for workspace_id, trigger_id, told in await triggers.after(conn, ended)
    ]
    if occurrences:
        await triggering.fire(conn, occurrences)


async def revoke_idle(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> None:
    """Revoke the grant of a deleted automation, unless a run of it is still live: then its end does it."""
    await aftermath.revoke_of_deleted(conn, [(workspace_id, automation_id)])


def _told(run: Ended, reason: str | None) -> NewEvent:
    assert run.session_id
    data: dict[str, Any] = {
        "status": run.status,
        "error_class": run.error_class,
        "error_detail": run.error_detail,
        "summary": run.summary,
        "skip_reason": run.skip_reason,
        "reason": reason if run.status not in TERMINAL or run.error_class == "stalled" else None,
    }
    told = {name: value for name, value in data.items() if value is not None}
    return NewEvent(run.workspace_id, run.session_id, "run", told, run.id, run.attempt or None, _session_status(run))


def _session_status(run: Ended) -> str | None:
    """A session made for one run ends with it; one that goes on stays as it is."""
    if run.status not in TERMINAL or run.lane == run.session_id:
        return None
    return "done" if run.status == Status.SUCCEEDED else "failed"
