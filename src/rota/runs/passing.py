"""Slots that were due when somebody stopped or changed their trigger: they will not run, and the ledger says so."""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from rota.db import triggers
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.firing import pass_over
from rota.model.ids import AutomationId, WorkspaceId
from rota.model.run import SkipReason, Start
from rota.runs import starting


async def record(
    conn: Connection,
    workspace_id: WorkspaceId,
    automation_id: AutomationId,
    reason: SkipReason,
    *,
    only: Collection[UUID] | None = None,
    until: datetime | None = None,
) -> None:
    """Skip what is due of these triggers, or all of the automation's; the caller says when they are due next, and since
    when that counts, if not since the present."""
    passed: list[Start] = []
    for due, now in await triggers.lock_due_of(conn, workspace_id, automation_id, now=until):
        if only is None or due.trigger_id in only:
            with suppress(Invalid, ValueError):  # it cannot be read, so nobody knows its slots
                if over := pass_over(due, now, reason):
                    passed.append(over)
    if passed:
        await starting.start(conn, passed)
