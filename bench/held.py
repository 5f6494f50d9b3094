"""Beside a transaction held open dead entries pile up: how much of the pace is left, and is an old backlog found?"""

import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta

from bench import run_state
from bench.at_work import AtWork, Noop, at_work
from bench.goals import Goal, at_least, at_most
from bench.stage import Stage
from rota.db.listener import RUNS
from rota.scheduler.tick import Scheduler

BACKLOG = 50
PATIENCE_SECONDS = 15.0  # three polls


async def measure(stage: Stage, *, quick: bool) -> tuple[dict[str, float], list[Goal]]:
    seconds, count = (6.0, 1_000) if quick else (60.0, 2_000)
    async with at_work(stage, 100) as working:
        await working.drain(count)
        before = statistics.median([await working.drain(count) for _ in range(3)])
        holder = await stage.db.reserve()
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await run_state.count_runs(holder)
        started, rates = time.monotonic(), []
        while time.monotonic() - started < seconds:
            rates.append(await working.drain(count))
        waited = await _old_backlog(working, count)
        await holder.execute("ROLLBACK")
        await holder.close()
    at_the_end = statistics.median(rates[-max(1, len(rates) // 3) :])
    figures = {
        "held open: runs a second before": before,
        f"held open: runs a second after {seconds:.0f} s": at_the_end,
        "held open: an old backlog waited, s": waited,
    }
    return figures, [
        at_least("a transaction held open leaves this share of the pace", at_the_end / before, 0.5),
        at_most("an old backlog behind the place of reading is found within, s", waited, PATIENCE_SECONDS),
    ]


async def _old_backlog(working: AtWork, count: int) -> float:
    """Runs become ready far behind the place of reading while new ones keep coming; how long the last of them waits."""
    stage = working.stage
    old: set[object] = set()
    began: dict[object, float] = {}
    assert isinstance(working.executor, Noop)
    watched = working.executor.watch()
    feeding = asyncio.create_task(_feed(working, count, old))
    started = time.perf_counter()
    try:
        while not old or not old <= began.keys():
            run_id, at = await asyncio.wait_for(watched.get(), 60)
            began[run_id] = at
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    await stage.wakes.close()
    return max(began[run_id] for run_id in old) - started


async def _feed(working: AtWork, count: int, old: set[object]) -> None:
    stage = working.stage
    while True:
        await stage.fill(count, datetime.now(UTC) - timedelta(seconds=1), tidy=False, max_fires=1)
        await Scheduler(stage.db, stage.wakes).once()
        if not old:
            async with stage.db.connection() as conn:
                old |= await run_state.age_queued(conn, BACKLOG)
        working.listener.dispatch(RUNS, str(stage.caller.workspace_id))
        await asyncio.sleep(0.2)
