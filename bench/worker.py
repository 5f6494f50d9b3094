"""The worker: short runs drained, and how soon a run now reaches the agent's code, beside its peers."""

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from bench import first_words, held, idle, peers, pick_up, run_state
from bench.at_work import Noop, Programs, at_work
from bench.goals import Goal, at_least, at_most
from bench.stage import Stage, staged
from rota.db.listener import RUNS, Listener, Wakes
from rota.executors.sandbox import UNCONFINED, choose
from rota.roster import running

ROTA, ROTA_200, ROTA_500 = "rota, 100 places", "rota, 200 places, claims of 100", "rota, 500 places"
ROTA_SAYING = "rota, 100 places, each run says a line"
PGQUEUER, PROCRASTINATE = "pgqueuer, batch 100", "procrastinate, concurrency 100"
OVER_HTTP, OVER_HTTP_IN_ONE = "rota over HTTP, API and worker apart", "rota over HTTP, all in one process"
FROM_COMMIT, FROM_COMMIT_IN_ONE = "rota from the commit, by NOTIFY", "rota from the commit, in one process"
LIMIT = "limit: claim 100 and done on a bare table"


async def measure(*, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    figures: dict[str, Any] = {}
    goals: list[Goal] = []
    async with staged() as stage:
        for part in (_drains, _programs, first_words.measure, _pick_ups, _notifications, held.measure):
            found, kept = await part(stage, quick=quick)
            figures |= found
            goals += kept
    found, kept = await idle.measure(quick=quick)
    return figures | found, goals + kept


async def _drains(stage: Stage, *, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    """Each in turn, several times, on the same server: machines are noisy, ratios are not."""
    count, rounds = (5_000, 2) if quick else (20_000, 3)
    contestants: dict[str, Callable[[int], Awaitable[float]]] = {
        ROTA: lambda n: _drain(stage, n, places=100),
        ROTA_200: lambda n: _drain(stage, n, places=200),
        ROTA_500: lambda n: _drain(stage, n, places=500),
        ROTA_SAYING: lambda n: _drain(stage, n // 4, places=100, line="All is well.\n"),
        PGQUEUER: lambda n: peers.drain_pgqueuer(stage, n),
        PROCRASTINATE: lambda n: peers.drain_procrastinate(stage, n // 20),
        LIMIT: lambda n: peers.limit(stage, n),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, drain in contestants.items():
            rates[name].append(await drain(count))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    figures: dict[str, Any] = {f"{name}: runs a second": int(rate) for name, rate in medians.items()}
    figures["rota, 100 places: per cent of the limit"] = 100 * medians[ROTA] / medians[LIMIT]
    figures["rota, 500 places: per cent of the limit"] = 100 * medians[ROTA_500] / medians[LIMIT]
    return figures, [
        at_least("× pgqueuer, both 100", medians[ROTA] / medians[PGQUEUER], 1.5),
        at_least("× pgqueuer, both 200 at work and claims of 100", medians[ROTA_200] / medians[PGQUEUER], 1.5),
        at_least("× pgqueuer, 500 places against its batch of 100", medians[ROTA_500] / medians[PGQUEUER], 1.5),
        at_least("× procrastinate", medians[ROTA] / medians[PROCRASTINATE], 30),
    ]


async def _drain(stage: Stage, count: int, *, places: int, line: str = "") -> float:
    """Runs a second by one process, with the whole ledger and every event written."""
    await stage.tidy()
    async with at_work(stage, places, executor=Noop(line)) as working:
        return await working.drain(count)


async def _programs(stage: Stage, *, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    """As people run them: a process for each, which does nothing, with and without a sandbox, in turns."""
    count, rounds = (100, 2) if quick else (400, 3)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as home:
        for sandbox in rounds * (UNCONFINED, choose("guard", required=False, home=Path(home))):
            await stage.tidy()
            async with at_work(stage, 20, executor=Programs(sandbox), home=Path(home)) as working:
                rates.setdefault(sandbox.name, []).append(await working.drain(count))
    told = "rota, 20 places, a program for each run, sandbox {}: runs a second"
    return {told.format(name): int(statistics.median(each)) for name, each in rates.items()}, []


async def _notifications(stage: Stage, *, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    """What another process hears while a backlog is drained, for each group of outcomes that was committed."""
    heard: Counter[str] = Counter()
    async with await AsyncConnection.connect(stage.url, autocommit=True) as other:
        other.add_notify_handler(lambda told: heard.update([told.channel]))
        async with at_work(stage, 100) as working:
            await stage.wakes.close()
            await other.execute("LISTEN rota_runs")
            await other.execute("LISTEN rota_sessions")
            began = (await (await other.execute("SELECT now()")).fetchall())[0][0]
            await working.drain(1_000)
        await stage.wakes.close()
        batches = await run_state.count_writers(other, since=began)
    told = heard["rota_sessions"] / batches
    return {"notifications for each settled batch": told}, [at_most("notifications for each batch", told, 1.0)]


async def _pick_ups(stage: Stage, *, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    """From the answer to "run now" until the agent's code begins, one at a time, each system in turn."""
    count, rounds = (50, 2) if quick else (150, 3)
    answers: list[float] = []

    async def asked(stage: Stage, count: int, *parts: str) -> list[float]:
        began, answered = await pick_up.over_http(stage, count, *parts)
        answers.extend(1000 * each for each in answered)
        return began

    contestants: dict[str, Callable[[Stage, int], Awaitable[list[float]]]] = {
        OVER_HTTP: lambda stage, n: asked(stage, n, "api", "worker"),
        OVER_HTTP_IN_ONE: asked,
        FROM_COMMIT: _pick_up_rota,
        FROM_COMMIT_IN_ONE: lambda stage, n: _pick_up_rota(stage, n, in_one_process=True),
        "pgqueuer": peers.pick_up_pgqueuer,
        "procrastinate": peers.pick_up_procrastinate,
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, begin in contestants.items():
            times[name] += [1000 * each for each in await begin(stage, count)]
    p50 = {name: statistics.median(each) for name, each in times.items()}
    p99 = {name: sorted(each)[int(len(each) * 0.99)] for name, each in times.items()}
    figures: dict[str, Any] = {f"pick-up, {name}, p50 / p99 ms": f"{p50[name]:.2f} / {p99[name]:.2f}" for name in times}
    figures["run now over HTTP, answered, p50 ms"] = statistics.median(answers)
    goals = [at_most(f"pick-up p99, {name}, ms", p99[name], 10) for name in (OVER_HTTP, FROM_COMMIT)]
    for name in (OVER_HTTP_IN_ONE, OVER_HTTP, FROM_COMMIT):
        for told, each in (("p50", p50), ("p99", p99)):
            peer = min(each["pgqueuer"], each["procrastinate"])
            goals.append(at_most(f"pick-up {told} beside the better peer, {name}, ms", each[name], peer))
    return figures, goals


async def _pick_up_rota(stage: Stage, count: int, *, in_one_process: bool = False) -> list[float]:
    """Another process is told by NOTIFY only, so this worker is not told directly either, unless it is to be."""
    listener = Listener(stage.url)
    other = Wakes(stage.db, listener if in_one_process else Listener(stage.url))
    listening = asyncio.create_task(listener.run())
    times = []
    async with at_work(stage, 5, listener=listener) as working:
        await asyncio.sleep(1.0)
        assert isinstance(working.executor, Noop)
        watched = working.executor.watch()
        for _ in range(count):
            async with stage.db.transaction() as conn:
                asked = await running.run_agent(conn, stage.caller, "agent", {"prompt": "go"})
            answered = time.perf_counter()
            other.send(RUNS, [stage.caller.workspace_id])
            begun, began = await watched.get()
            assert begun == asked, "something else is at work here"
            times.append(began - answered)
            await asyncio.sleep(0.01)
    await other.close()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return times
