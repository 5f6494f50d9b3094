"""Everything at once, at random, for as long as you like: `make soak SECONDS=600 SEED=7`."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rota.db.embedded import EmbeddedPostgres
from rota.db.migrate import migrate
from rota.db.pool import Database
from support.fleet import Fleet
from support.house import House
from support.postgres_proxy import Proxy
from support.rota_process import Rota

from ..faults.test_database import TERMINATE, stop_immediately

SECONDS = float(os.environ.get("ROTA_TEST_SOAK_SECONDS", "60"))
SEED = int(os.environ.get("ROTA_TEST_SOAK_SEED") or random.randrange(1_000_000))
WORKERS = 3
FAILPOINTS = ["worker.claimed", "worker.executed", "worker.written", "worker.settled", "scheduler.written"]
TALKER = "for i in 1 2 3 4 5; do echo $i; sleep 0.$(( $$ % 5 )); done"


class Monkey:
    """Does to a fleet what machines, networks and operators do, in the order that its seed gives."""

    def __init__(self, fleet: Fleet, server: EmbeddedPostgres, home: Path, proxy: Proxy, url: str) -> None:
        self.fleet, self.server, self.home, self.proxy, self.url = fleet, server, home, proxy, url
        self.random = random.Random(SEED)
        self.done: list[str] = []

    def deeds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.kill, self.kill_at_a_failpoint, self.freeze, self.stop_in_order, self.restart_postgres,
            self.terminate, self.terminate_listeners, self.lose_commits, self.black_hole, self.cancel,
        ]  # fmt: skip

    async def work(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            deed = self.random.choice(self.deeds())
            self.done.append(deed.__name__)
            print(f"{time.strftime('%H:%M:%S')} {deed.__name__}", flush=True)
            await deed()
            self.man()
            await asyncio.sleep(self.random.uniform(0.1, 2.0))

    def man(self, **environment: str) -> None:
        """Somebody always starts again what has died."""
        living = [each for each in self.fleet.processes if each.process.poll() is None]
        for number in range(WORKERS - len(living)):
            self.fleet.start(url=self.url if number % 2 else None, **environment)

    def _victim(self) -> Rota:
        return self.random.choice([each for each in self.fleet.processes if each.process.poll() is None])

    async def kill(self) -> None:
        victim = self._victim()
        victim.process.kill()
        victim.ended()

    async def kill_at_a_failpoint(self) -> None:
        await self.kill()
        self.man(ROTA_TEST_FAILPOINT=self.random.choice(FAILPOINTS))

    async def freeze(self) -> None:
        victim = self._victim()
        victim.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.random.uniform(0.5, 5.0))
        victim.process.send_signal(signal.SIGCONT)

    async def stop_in_order(self) -> None:
        victim = self._victim()
        victim.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(victim.process.wait, 60)

    async def restart_postgres(self) -> None:
        await self.fleet.dismiss_judge()
        stop_immediately(self.home)
        await asyncio.to_thread(self.server.ensure_running)

    async def terminate(self) -> None:
        await self.fleet.ask(TERMINATE, ["rota", "rota listener"], self.random.randint(1, 10))

    async def terminate_listeners(self) -> None:
        await self.fleet.ask(TERMINATE, ["rota listener"], 10)

    async def lose_commits(self) -> None:
        self.proxy.lose_answers_to_commits(every=self.random.randint(1, 5), most=self.random.randint(1, 20))

    async def black_hole(self) -> None:
        self.proxy.fall_silent()
        await asyncio.sleep(self.random.uniform(0.5, 6.0))
        self.proxy.speak_again()

    async def cancel(self) -> None:
        running = [run["id"] for run in await self.fleet.find_runs(status="running")]
        chosen = self.random.sample(running, min(2, len(running)))
        await self.fleet.cancel_unheard(id=chosen, status="running")


@pytest.fixture
async def monkey(tmp_path: Path) -> AsyncIterator[Monkey]:
    home = tmp_path / "postgres"
    server = EmbeddedPostgres(home)
    await asyncio.to_thread(server.start)
    url = server.owner_url
    await migrate(url)
    db = Database(url)
    await db.open()
    fleet = Fleet(url, await House.build(db), tmp_path)
    proxy = Proxy(url)
    async with proxy.open(url) as through:
        yield Monkey(fleet, server, home, proxy, through)
        fleet.close()
    await fleet.dismiss_judge()
    await db.close()
    await asyncio.to_thread(server.stop)


@pytest.mark.timeout(SECONDS + 300)
async def test_whatever_happens_the_promises_are_kept(monkey: Monkey) -> None:
    print(f"\nseed {SEED}, {SECONDS:g} s; the same again with: make soak SECONDS={SECONDS:g} SEED={SEED}", flush=True)
    fleet = monkey.fleet
    talker = await fleet.agent("talker", TALKER)
    await fleet.every_second(10)
    for overlap in ("skip", "queue_one", "allow", "replace"):
        await fleet.every_second(2, talker, overlap=overlap)
    monkey.man()
    await fleet.fired(10)
    await monkey.work(SECONDS)
    monkey.proxy.speak_again()
    monkey.proxy.lose_answers_to_commits(most=0)
    await fleet.fired(10, within=120)
    await fleet.keeps_its_promises(within=200)
    runs = await fleet.find_runs()
    rescued = sum(run["rescues"] for run in runs)
    print(f"{len(monkey.done)} faults, {len(runs)} runs, {rescued} rescues, seed {SEED}: all promises kept")
