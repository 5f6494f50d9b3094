"""Fires what is due: one transaction a batch, set-based, on any number of replicas."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence, Set
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

from psycopg import DataError

from rota import tracing
from rota.db import triggers
from rota.db.listener import RUNS, Wakes
from rota.db.pool import OVERTAKEN, Connection, Database
from rota.failpoints import reach
from rota.metrics import FIRED, LATENESS, SKIPPED
from rota.model.firing import Due, Firing, Flight, fire, spread, uncounted
from rota.model.ids import TriggerId, WorkspaceId
from rota.model.run import SkipReason, Start
from rota.roster import pausing
from rota.runs import cancelling, starting

log = logging.getLogger(__name__)

BATCH = 1000
FIRES_IN_A_LINE = 100  # of the log
STREAMS = 2
CONTENDED_SECONDS = 0.05


class Scheduler:
    """A pass fires every due trigger that no other replica holds, then says when the next one is due."""

    name = "scheduler"

    def __init__(
        self,
        db: Database,
        wakes: Wakes,
        *,
        tick: timedelta = timedelta(seconds=30),
        jitter_threshold: int = 3,
        max_jitter: timedelta = timedelta(seconds=30),
        batch: int = BATCH,
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """`batch` is how many triggers one transaction fires at most.

        `clock` gives the instant to judge by; None leaves it to the database.
        """
        self._db = db
        self._wakes = wakes
        self._tick = tick
        self._threshold = jitter_threshold
        self._span = max_jitter
        self._batch = batch
        self._clock = clock

    async def once(self) -> float:
        """Fire everything that is due, then say for how long nothing will be."""
        while True:
            async with self._db.connection() as conn:
                due_at, pause_ends_at, now = await triggers.next_due(conn, self._clock())
                soonest = min((at for at in (due_at, pause_ends_at) if at), default=now + self._tick)
                if soonest > now:
                    return min((soonest - now).total_seconds(), self._tick.total_seconds())
                ended = bool(pause_ends_at and pause_ends_at <= now and await self._end_pause(conn))
                fired = await self.fire_batch(conn)
            if fired == self._batch:
                await self._fire_in_streams()
            elif not (fired or ended):
                return CONTENDED_SECONDS

    async def _end_pause(self, conn: Connection) -> bool:
        """Resume a workspace whose pause has reached its end, unless another does so or somebody changes the pause."""
        try:
            async with conn.transaction():
                workspace_id = await pausing.end_next(conn, self._clock())
                reach("scheduler.resumed")
        except OVERTAKEN:
            return False
        if workspace_id:
            log.info("workspace.resumed", extra={"workspace_id": workspace_id})
        return workspace_id is not None

    async def _fire_in_streams(self) -> None:
        """While PostgreSQL writes one batch, Python decides the next: twice the work in the same time. When one stream
        fails the other ends too: the next pass begins where nobody fires."""
        try:
            async with asyncio.TaskGroup() as streams:
                for _ in range(STREAMS):
                    streams.create_task(self._fire_all())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # told as what it is

    async def _fire_all(self) -> None:
        async with self._db.connection() as conn:
            while await self.fire_batch(conn) == self._batch:
                pass

    async def fire_batch(self, conn: Connection) -> int:
        """Fire the next triggers that are due, in one transaction, and return how many there were."""
        try:
            return await self._fire_once(conn)
        except OVERTAKEN:  # another took the lane between our look and our write, or the two waited for each other
            return 0  # look again
        except DataError:
            if parked := await self._park_unreadable(conn):
                return parked
            raise  # it is no trigger's row that is wrong: who looks again at once would do so for good, and unseen

    async def _park_unreadable(self, conn: Connection) -> int:
        """One row of the batch cannot even be read: find it, so that the others can fire."""
        unreadable = await triggers.unreadable(conn, self._clock(), self._batch)
        for workspace_id, trigger_id, error in unreadable:
            await triggers.park(conn, WorkspaceId(workspace_id), TriggerId(trigger_id), error)
            log.warning("trigger.parked", extra={"trigger_id": trigger_id, "error": error})
        return len(unreadable)

    async def _fire_once(self, conn: Connection) -> int:
        async with conn.transaction():
            found = await triggers.lock_due(conn, self._clock(), self._batch)
            reach("scheduler.locked")
            if not found:
                return 0
            now = found[0][1]
            firings = await self._decide(conn, [due for due, _ in found], now)
            starts, started = await self._write(conn, found, firings, now)
            reach("scheduler.written")
        reach("scheduler.committed")
        self._tell(len(firings), starts, now, started)
        return len(found)

    async def _decide(self, conn: Connection, due: Sequence[Due], now: datetime) -> list[Firing]:
        flights: dict[object, Flight] = {}
        firings = []
        for each in due:
            automation = each.policy.automation_id
            flight = flights.get(automation, each.flight)
            if each.flight.waiting:  # which is looked for only where it matters
                flight = flight._replace(waiting=True)
            try:
                firing = fire(each, now, flight)
            except Exception as failure:  # a trigger that cannot be evaluated must not block the others
                await self._park(conn, each, failure)
                continue
            flights[automation] = firing.flight
            firings.append(firing)
        return firings

    async def _park(self, conn: Connection, due: Due, failure: Exception) -> None:
        error = str(failure) or type(failure).__name__
        await triggers.park(conn, due.policy.workspace_id, due.trigger_id, error)
        log.warning("trigger.parked", extra={"trigger_id": due.trigger_id, "error": error})

    async def _write(
        self, conn: Connection, found: Sequence[tuple[Due, datetime]], firings: Sequence[Firing], now: datetime
    ) -> tuple[list[Start], int]:
        """The runs as they were started, and how many were written."""
        starts = spread(firings, now, threshold=self._threshold, span=self._span)
        written = await starting.start(conn, starts)
        reach("scheduler.started")
        await triggers.advance(conn, _as_counted(found, firings, starts, written))
        if resting := [(firing.workspace_id, firing.trigger_id) for firing in firings if firing.rests]:
            await triggers.rest_while_paused(conn, resting)
        replacing = {firing.starts[0].id for firing in firings if firing.replaces}
        if replacing:
            # A slot that has its run already replaces nothing, nor does what its budget kept from starting.
            started = [start for start in starts if start.id in written and not start.skip_reason]
            await cancelling.replace_earlier(conn, started, replacing)
        return starts, len(written)

    def _tell(self, triggers: int, starts: Sequence[Start], now: datetime, started: int) -> None:
        for start in starts:
            if start.slot and not start.skip_reason:
                LATENESS.observe(max(0.0, (now - start.slot).total_seconds()))
        skips = sorted(str(start.skip_reason) for start in starts if start.skip_reason)
        for reason, group in groupby(skips):
            SKIPPED.labels(reason=reason).inc(len(list(group)))
        FIRED.inc(len(starts) - len(skips))
        if len(skips) < len(starts):
            self._wakes.send(RUNS, {start.workspace_id for start in starts if not start.skip_reason})
        _log_fires(starts, triggers=triggers, started=started)
        if tracing.on():
            _trace_fires(starts)


def _as_counted(
    found: Sequence[tuple[Due, datetime]], firings: Sequence[Firing], starts: Sequence[Start], written: Set[UUID]
) -> Sequence[Firing]:
    """A run that its budget kept from starting, or whose slot has its run, was decided as a fire and is none."""
    skipped = Counter(start.trigger_id for start in starts if start.skip_reason == SkipReason.BUDGET)
    if len(written) < len(starts):
        skipped.update(start.trigger_id for start in starts if start.id not in written and not start.skip_reason)
    if not skipped:
        return firings
    dues = {due.trigger_id: due for due, _ in found if due.trigger_id in skipped}
    return [
        uncounted(dues[firing.trigger_id], firing, skipped[firing.trigger_id])
        if firing.trigger_id in skipped
        else firing
        for firing in firings
    ]


def _log_fires(starts: Sequence[Start], *, triggers: int, started: int) -> None:
    """Log a batch with the ids of its triggers, automations and runs; a large one in several lines."""
    skipped = sum(start.skip_reason is not None for start in starts)
    facts = {"triggers": triggers, "runs": started, "skipped": skipped}
    for first in range(0, max(len(starts), 1), FIRES_IN_A_LINE):
        fires = [_describe_fire(start) for start in starts[first : first + FIRES_IN_A_LINE]]
        log.info("trigger.fired", extra={**facts, "fires": fires})


def _describe_fire(start: Start) -> dict[str, object]:
    fire: dict[str, object] = {
        "trigger_id": start.trigger_id, "automation_id": start.automation_id, "run_id": start.id,
        "trace_id": start.id.hex, "slot": start.slot,
    }  # fmt: skip
    return {**fire, "skipped": start.skip_reason} if start.skip_reason else fire


def _trace_fires(starts: Sequence[Start]) -> None:
    for start in starts:
        if start.slot and not start.skip_reason:
            tracing.span("fire", start.id.hex, began=tracing.instant(start.slot), run_id=start.id)
