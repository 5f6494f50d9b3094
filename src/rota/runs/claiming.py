"""Queued → running: a worker takes runs and becomes the only one who may write for that attempt."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rota.db import run_status
from rota.db.pool import Connection
from rota.db.run_status import Unreadable
from rota.model.ids import WorkerId
from rota.model.outcome import ErrorClass
from rota.model.run import Claimed, Settlement, Status
from rota.runs import ending

PASSES = 20


async def claim(
    conn: Connection,
    worker_id: WorkerId,
    *,
    queues: Sequence[dict[str, Any]],
    places: int,
    lease: timedelta,
    token_hashes: Sequence[bytes] = (),
) -> list[Claimed]:
    """Claim up to `places` runs. A run whose grant no longer holds is skipped with the reason instead, or fails if it
    had begun before; and one whose row cannot be read fails, so that the others go on."""
    for _ in range(PASSES):
        claimed, unreadable = await run_status.claim(
            conn, worker_id, queues=queues, places=places, lease=lease, token_hashes=token_hashes
        )
        if unreadable:
            await _fail(conn, unreadable)
        refused = [run for run in claimed if run.refused]
        if refused:
            await _refuse(conn, refused)
        if len(refused) < len(claimed) or not (refused or unreadable):
            break  # otherwise nothing came of it, and who waits behind them must not wait for the next look
    return [run for run in claimed if not run.refused] if refused else claimed


async def _refuse(conn: Connection, refused: Sequence[Claimed]) -> None:
    async with conn.transaction():
        await ending.end(conn, await run_status.settle(conn, [_refusal(run) for run in refused]))


def _refusal(run: Claimed) -> dict[str, Any]:
    """A run that had begun before, such as one that was parked, fails; one that never began is skipped."""
    if run.attempt == 1:
        return run_status.settlement_row(run, Settlement(Status.SKIPPED, run.tries)) | {"skip_reason": run.refused}
    detail = f"Its grant no longer holds ({run.refused}), so it could not go on."
    failed = Settlement(Status.FAILED, run.tries, error_class=ErrorClass.GRANT_INVALID, error_detail=detail)
    return run_status.settlement_row(run, failed)


async def _fail(conn: Connection, unreadable: Sequence[Unreadable]) -> None:
    rows = [run_status.settlement_row(run, _unreadable(run)) for run in unreadable]
    async with conn.transaction():
        await ending.end(conn, await run_status.settle(conn, rows))


def _unreadable(run: Unreadable) -> Settlement:
    detail = f"What is stored of this run cannot be read: {run.reason}"
    return Settlement(Status.FAILED, 0, error_class=ErrorClass.EXECUTOR_ERROR, error_detail=detail)
