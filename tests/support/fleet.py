"""Real processes of Rota on one database, an agent that leaves evidence, and a judge beside them."""

import asyncio
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from rota.access import tokens
from rota.access.vault import open_vault
from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.roster import agents, running
from rota.scheduler.inbound import publish_event
from rota.service import Loop
from rota.settings import Settings, read_settings
from rota.watch.rescue import Rescue
from rota.worker import hire
from support import promises, run_state
from support.house import House
from support.rota_process import Rota
from support.run_state import PRESENT, Run
from support.stand_ins import translate_pids

QUICK = {
    "ROTA_LEASE_SECONDS": "2",
    "ROTA_HEARTBEAT_SECONDS": "0.4",
    "ROTA_RESCUE_SECONDS": "0.2",
    "ROTA_POLL_SECONDS": "0.25",
    "ROTA_TICK_SECONDS": "0.5",
    "ROTA_GRACE_SECONDS": "0.5",
}
LIVE = ["queued", "running", "awaiting_approval"]
T = TypeVar("T")


class Fleet:
    """What a fault is done to. `url` leads to the database itself, whatever the processes are given."""

    def __init__(self, url: str, house: House, directory: Path) -> None:
        self.url, self.house, self.directory = url, house, directory
        self.processes: list[Rota] = []
        self._judge: AsyncConnection[Any] | None = None

    # ── Processes ────────────────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        parts: str = "scheduler,watch,worker",
        *,
        url: str | None = None,
        prefix: Sequence[str] = (),
        **environment: str,
    ) -> Rota:
        given = {**QUICK, "ROTA_DATABASE_URL": url or self.url, **environment}
        self.processes.append(Rota(self.directory / "home", "serve", "--only", parts, prefix=prefix, **given))
        return self.processes[-1]

    @asynccontextmanager
    async def helping(self, **changes: str) -> AsyncIterator[None]:
        """A worker and a watch in this process, straight on the database."""
        settings = read_settings({**QUICK, "ROTA_HOME": str(self.directory / "home"), **changes})
        async with AsyncExitStack() as stack:
            db = Database(self.url)
            await db.open()
            stack.push_async_callback(db.close)
            await self._work(settings, db, stack)
            yield

    async def _work(self, settings: Settings, db: Database, stack: AsyncExitStack) -> None:
        listener = Listener(self.url)
        wakes = Wakes(db, listener)
        vault = open_vault(settings.home, "")
        worker, lease, recorder = hire(settings, db, wakes, vault, url="http://rota.test")
        services = (lease, worker, worker.abandon, Rescue(db, wakes, every=settings.rescue_seconds))
        loops = [Loop(service) for service in services]
        tasks = [
            asyncio.create_task(each) for each in (listener.run(), recorder.run(), *(loop.run() for loop in loops))
        ]
        worker.listen(listener, loops[1])

        async def stop() -> None:
            await worker.drain(settings.grace_seconds, asyncio.Event())
            await lease.leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await wakes.close()

        stack.push_async_callback(stop)

    def close(self) -> None:
        for each in self.processes:
            if each.process.poll() is None:
                each.kill_group()
            else:
                each.ended()

    async def token(self) -> str:
        async with self.house.db.transaction() as conn:
            return await tokens.create_as_operator(conn, "default", "test")

    # ── Agents and runs ──────────────────────────────────────────────────────────────────────────────────────

    async def agent(self, name: str, script: str) -> str:
        """An agent that is a shell script. `evidence` is a directory that it may write to."""
        evidence = self.directory / "evidence"
        evidence.mkdir(exist_ok=True)
        argv = ["sh", "-c", f"evidence={shlex.quote(str(evidence))}\n{script}"]
        values = {"name": name, "executor": "command", "config": {"argv": argv}}
        async with self.house.db.transaction() as conn:
            await agents.create(conn, self.house.caller, values)
        return name

    def evidence(self, name: str) -> list[str]:
        file = self.directory / "evidence" / name
        return file.read_text().split() if file.exists() else []

    def agents(self, name: str) -> list[int]:
        """The processes that wrote their numbers into the evidence, as this process numbers them."""
        [directory] = (self.directory / "home" / "sessions").glob("*/*")
        return translate_pids([int(each) for each in self.evidence(name)], directory)

    async def run(self, agent: str, **policies: Any) -> UUID:
        """Start one run by hand."""
        automation = await self.house.automation(agent=agent, **policies)
        async with self.house.db.transaction() as conn:
            run_id = await running.run_now(conn, self.house.caller, automation)
            await conn.execute("SELECT pg_notify('rota_runs', %s)", [str(self.house.caller.workspace_id)])
        return run_id

    async def publish(self, event: str) -> UUID:
        """Fire the one trigger of an event; its run."""
        async with self.house.db.transaction() as conn:
            fired = await publish_event(conn, self.house.caller, event, None, secrets.token_hex(8))
            await conn.execute("SELECT pg_notify('rota_runs', %s)", [str(self.house.caller.workspace_id)])
        [run_id] = fired.values()
        return run_id

    async def every_second(self, count: int, agent: str = "worker-bee", **policies: Any) -> None:
        """Load: so many automations that fire every second."""
        for _ in range(count):
            await self.house.automation({"every": "1s"}, agent=agent, max_rescues=100, **policies)

    # ── The judge ────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(self, query: str, *given: Any) -> Any:
        """One value."""

        async def read(judge: AsyncConnection[Any]) -> Any:
            row = await (await judge.execute(query.encode(), given)).fetchone()
            return row[0] if row else None

        return await self._judged(read)

    async def _judged(self, act: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Act on a connection that no fault is meant for; made anew if one hit it all the same."""
        for _ in range(100):
            try:
                if self._judge is None or self._judge.closed:
                    self._judge = await AsyncConnection.connect(self.url, autocommit=True, application_name="judge")
                return await act(self._judge)
            except psycopg.OperationalError:
                await self.dismiss_judge()
                await asyncio.sleep(0.1)
        raise AssertionError("the database does not come back")

    async def find_run(self, run_id: UUID | None = None) -> Run:
        """The run with this id, or the only one."""
        where = {"id": run_id} if run_id else {}
        return await self._judged(lambda judge: run_state.find_run(judge, **where))

    async def find_runs(self, **where: Any) -> list[Run]:
        return await self._judged(lambda judge: run_state.find_runs(judge, **where))

    async def count_runs(self, **where: Any) -> int:
        return await self._judged(lambda judge: run_state.count_runs(judge, **where))

    async def cancel_unheard(self, **where: Any) -> None:
        """Ask these runs to end, without notifying anybody."""
        changes = run_state.cancel_requested()
        await self._judged(lambda judge: run_state.change_runs(judge, where, changes))

    async def dismiss_judge(self) -> None:
        if self._judge:
            await self._judge.close()
            self._judge = None

    async def until(self, query: str, *given: Any, within: float = 40.0) -> Any:
        return await self.until_true(lambda: self.ask(query, *given), query, within=within)

    async def until_true(self, check: Callable[[], Awaitable[T | None]], what: str, *, within: float = 40.0) -> T:
        deadline = time.monotonic() + within
        while not (answer := await check()):
            assert time.monotonic() < deadline, f"still {answer!r} after {within} s: {what}\n{self.said()}"
            await asyncio.sleep(0.03)
        return answer

    async def ended(self, run_id: UUID, *, within: float = 40.0) -> str:
        """How a run ended."""

        async def status(judge: AsyncConnection[Any]) -> str | None:
            ended = await run_state.find_columns(judge, "status", id=run_id, finished_at=PRESENT)
            return ended[0]["status"] if ended else None

        return await self.until_true(lambda: self._judged(status), f"run {run_id} has ended", within=within)

    async def at_work(self, run_id: UUID) -> str:
        """The worker that has begun with a run and said something."""
        said = "SELECT count(*) FROM events WHERE run_id = %s AND attempt = %s AND kind = 'output'"

        async def worker() -> str | None:
            for run in await self.find_runs(id=run_id, status="running"):
                if await self.ask(said, run_id, run["attempt"]):
                    return str(run["worker_id"])
            return None

        return await self.until_true(worker, f"the agent of run {run_id} says something")

    async def holder(self, run_id: UUID) -> Rota:
        """The process that works on a run."""
        worker = await self.at_work(run_id)
        [process] = [each for each in self.processes if f"-{each.process.pid}-" in worker]
        return process

    async def fired(self, count: int, *, within: float = 40.0) -> None:
        """So many runs succeeded since now."""
        enough = await self.count_runs(status="succeeded") + count

        async def fired() -> bool:
            return await self.count_runs(status="succeeded") >= enough

        await self.until_true(fired, f"{enough} runs have succeeded", within=within)

    async def keeps_its_promises(self, *, within: float = 60.0) -> None:
        """Nothing more is fired; what is under way comes to its end; then the whole evidence is looked through."""
        await self.ask("SELECT 1")
        assert self._judge
        await promises.halt(self._judge)

        async def ended() -> bool:
            return await self.count_runs(status=LIVE) == 0

        await self.until_true(ended, "all runs have ended", within=within)
        assert await promises.broken(self._judge) == [], self.said()

    def said(self) -> str:
        return "\n".join(line for each in self.processes for line in each.output.splitlines()[-40:])
