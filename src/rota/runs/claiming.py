"""Queued → running: a worker takes runs and becomes the only one who may write for that attempt."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg

from rota.db import aftermath, run_status
from rota.db.pool import Connection
from rota.db.run_status import Unreadable
from rota.model.ids import WorkerId
from rota.model.outcome import ErrorClass
from rota.model.run import Claimed, Settlement, Source, Status
from rota.runs import ending, tasking

log = logging.getLogger(__name__)

PASSES = 20


async def claim(
    conn: Connection,
    worker_id: WorkerId,
    *,
    queues: Sequence[dict[str, Any]],
    places: int,
    lease: timedelta,
    token_hashes: Sequence[bytes] = (),
    sandbox: str | None = None,
) -> list[Claimed]:
    """Claim up to `places` runs. A run whose grant no longer holds is skipped with the reason instead, or fails if it
    had begun before; and one whose row cannot be read fails, so that the others go on."""
    for _ in range(PASSES):
        claimed, unreadable = await run_status.claim(
            conn, worker_id, queues=queues, places=places, lease=lease, token_hashes=token_hashes, sandbox=sandbox
        )
        refused = [run for run in claimed if run.refused]
        if unreadable or refused:
            await _end(conn, refused, unreadable)
        if len(refused) < len(claimed) or not (refused or unreadable):
            break  # otherwise nothing came of it, and who waits behind them must not wait for the next look
    begun = [run for run in claimed if not run.refused] if refused else claimed
    if of_tasks := [run for run in begun if run.source == Source.TASK]:
        await _report_tasks(conn, of_tasks)
    return begun


async def _report_tasks(conn: Connection, claimed: Sequence[Claimed]) -> None:
    """Before their attempts begin. A worker that is killed in between has begun none of them."""
    try:
        await tasking.report_running(conn, claimed)
    except psycopg.Error as failure:
        log.warning("task.unreported", extra={"runs": len(claimed), "error": str(failure).strip()})


async def _end(conn: Connection, refused: Sequence[Claimed], unreadable: Sequence[Unreadable]) -> None:
    """Those that were claimed with them begin in any case: what cannot be ended now comes again when its lease ends."""
    rows = [*map(_refusal, refused), *(run_status.settlement_row(run, _unreadable(run)) for run in unreadable)]
    failing = [(run.workspace_id, run.automation_id) for run in refused if run.attempt > 1 and run.automation_id]
    try:
        async with conn.transaction():
            if failing:
                await aftermath.hold(conn, failing)
            await ending.end(conn, await run_status.settle(conn, rows))
    except psycopg.Error as failure:
        log.warning("claim.unended", extra={"runs": len(rows), "error": str(failure).strip()})


def _refusal(run: Claimed) -> dict[str, Any]:
    """A run that had begun before, such as one that was parked, fails; one that never began is skipped."""
    if run.attempt == 1:
        return run_status.settlement_row(run, Settlement(Status.SKIPPED, run.tries)) | {"skip_reason": run.refused}
    detail = f"Its grant no longer holds ({run.refused}), so it could not go on."
    failed = Settlement(Status.FAILED, run.tries, error_class=ErrorClass.GRANT_INVALID, error_detail=detail)
    return run_status.settlement_row(run, failed)


def _unreadable(run: Unreadable) -> Settlement:
    detail = f"What is stored of this run cannot be read: {run.reason}"
    return Settlement(Status.FAILED, 0, error_class=ErrorClass.EXECUTOR_ERROR, error_detail=detail)
