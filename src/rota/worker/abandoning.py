"""Cleans up what lost attempts left outside: before the run's next attempt, or once the run has ended."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta

from rota.db import abandonments
from rota.db.pool import Database
from rota.model.executor import Executor, LostAttempt
from rota.model.run import Claimed

log = logging.getLogger(__name__)

BATCH = 50
PATIENCE = timedelta(seconds=60)


class Abandon:
    """A pass cleans up after runs that have ended. What fails comes again, later each time, in any worker."""

    name = "abandon"

    def __init__(
        self, db: Database, executors: Mapping[str, Executor], *, pools: Sequence[str], every: timedelta
    ) -> None:
        self._db = db
        self._executors = executors
        self._pools = pools
        self._every = every.total_seconds()
        self._cleaning: asyncio.Task[None] | None = None

    async def once(self) -> float:
        async with self._db.connection() as conn:
            lost = await abandonments.take(
                conn, kinds=list(self._executors), pools=self._pools, patience=PATIENCE, limit=BATCH
            )
        self._cleaning = asyncio.create_task(self._clean_up(lost))
        await asyncio.wait({self._cleaning})
        if not self._cleaning.cancelled():
            self._cleaning.result()
        return 0.0 if len(lost) == BATCH else self._every

    def leave(self) -> None:
        """Wait for nobody who does not answer: what is not done comes again, in any worker."""
        if self._cleaning:
            self._cleaning.cancel()

    async def before(self, run: Claimed) -> None:
        """Clean up after the earlier attempts of a run that was just claimed; they cannot meet this one."""
        async with self._db.connection() as conn:
            lost = await abandonments.of_run(conn, run.workspace_id, run.id, before=run.attempt)
        await self._clean_up(lost)

    async def _clean_up(self, lost: Sequence[LostAttempt]) -> None:
        answers = await asyncio.gather(*[self._abandon(each) for each in lost])
        done = [each for each, answer in zip(lost, answers, strict=True) if answer]
        if done:
            async with self._db.connection() as conn:
                await abandonments.done(conn, done)

    async def _abandon(self, lost: LostAttempt) -> bool:
        try:
            async with asyncio.timeout(PATIENCE.total_seconds() / 2):
                await self._executors[lost.executor].abandon(lost)
        except Exception as failure:  # an executor may fail in any way; it is asked again
            facts = {"run_id": lost.run_id, "attempt": lost.attempt, "error": f"{type(failure).__name__}: {failure}"}
            log.warning("attempt.unabandoned", extra=facts)
            return False
        log.info("attempt.abandoned", extra={"run_id": lost.run_id, "attempt": lost.attempt})
        return True
