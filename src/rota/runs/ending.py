"""One ending for every way a run ends: its last event, its session's state, its lane's next run."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from rota.db import events, grants, run_status
from rota.db.events import NewEvent
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.model.run import TERMINAL, Status


async def end(conn: Connection, changed: Sequence[Ended], reasons: Mapping[UUID, str] | None = None) -> None:
    """Apply everything that follows when runs end or go back to the queue, for the whole batch."""
    await events.append(conn, [_told(each, (reasons or {}).get(each.id)) for each in changed if each.session_id])
    lanes = {(each.workspace_id, lane) for each in changed if each.status in TERMINAL and (lane := _lane(each))}
    if lanes:
        await run_status.promote(conn, lanes)
    await revoke_idle(conn, [(each.workspace_id, each.automation_id) for each in changed if each.automation_id])


async def revoke_idle(conn: Connection, automations: Sequence[tuple[UUID, UUID]]) -> None:
    """Revoke the grants of deleted automations that have no live run left."""
    if automations:
        await grants.revoke_of_deleted(conn, automations)


def _lane(run: Ended) -> UUID | None:
    return run.lane or run.automation_id


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
