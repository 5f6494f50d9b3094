"""The scheduler: how fast what is due becomes runs, whatever else is stored."""

import asyncio
import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim

from bench import run_state
from bench.goals import Goal, at_least, at_most
from bench.stage import Stage, staged
from rota.model.cron import next_after
from rota.scheduler.tick import Scheduler

DUE = 10_000
EXPRESSIONS = (
    "* * * * *", "*/15 * * * *", "0 * * * *", "30 2 * * *", "0 9 * * 1-5", "0 0 1 * *", "15 10 15 * *", "0 12 * * 1#2",
    "0 18 L * *", "5 4 * 2 *",
)  # fmt: skip
BARE = "CREATE TABLE IF NOT EXISTS bare (id uuid PRIMARY KEY, a text, b text, c timestamptz)"
INSERT_BARE = "INSERT INTO bare SELECT gen_random_uuid(), 'a', 'b', now() FROM generate_series(1, 1000)"


async def measure(*, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    others = 100_000 if quick else 1_000_000
    figures: dict[str, Any] = {**_cron()}
    async with staged() as stage:
        await _fire(stage, 1000)  # warm up
        alone = [await _fire(stage, DUE) for _ in range(5)]
        sustained = await _fire(stage, 6 * DUE)
        figures["limit: bare rows inserted a second, 1,000 a statement"] = int(await _bare(stage))
        await _store(stage, others)
        beside = [await _fire(stage, DUE) for _ in range(5)]
        figures |= await _idle(stage)
        figures[f"{DUE:,} due at once, seconds"] = statistics.median(alone)
        figures[f"{DUE:,} due beside {others:,} others, seconds"] = statistics.median(beside)
        figures["slower beside the others, per cent"] = 100 * (statistics.median(beside) / statistics.median(alone) - 1)
        figures["sustained over 60,000: fires a second"] = int(6 * DUE / sustained)
        figures["memory of the process, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    async with staged() as stage:
        figures |= await _lateness(stage, seconds=10 if quick else 30)
    return figures, [
        at_most(f"{DUE:,} due at once, seconds", statistics.median(alone), 1.0),
        at_least("sustained fires a second", 6 * DUE / sustained, 10_000),
    ]


async def _fire(stage: Stage, count: int) -> float:
    await stage.fill(count, datetime.now(UTC) - timedelta(seconds=1))
    started = time.perf_counter()
    await Scheduler(stage.db, stage.wakes).once()
    return time.perf_counter() - started


async def _bare(stage: Stage) -> float:
    async with stage.db.connection() as conn:
        await conn.execute(BARE)
        started = time.perf_counter()
        for _ in range(20):
            await conn.execute(INSERT_BARE)
        return 20_000 / (time.perf_counter() - started)


async def _store(stage: Stage, count: int) -> None:
    later = datetime.now(UTC) + timedelta(days=30)
    for _ in range(0, count, 100_000):
        await stage.fill(100_000, later, tidy=False)
    await stage.tidy()


async def _idle(stage: Stage) -> dict[str, float]:
    scheduler = Scheduler(stage.db, stage.wakes)
    times = []
    for _ in range(1000):
        started = time.perf_counter()
        await scheduler.once()
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return {"idle pass, p50 ms": times[500], "idle pass, p99 ms": times[990]}


def _cron() -> dict[str, float]:
    """`next_after` against cronsim with its object reused, turn by turn."""
    zone = ZoneInfo("America/Los_Angeles")
    start = datetime(2026, 1, 1, tzinfo=zone)
    ratios = []
    for _ in range(5):
        ours = theirs = 0.0
        for expression in EXPRESSIONS:
            begun = time.perf_counter()
            instant = start.astimezone(UTC)
            for _ in range(200):
                instant = next_after(expression, "America/Los_Angeles", instant)
            ours += time.perf_counter() - begun
            begun = time.perf_counter()
            slots = CronSim(expression, start)
            for _ in range(200):
                next(slots)
            theirs += time.perf_counter() - begun
        ratios.append(theirs / ours)
    return {"next_after, times as fast as cronsim": statistics.median(ratios)}


REPLICA = """
import asyncio, sys, time
from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.scheduler.tick import Scheduler
from rota.service import Loop
async def main(url, seconds):
    db = Database(url, size=3)
    await db.open()
    loop = Loop(Scheduler(db, Wakes(db, Listener(url))))
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(seconds)
    loop.stop()
    await task
asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""

EVERY_SECOND = """
UPDATE triggers SET kind = 'every', cron = NULL, every = '10 seconds', anchor_at = %(anchor)s + n * interval '2 milliseconds',
       next_fire_at = %(anchor)s + n * interval '2 milliseconds'
  FROM (SELECT id, row_number() OVER () AS n FROM triggers) numbered WHERE numbered.id = triggers.id
"""


async def _lateness(stage: Stage, seconds: float) -> dict[str, Any]:
    """500 fires a second, evenly spread, over four replicas; the first seconds are not counted."""
    anchor = datetime.now(UTC) + timedelta(seconds=4)
    await stage.fill(5000, anchor)
    async with stage.db.connection() as conn:
        await conn.execute("UPDATE automations SET overlap = 'allow'")
        await conn.execute(EVERY_SECOND, {"anchor": anchor})
    command = [sys.executable, "-c", REPLICA, stage.url, str(seconds + 5)]
    replicas = [subprocess.Popen(command) for _ in range(4)]
    await asyncio.gather(*(asyncio.to_thread(each.wait) for each in replicas))
    async with stage.db.connection() as conn:
        median, p99, count = await run_state.lateness(conn, since=anchor + timedelta(seconds=2))
    return {
        "lateness at 500/s, four replicas, p50 ms": median,
        "lateness, p99 ms": p99,
        "lateness, fires counted": count,
    }
