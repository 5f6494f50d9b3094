"""The worker: short runs drained, and how soon a run now reaches the agent's code, beside its peers."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.domain.types import QueueExecutionMode
from procrastinate import App, PsycopgConnector
from psycopg.conninfo import conninfo_to_dict

from bench.stage import Stage, staged
from rota.db.listener import RUNS, Listener, Wakes
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome, Succeeded
from rota.roster import running
from rota.scheduler.tick import Scheduler
from rota.service import Loop
from rota.trace.record import Recorder
from rota.worker.lease import Lease
from rota.worker.worker import Worker


class Noop:
    """An in-process agent that does nothing, and says when it began."""

    kind = "command"

    def __init__(self) -> None:
        self.began: asyncio.Queue[tuple[object, float]] = asyncio.Queue()

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        self.began.put_nowait((assignment.run_id, time.perf_counter()))
        return Succeeded("Done.")

    async def abandon(self, lost: LostAttempt) -> None:
        pass


async def measure(*, quick: bool) -> dict[str, Any]:
    count, rounds = (5_000, 2) if quick else (20_000, 3)
    figures: dict[str, Any] = {}
    async with staged() as stage:
        contestants: dict[str, Callable[[int], Awaitable[float]]] = {
            "rota, 100 places": lambda n: _drain(stage, n, places=100),
            "rota, 500 places": lambda n: _drain(stage, n, places=500),
            "pgqueuer, batch 100": lambda n: _drain_pgqueuer(stage, n),
            "procrastinate, concurrency 100": lambda n: _drain_procrastinate(stage, n // 20),
            "limit: claim 100 and done on a bare table": lambda n: _limit(stage, n),
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, drain in contestants.items():
                rates[name].append(await drain(count))
        medians = {name: statistics.median(each) for name, each in rates.items()}
        figures |= {f"{name}: runs a second": int(rate) for name, rate in medians.items()}
        best = medians["rota, 100 places"]
        figures["× pgqueuer (both 100)"] = best / medians["pgqueuer, batch 100"]
        figures["× procrastinate"] = best / medians["procrastinate, concurrency 100"]
        figures["per cent of the limit"] = 100 * best / medians["limit: claim 100 and done on a bare table"]
        figures |= await _pick_up(stage, 100 if quick else 300)
    return figures


def _worker(stage: Stage, executor: Noop, places: int) -> tuple[Worker, Lease, Recorder]:
    recorder = Recorder(stage.db, stage.wakes)
    options: dict[str, Any] = {"url": "", "home": Path("/tmp"), "places": places}
    worker = Worker(stage.db, stage.wakes, recorder, {"command": executor}, **options)
    return worker, Lease(stage.db, worker, lease=timedelta(seconds=60), heartbeat=timedelta(seconds=10)), recorder


async def _drain(stage: Stage, count: int, *, places: int) -> float:
    """Runs a second by one process, with the whole ledger and every event written."""
    await stage.fill(count, datetime.now(UTC) - timedelta(seconds=1))
    await Scheduler(stage.db, stage.wakes).once()
    await stage.tidy()
    executor = Noop()
    worker, _, _ = _worker(stage, executor, places)
    loop = Loop(worker)
    started = time.perf_counter()
    task = asyncio.create_task(loop.run())
    worker.attach(loop)
    while executor.began.qsize() < count or worker.attempts:
        await asyncio.sleep(0.005)
    taken = time.perf_counter() - started
    loop.stop()
    await task
    return count / taken


def _asyncpg(url: str) -> dict[str, Any]:
    parts = conninfo_to_dict(url)
    return {
        "host": parts.get("host"), "port": parts.get("port") or 5432, "user": parts.get("user"),
        "password": parts.get("password"), "database": parts["dbname"],
    }  # fmt: skip


async def _drain_pgqueuer(stage: Stage, count: int) -> float:
    async with asyncpg.create_pool(**_asyncpg(stage.url), min_size=1, max_size=1) as pool, pool.acquire() as conn:
        driver = AsyncpgDriver(conn)
        queries = Queries(driver)
        if not await queries.has_table(queries.qbe.settings.queue_table):
            await queries.install()
        await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
        queue = PgQueuer(driver)
        done = 0

        @queue.entrypoint("noop")
        async def noop(_: Any) -> None:
            nonlocal done
            done += 1

        started = time.perf_counter()
        await queue.qm.run(batch_size=100, mode=QueueExecutionMode.drain, max_concurrent_tasks=200)
        taken = time.perf_counter() - started
        assert done == count
        return count / taken


async def _drain_procrastinate(stage: Stage, count: int) -> float:
    app = App(connector=PsycopgConnector(conninfo=stage.url))
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()

        @app.task(name="noop")
        async def noop() -> None:
            pass

        await noop.batch_defer_async(*({} for _ in range(count)))
        started = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False, listen_notify=False)
        return count / (time.perf_counter() - started)


async def _limit(stage: Stage, count: int) -> float:
    """What PostgreSQL itself allows: claim a hundred rows and mark them done, nothing else."""
    async with stage.db.connection() as conn:
        await conn.execute("DROP TABLE IF EXISTS bare_queue")
        await conn.execute("CREATE TABLE bare_queue (id bigint PRIMARY KEY, status text) WITH (fillfactor = 50)")
        await conn.execute("INSERT INTO bare_queue SELECT n, 'queued' FROM generate_series(1, %s) n", [count])
        await conn.execute("CREATE INDEX ON bare_queue (id) WHERE status = 'queued'")
        await conn.execute("VACUUM ANALYZE bare_queue")
        started = time.perf_counter()
        for _ in range(0, count, 100):
            rows = await conn.execute(
                """UPDATE bare_queue SET status = 'running' WHERE id = ANY(ARRAY(
                       SELECT id FROM bare_queue WHERE status = 'queued' ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED))
                RETURNING id"""
            )
            ids = [row[0] for row in await rows.fetchall()]
            await conn.execute("UPDATE bare_queue SET status = 'done' WHERE id = ANY(%s)", [ids])
        return count / (time.perf_counter() - started)


async def _pick_up(stage: Stage, count: int) -> dict[str, float]:
    """From the answer to "run now" until the agent's code begins, one at a time, each system in turn."""
    rota = await _pick_up_rota(stage, count)
    pgqueuer = await _pick_up_pgqueuer(stage, count)
    procrastinate = await _pick_up_procrastinate(stage, count)
    told: dict[str, float] = {}
    for name, times in {"rota": rota, "pgqueuer": pgqueuer, "procrastinate": procrastinate}.items():
        times.sort()
        told[f"pick-up, {name}, p50 ms"] = times[len(times) // 2] * 1000
        told[f"pick-up, {name}, p99 ms"] = times[int(len(times) * 0.99)] * 1000
    return told


async def _pick_up_rota(stage: Stage, count: int) -> list[float]:
    executor = Noop()
    listener = Listener(stage.url)
    wakes = Wakes(stage.db, listener)
    worker, _, recorder = _worker(stage, executor, 5)
    loop = Loop(worker)
    tasks = [asyncio.create_task(each) for each in (listener.run(), recorder.run(), loop.run())]
    # Another process would be told by NOTIFY only, so this worker is not told directly either.
    other = Wakes(stage.db, Listener(stage.url))
    worker.listen(listener, loop)
    await asyncio.sleep(0.5)
    times = []
    for _ in range(count):
        async with stage.db.transaction() as conn:
            await running.run_agent(conn, stage.caller, "agent", {"prompt": "go"})
        answered = time.perf_counter()
        other.send(RUNS, [stage.caller.workspace_id])
        _, began = await executor.began.get()
        times.append(began - answered)
        await asyncio.sleep(0.01)
    loop.stop()
    await other.close()
    await wakes.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return times


async def _pick_up_pgqueuer(stage: Stage, count: int) -> list[float]:
    began: asyncio.Queue[float] = asyncio.Queue()
    async with (
        asyncpg.create_pool(**_asyncpg(stage.url), min_size=2, max_size=2) as pool,
        pool.acquire() as working,
        pool.acquire() as sending,
    ):
        queue = PgQueuer(AsyncpgDriver(working))

        @queue.entrypoint("pickup")
        async def pickup(_: Any) -> None:
            began.put_nowait(time.perf_counter())

        task = asyncio.create_task(queue.qm.run(batch_size=10))
        await asyncio.sleep(1.0)
        queries = Queries(AsyncpgDriver(sending))
        times = []
        for _ in range(count):
            await queries.enqueue("pickup", None)
            answered = time.perf_counter()
            times.append(await began.get() - answered)
            await asyncio.sleep(0.01)
        queue.shutdown.set()
        await asyncio.wait([task], timeout=5)
    return times


async def _pick_up_procrastinate(stage: Stage, count: int) -> list[float]:
    began: asyncio.Queue[float] = asyncio.Queue()
    app = App(connector=PsycopgConnector(conninfo=stage.url))

    @app.task(name="pickup")
    async def pickup() -> None:
        began.put_nowait(time.perf_counter())

    async with app.open_async():
        task = asyncio.create_task(app.run_worker_async(concurrency=5, install_signal_handlers=False))
        await asyncio.sleep(1.0)
        times = []
        for _ in range(count):
            await pickup.defer_async()
            answered = time.perf_counter()
            times.append(await began.get() - answered)
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return times
