"""Settles outcomes in groups: while one group is being written, the next one gathers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import count

from rota import tracing
from rota.db.listener import MOST_SESSIONS, Wakes
from rota.db.pool import MOST_OVERTAKEN, OVERTAKEN, PASSING, Connection, Database, Reserved
from rota.metrics import SETTLED
from rota.model.outcome import ErrorClass, Failed
from rota.model.run import TERMINAL, Status
from rota.runs import settling
from rota.runs.settling import Result

log = logging.getLogger(__name__)

LARGEST_GROUP = MOST_SESSIONS  # so that one notification tells of it
ENOUGH = 100
GATHER_SECONDS = 0.005
RETRY = timedelta(seconds=0.5)
UNWRITABLE = "Its outcome could not be written:"

Told = Callable[[Sequence[Result], Sequence[Result]], None]
Settle = Callable[[Connection, Sequence[Result]], Awaitable[Sequence[Result]]]


class Settler:
    """`told` hears of every group once it is committed: what was handed in, and what of it was accepted."""

    def __init__(self, db: Database, wakes: Wakes, told: Told, *, retry: timedelta = RETRY) -> None:
        self._line = Reserved(db)
        self._retry = retry.total_seconds()
        self._wakes = wakes
        self._told = told
        self._waiting: list[Result] = []
        self._task: asyncio.Task[None] | None = None

    def hand_in(self, result: Result) -> None:
        """Returns at once: the outcome is written soon, however often it takes."""
        self._waiting.append(result)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def finish(self) -> None:
        """Wait until all that was handed in is written."""
        while self._task and not self._task.done():
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Whatever is not written yet."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._line.close()

    async def _work(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
            plain, others = settling.parted(group)
            if plain:
                self._told(plain, await self._write(plain, settling.succeed))
            if others:
                self._told(others, await self._write(others))
            if 0 < len(self._waiting) < ENOUGH:
                await asyncio.sleep(GATHER_SECONDS)  # many short runs: one commit for all that end within a few ms

    async def _write(self, results: Sequence[Result], settle: Settle = settling.settle) -> Sequence[Result]:
        """Try until it is written. Repeating is harmless: what was settled before is refused by the fence."""
        for tried in count(1):
            began = tracing.now()
            try:
                async with self._line.connection() as conn:
                    accepted = await settle(conn, results)
            except Exception as failure:  # an executor's outcome: anything may be wrong with it
                if not _may_pass(failure, tried):
                    return await self._write_each(results, failure)
                log.warning("settle.retried", extra={"error": _told(failure)})
                await asyncio.sleep(self._retry)
            else:
                self._line.wrote(len(results))
                self._tell(accepted, began)
                return accepted
        raise AssertionError("it is tried until it is written")

    async def _write_each(self, results: Sequence[Result], failure: Exception) -> Sequence[Result]:
        """One outcome that cannot be written must not hold up the others: its run fails for it."""
        if len(results) > 1:
            return [each for result in results for each in await self._write([result])]
        [result] = results
        told = _told(failure)
        log.warning("settle.refused", extra={"run_id": result.run.id, "error": told})
        unwritable = Failed(ErrorClass.EXECUTOR_ERROR, f"{UNWRITABLE} {told}", retryable=False)
        if isinstance(result.outcome, Failed) and result.outcome.detail.startswith(UNWRITABLE):
            return []  # not even that: then rescue ends it
        return await self._write([result._replace(outcome=unwritable)])

    def _tell(self, settled: Sequence[Result], began: int) -> None:
        outcomes = [type(each.outcome).__name__.lower() if each.outcome else "handed_back" for each in settled]
        for outcome, times in Counter(outcomes).items():
            SETTLED.labels(outcome=outcome).inc(times)
        if log.isEnabledFor(logging.INFO):
            for each, outcome in zip(settled, outcomes, strict=True):
                facts = {"run_id": each.run.id, "outcome": outcome, "trace_id": each.run.trace_id}
                log.info("run.settled", extra=facts)
        self._wakes.tell_sessions(each.run.session_id for each in settled)
        if tracing.on():
            for each in settled:
                _trace(each, began)


def _may_pass(failure: Exception, tried: int) -> bool:
    """The database is away; or another was first, and whom this end concerns is to be looked up again."""
    return isinstance(failure, PASSING) or (isinstance(failure, OVERTAKEN) and tried < MOST_OVERTAKEN)


def _told(failure: Exception) -> str:
    """Without what PostgreSQL adds for those who know our statements."""
    return f"{type(failure).__name__}: {str(failure).strip().partition(chr(10))[0]}"


def _trace(result: Result, began: int) -> None:
    """The run began when it was started, which its id tells. `ready_at` is when its last attempt could begin."""
    run, settled = result.run, settling.settlement_of(result)
    tracing.span("settle", run.trace_id, began=began, run_id=run.id, attempt=run.attempt, status=settled.status)
    if settled.status in TERMINAL:
        error = settled.error_detail if settled.status == Status.FAILED else None
        facts = {"run_id": run.id, "source": run.source, "status": settled.status}
        tracing.run(run.trace_id, began=tracing.of_id(run.id), error=error, **facts)
