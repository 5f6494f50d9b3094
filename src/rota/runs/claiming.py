"""Queued → running: a worker takes runs and becomes the only one who may write for that attempt."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rota.db import run_status
from rota.db.pool import Connection
from rota.model.ids import WorkerId
from rota.model.run import Claimed, Settlement, Status
from rota.runs import ending


async def claim(
    conn: Connection,
    worker_id: WorkerId,
    *,
    queues: Sequence[dict[str, Any]],
    places: int,
    lease: timedelta,
    token_hashes: Sequence[bytes] = (),
) -> list[Claimed]:
    """Claim up to `places` runs. A run whose grant no longer holds is skipped with the reason instead."""
    claimed = await run_status.claim(
        conn, worker_id, queues=queues, places=places, lease=lease, token_hashes=token_hashes
    )
    refused = [run for run in claimed if run.refused]
    if refused:
        await _refuse(conn, refused)
    return [run for run in claimed if not run.refused] if refused else claimed


async def _refuse(conn: Connection, refused: Sequence[Claimed]) -> None:
    skips = [
        run_status.settlement_row(run, Settlement(Status.SKIPPED, run.tries)) | {"skip_reason": run.refused}
        for run in refused
    ]
    async with conn.transaction():
        await ending.end(conn, await run_status.settle(conn, skips))
