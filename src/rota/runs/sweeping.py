"""What nobody ended in order: lost leases, runs that waited too long for a place, lanes that nobody freed."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from rota.db import abandonments, run_status
from rota.db.pool import OVERTAKEN, PASSING, Connection
from rota.model.ids import RunId
from rota.model.outcome import ErrorClass
from rota.model.run import Settlement, Status
from rota.runs import ending

log = logging.getLogger(__name__)


async def rescue(conn: Connection, limit: int) -> int:
    """Take back runs whose worker stopped renewing: queued again while rescues are left, else failed."""
    lost = await run_status.lease_ended(conn, limit)
    if not lost:
        return 0
    try:
        return await _take_back(conn, lost)
    except (*PASSING, *OVERTAKEN):
        raise
    except psycopg.Error:
        return sum([await _take_back_one(conn, each) for each in lost])


async def _take_back(conn: Connection, lost: Sequence[run_status.LostLease]) -> int:
    async with conn.transaction():
        ended = await run_status.settle(conn, [_row(each) for each in lost])
        workers = {each.id: each.worker_id for each in lost}
        conn.afterwards(lambda: _log_rescued(ended, workers))
        await abandonments.add(conn, [(each.workspace_id, each.id, each.attempt) for each in ended])
        await ending.end(conn, ended)
    return len(ended)


async def _take_back_one(conn: Connection, lost: run_status.LostLease) -> int:
    """One that cannot be taken back for what follows from its end must not keep the others from it."""
    try:
        return await _take_back(conn, [lost])
    except (*PASSING, *OVERTAKEN):
        raise
    except psycopg.Error as failure:
        log.warning("rescue.refused", extra={"run_id": lost.id, "error": str(failure).strip()})
        return 0


def _row(lost: run_status.LostLease) -> dict[str, Any]:
    reason = f"stalled, since {lost.worker_id} stopped renewing its lease"
    return run_status.settlement_row(lost, _after_loss(lost), rescued=True, reason=reason)


def _after_loss(run: run_status.LostLease) -> Settlement:
    if run.cancel_requested:
        return Settlement(Status.CANCELLED, run.tries)
    if run.rescues < run.max_rescues:
        return Settlement(Status.QUEUED, run.tries)
    before = f", as {run.rescues} before; no rescue is left" if run.rescues else ", and it may not be rescued"
    detail = f"Its worker {run.worker_id} was lost{before}."
    return Settlement(Status.FAILED, run.tries, error_class=ErrorClass.STALLED, error_detail=detail)


async def end_stuck(conn: Connection, limit: int) -> int:
    """Fail runs that waited longer than they may while nothing but a free place was missing."""
    stuck = await run_status.end_stuck(conn, limit)
    if stuck:
        conn.afterwards(lambda: _log_stuck(stuck))
        await ending.end(conn, stuck)
    return len(stuck)


def _log_rescued(ended: Sequence[run_status.Ended], workers: Mapping[RunId, str]) -> None:
    for each in ended:
        log.warning("run.rescued", extra={**_describe(each), "worker_id": workers[each.id]})


def _log_stuck(ended: Sequence[run_status.Ended]) -> None:
    for each in ended:
        log.warning("run.stuck", extra=_describe(each))


def _describe(run: run_status.Ended) -> dict[str, object]:
    return {"run_id": run.id, "attempt": run.attempt, "status": run.status, "trace_id": run.trace_id}


async def free_lanes(conn: Connection, limit: int) -> int:
    """Make the next run ready in lanes where runs wait and nothing holds them up."""
    lanes = await run_status.free_lanes(conn, limit)
    return await run_status.promote(conn, lanes) if lanes else 0
