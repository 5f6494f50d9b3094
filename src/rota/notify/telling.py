"""Tells people, in the transaction of what they are told of. Each function is one statement, and none is called when
nothing happened."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from rota.db import notifications
from rota.db.pool import Connection
from rota.model.ids import ApprovalId, AutomationId, RunId, SessionId, WorkspaceId, new_id
from rota.model.reasons import FAILED

AHEAD = timedelta(days=7)


class Failure(NamedTuple):
    """A run that failed."""

    workspace_id: WorkspaceId
    run_id: RunId
    automation_id: AutomationId | None
    session_id: SessionId | None
    error_class: str | None


async def of_failed(conn: Connection, failed: Sequence[Failure]) -> None:
    """The owner of each run's automation or session. Why, in our words: an agent's own may say too much outside."""
    await notifications.tell_of_failed(conn, [_failure(each) for each in failed])


def _failure(run: Failure) -> dict[str, Any]:
    return {**run._asdict(), "id": new_id(), "detail": FAILED.get(run.error_class or "", "It failed")}


async def of_paused(conn: Connection, paused: Iterable[tuple[WorkspaceId, AutomationId]]) -> None:
    """The owners of automations that were paused for their failures."""
    await notifications.tell_of_paused(conn, [(workspace_id, new_id(), each) for workspace_id, each in paused])


async def of_approval(conn: Connection, workspace_id: WorkspaceId, approval_id: ApprovalId) -> None:
    """Who owns what asks and may answer; the admins where nobody of them may."""
    await notifications.tell_of_approval(conn, workspace_id, approval_id, new_id())


async def of_low_budgets(conn: Connection, low: Iterable[tuple[WorkspaceId, UUID, str]]) -> None:
    """The admins, and the owner if the holder is an automation and no account. `low`: the holder, and how it stands."""
    given = [
        {"workspace_id": workspace_id, "id": new_id(), "holder_id": holder_id, "detail": detail}
        for workspace_id, holder_id, detail in low
    ]
    await notifications.tell_of_budgets(conn, given)


async def of_expiring(conn: Connection, limit: int) -> int:
    """Whose grants end within a week, each once; how many grants it were."""
    expiring = await notifications.expiring(conn, ahead=AHEAD, limit=limit)
    if expiring:
        await notifications.tell_of_expiring(conn, [(workspace_id, new_id(), each) for workspace_id, each in expiring])
    return len(expiring)


async def settled(conn: Connection, workspace_id: WorkspaceId, approval_ids: Sequence[ApprovalId]) -> None:
    """These questions are answered, or nobody can answer them any more."""
    await notifications.settle(conn, workspace_id, approval_ids)
