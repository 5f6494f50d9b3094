"""Settles outcomes in groups: one commit for all attempts that ended within a few milliseconds."""

import asyncio
import logging
from collections.abc import Sequence
from uuid import UUID

from rota.db.listener import RUNS, Wakes, session_channel
from rota.db.pool import PASSING, Database
from rota.errors import Lost
from rota.failpoints import reach
from rota.metrics import SETTLED
from rota.runs import settling
from rota.runs.settling import Result

log = logging.getLogger(__name__)

WINDOW_SECONDS = 0.002
LARGEST_GROUP = 500
RETRY_SECONDS = 0.5


class Settler:
    def __init__(self, db: Database, wakes: Wakes) -> None:
        self._db = db
        self._wakes = wakes
        self._waiting: list[tuple[Result, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def settle(self, result: Result) -> None:
        """Returns once the outcome is committed; raises `Lost` if the lease had gone to somebody else."""
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, accepted))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        if not await accepted:
            raise Lost("The lease went to somebody else before the outcome was written.")

    async def close(self) -> None:
        if self._task:
            await self._task

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(WINDOW_SECONDS)
            group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
            accepted = await self._write([result for result, _ in group])
            for result, future in group:
                if not future.done():
                    future.set_result((result.run.id, result.run.attempt) in accepted)

    async def _write(self, results: Sequence[Result]) -> set[tuple[UUID, int]]:
        """Try until it is written. Repeating is harmless: what was settled before is refused by the fence."""
        while True:
            try:
                async with self._db.transaction() as conn:
                    accepted, ready = await settling.settle(conn, results)
                    reach("worker.written")
            except PASSING as failure:
                log.warning("settle.retried", extra={"error": str(failure).strip()})
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._tell(results, accepted)
            self._wakes.send(RUNS, ready)
            return accepted

    def _tell(self, results: Sequence[Result], accepted: set[tuple[UUID, int]]) -> None:
        for result in results:
            run = result.run
            if (run.id, run.attempt) in accepted:
                outcome = type(result.outcome).__name__.lower() if result.outcome else "handed_back"
                SETTLED.labels(outcome=outcome).inc()
                log.info("run.settled", extra={"run_id": run.id, "outcome": outcome, "trace_id": run.trace_id})
                self._wakes.send(session_channel(run.session_id))
