"""A worker of this process with an agent that does nothing: everything else is as in production."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.stage import Stage
from rota.db.listener import RUNS, Listener
from rota.executors.command import CommandExecutor
from rota.executors.sandbox import Sandbox
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome, Succeeded
from rota.scheduler.tick import Scheduler
from rota.service import Loop, keep_for_good, look_for_cycles_rarely
from rota.trace.record import Recorder
from rota.worker.worker import Worker


class Noop:
    """An in-process agent that does nothing but count, as those of the peers, or also says a line. Who `watches` it hears
    when it began."""

    kind = "command"
    resumes = False

    def __init__(self, line: str = "") -> None:
        self.count = 0
        self._line = line
        self._watched: asyncio.Queue[tuple[object, float]] | None = None

    def watch(self) -> asyncio.Queue[tuple[object, float]]:
        """The runs that begin from now on, each with the time of its beginning."""
        self._watched = asyncio.Queue()
        return self._watched

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        self.count += 1
        if self._watched is not None:
            self._watched.put_nowait((assignment.run_id, time.perf_counter()))
        if self._line:
            await desk.say(self._line)
        return Succeeded("Done.")

    async def abandon(self, lost: LostAttempt) -> None:
        pass


class Programs(CommandExecutor):
    """Real programs, in processes of their own under launchers of their own."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox=sandbox)
        self.count = 0

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        self.count += 1
        return await super().execute(assignment, desk)


class AtWork:
    def __init__(self, stage: Stage, worker: Worker, executor: Noop | Programs, listener: Listener) -> None:
        self.stage, self.worker, self.executor, self.listener = stage, worker, executor, listener

    async def drain(self, count: int) -> float:
        """Let this many runs become due at once; how many of them it settled in a second."""
        done = self.executor.count + count
        places, self.worker.places = self.worker.places, 0  # nothing is claimed while they are made
        await self.stage.fill(count, datetime.now(UTC) - timedelta(seconds=1), tidy=False, max_fires=1)
        await Scheduler(self.stage.db, self.stage.wakes).once()
        self.worker.places = places
        started = time.perf_counter()
        self.listener.dispatch(RUNS, "")  # look everywhere
        while self.executor.count < done or self.worker.attempts:
            await asyncio.sleep(0.005)
        return count / (time.perf_counter() - started)


@asynccontextmanager
async def at_work(
    stage: Stage,
    places: int,
    *,
    listener: Listener | None = None,
    executor: Noop | Programs | None = None,
    home: Path = Path("/nowhere"),
) -> AsyncIterator[AtWork]:
    """Without a listener of its own it hears only what is dispatched to it."""
    executor, recorder = executor or Noop(), Recorder(stage.db, stage.wakes)
    listener = listener or Listener(stage.url)
    worker = Worker(stage.db, stage.wakes, recorder, {"command": executor}, url="", home=home, places=places)
    loop = Loop(worker)
    worker.listen(listener, loop)
    tasks = [asyncio.create_task(each) for each in (recorder.run(), loop.run())]
    look_for_cycles_rarely()
    keep_for_good()  # as every process of Rota does once it has started
    try:
        yield AtWork(stage, worker, executor, listener)
    finally:
        loop.stop()
        await tasks[1]
        await worker.drain(timedelta(seconds=5), asyncio.Event())
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
