"""Takes back what lost workers held, ends what waited too long, and frees lanes that nobody freed."""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg

from rota.db import health, queues
from rota.db.listener import ANSWERS, CANCELS, RUNS, Wakes, session_channel
from rota.db.pool import Database
from rota.metrics import RESCUED
from rota.runs import parking, sweeping

log = logging.getLogger(__name__)

BATCH = 200


class Rescue:
    """A pass leaves nothing stuck. It is the net: whoever ends a run in order has done all this already."""

    name = "rescue"

    def __init__(
        self, db: Database, wakes: Wakes, *, every: timedelta = timedelta(seconds=15), batch: int = BATCH
    ) -> None:
        self._db = db
        self._wakes = wakes
        self._every = every
        self._batch = batch

    async def once(self) -> float:
        failures: list[psycopg.Error] = []
        steps = (self._end_unread, self._take_back, self._end_stuck, self._free_lanes, self._expire)
        _, rescued, stuck, freed, expired = [await _done(step, failures) for step in steps]
        if rescued or stuck or freed:
            RESCUED.inc(rescued)
            log.warning("runs.rescued", extra={"rescued": rescued, "stuck": stuck, "lanes_freed": freed})
            self._wakes.send(RUNS)
        if failures:
            raise failures[0]
        return 0.0 if max(rescued, stuck, freed, expired) >= self._batch else self._every.total_seconds()

    async def _end_unread(self) -> int:
        async with self._db.connection() as conn:
            ended = await health.end_unread(conn, silence=self._db.answer)
        if ended:
            log.warning("connections.ended", extra={"connections": ended})
        return ended

    async def _take_back(self) -> int:
        async with self._db.transaction() as conn:
            return await sweeping.rescue(conn, self._batch)

    async def _end_stuck(self) -> int:
        async with self._db.connection() as conn:
            await queues.mark_full(conn)
        async with self._db.transaction() as conn:
            return await sweeping.end_stuck(conn, self._batch)

    async def _free_lanes(self) -> int:
        async with self._db.transaction() as conn:
            return await sweeping.free_lanes(conn, self._batch)

    async def _expire(self) -> int:
        async with self._db.transaction() as conn:
            ended, closed = await parking.expire(conn, self._batch)
        for run in ended:
            log.info("run.expired", extra={"run_id": run.id, "trace_id": run.trace_id})
        if ended:
            self._wakes.send(CANCELS, [run.id for run in ended])  # a process that still waits is stopped
            self._wakes.send(RUNS)
        self._wakes.send(ANSWERS, [approval.id for _, approval in closed])
        for session_id in {approval.session_id for _, approval in closed}:
            self._wakes.send(session_channel(session_id))
        return max(len(ended), len(closed))


async def _done(step: Callable[[], Awaitable[int]], failures: list[psycopg.Error]) -> int:
    """What one step cannot do must not keep the others from theirs."""
    try:
        return await step()
    except psycopg.Error as failure:
        failures.append(failure)
        return 0
