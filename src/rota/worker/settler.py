"""Settles outcomes in groups: while one group is being written, the next one gathers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from rota import tracing
from rota.db.listener import MOST_SESSIONS, Wakes
from rota.db.pool import PASSING, Connection, Database, Reserved
from rota.metrics import SETTLED
from rota.model.outcome import ErrorClass, Failed
from rota.model.run import TERMINAL, Status
from rota.runs import settling
from rota.runs.settling import Result

log = logging.getLogger(__name__)

LARGEST_GROUP = MOST_SESSIONS  # so that one notification tells of it
ENOUGH = 100
GATHER_SECONDS = 0.005
RETRY_SECONDS = 0.5
UNWRITABLE = "Its outcome could not be written:"

Told = Callable[[Sequence[Result], Sequence[Result]], None]
Settle = Callable[[Connection, Sequence[Result]], Awaitable[Sequence[Result]]]


class Settler:
    """`told` hears of every group once it is committed: what was handed in, and what of it was accepted."""

    def __init__(self, db: Database, wakes: Wakes, told: Told) -> None:
        self._line = Reserved(db)
        self._wakes = wakes
        self._told = told
        self._waiting: list[Result] = []
        self._task: asyncio.Task[None] | None = None

    def hand_in(self, result: Result) -> None:
        """Returns at once: the outcome is written soon, however often it takes."""
        self._waiting.append(result)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Wait until all that was handed in is written."""
        while self._task and not self._task.done():
            await self._task
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
        while True:
            began = tracing.now()
            try:
                async with self._line.connection() as conn:
                    accepted = await settle(conn, results)
            except PASSING as failure:
                log.warning("settle.retried", extra={"error": str(failure).strip()})
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception as failure:  # an executor's outcome: anything may be wrong with it
                return await self._write_each(results, failure)
            self._line.wrote(len(results))
            self._tell(accepted, began)
            return accepted

    async def _write_each(self, results: Sequence[Result], failure: Exception) -> Sequence[Result]:
        """One outcome that cannot be written must not hold up the others: its run fails for it."""
        if len(results) > 1:
            return [each for result in results for each in await self._write([result])]
        [result] = results
        told = f"{type(failure).__name__}: {failure}"
        log.warning("settle.refused", extra={"run_id": result.run.id, "error": told})
        unwritable = Failed(ErrorClass.EXECUTOR_ERROR, f"{UNWRITABLE} {told}", retryable=False)
        if isinstance(result.outcome, Failed) and result.outcome.detail.startswith(UNWRITABLE):
            return []  # not even that: then rescue ends it
        return await self._write([result._replace(outcome=unwritable)])

    def _tell(self, settled: Sequence[Result], began: int) -> None:
        outcomes = [type(each.outcome).__name__.lower() if each.outcome else "handed_back" for each in settled]
        for outcome, count in Counter(outcomes).items():
            SETTLED.labels(outcome=outcome).inc(count)
        if log.isEnabledFor(logging.INFO):
            for each, outcome in zip(settled, outcomes, strict=True):
                facts = {"run_id": each.run.id, "outcome": outcome, "trace_id": each.run.trace_id}
                log.info("run.settled", extra=facts)
        self._wakes.tell_sessions(each.run.session_id for each in settled)
        if tracing.on():
            for each in settled:
                _trace(each, began)


def _trace(result: Result, began: int) -> None:
    run, settled = result.run, settling.settlement_of(result)
    tracing.span("settle", run.trace_id, began=began, run_id=run.id, attempt=run.attempt, status=settled.status)
    if settled.status in TERMINAL:
        error = settled.error_detail if settled.status == Status.FAILED else None
        tracing.run(run.trace_id, began=tracing.instant(run.ready_at), error=error, run_id=run.id, source=run.source)
