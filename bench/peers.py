"""The peers that the worker is measured beside, and the limit that PostgreSQL itself sets."""

import asyncio
import re
import tempfile
import time
from asyncio.subprocess import PIPE
from typing import Any

# `make check` runs without these packages, so mypy takes them, and what their decorators return, as untyped.
import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.domain.types import QueueExecutionMode
from procrastinate import App, PsycopgConnector
from psycopg.conninfo import conninfo_to_dict

from bench.stage import Stage
from rota.db.embedded import find_binaries

CLAIM_AND_DONE = """
WITH claimed AS (
    UPDATE bare_queue SET status = 'running' WHERE id = ANY(ARRAY(
        SELECT id FROM bare_queue WHERE status = 'queued' ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED))
 RETURNING id)
SELECT array_agg(id)::text AS ids FROM claimed \\gset
UPDATE bare_queue SET status = 'done' WHERE id = ANY(:ids::bigint[]);
"""


def _asyncpg(url: str) -> dict[str, Any]:
    parts = conninfo_to_dict(url)
    return {
        "host": parts.get("host"), "port": parts.get("port") or 5432, "user": parts.get("user"),
        "password": parts.get("password"), "database": parts["dbname"],
    }  # fmt: skip


async def drain_pgqueuer(stage: Stage, count: int) -> float:
    async with asyncpg.create_pool(**_asyncpg(stage.url), min_size=1, max_size=1) as pool, pool.acquire() as conn:
        driver = AsyncpgDriver(conn)
        queries = Queries(driver)
        if not await queries.has_table(queries.qbe.settings.queue_table):
            await queries.install()
        await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
        queue = PgQueuer(driver)
        done = 0

        @queue.entrypoint("noop")  # type: ignore[untyped-decorator]
        async def noop(_: Any) -> None:
            nonlocal done
            done += 1

        started = time.perf_counter()
        await queue.qm.run(batch_size=100, mode=QueueExecutionMode.drain, max_concurrent_tasks=200)
        taken = time.perf_counter() - started
        assert done == count
        return count / taken


async def drain_procrastinate(stage: Stage, count: int) -> float:
    app = App(connector=PsycopgConnector(conninfo=stage.url))
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()

        @app.task(name="noop")  # type: ignore[untyped-decorator]
        async def noop() -> None:
            pass

        await noop.batch_defer_async(*({} for _ in range(count)))
        started = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False, listen_notify=False)
        return count / (time.perf_counter() - started)


async def limit(stage: Stage, count: int) -> float:
    """What PostgreSQL itself allows, asked by pgbench: claim a hundred rows and mark them done, nothing else."""
    async with stage.db.connection() as conn:
        await conn.execute("DROP TABLE IF EXISTS bare_queue")
        await conn.execute("CREATE TABLE bare_queue (id bigint PRIMARY KEY, status text) WITH (fillfactor = 50)")
        await conn.execute("INSERT INTO bare_queue SELECT n, 'queued' FROM generate_series(1, %s) n", [count])
        await conn.execute("CREATE INDEX ON bare_queue (id) WHERE status = 'queued'")
        await conn.execute("VACUUM ANALYZE bare_queue")
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(CLAIM_AND_DONE)
        script.flush()
        told = await _pgbench("-n", "-M", "prepared", "-t", str(count // 100), "-f", script.name, stage.url)
    async with stage.db.connection() as conn:
        left = await (await conn.execute("SELECT count(*) FROM bare_queue WHERE status <> 'done'")).fetchone()
    assert left == (0,)
    rate = re.search(r"^tps = ([\d.]+)", told, re.MULTILINE)
    assert rate, told
    return 100 * float(rate[1])


async def _pgbench(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(find_binaries() / "pgbench", *words, stdout=PIPE, stderr=PIPE)
    told, wrong = await process.communicate()
    assert process.returncode == 0, wrong.decode()
    return told.decode()


async def pick_up_pgqueuer(stage: Stage, count: int) -> list[float]:
    began: asyncio.Queue[float] = asyncio.Queue()
    async with (
        asyncpg.create_pool(**_asyncpg(stage.url), min_size=2, max_size=2) as pool,
        pool.acquire() as working,
        pool.acquire() as sending,
    ):
        queue = PgQueuer(AsyncpgDriver(working))

        @queue.entrypoint("pickup")  # type: ignore[untyped-decorator]
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


async def pick_up_procrastinate(stage: Stage, count: int) -> list[float]:
    began: asyncio.Queue[float] = asyncio.Queue()
    app = App(connector=PsycopgConnector(conninfo=stage.url))

    @app.task(name="pickup")  # type: ignore[untyped-decorator]
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
