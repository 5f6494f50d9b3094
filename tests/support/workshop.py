"""Background sessions with their tasks, and workers whose agents do what the test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.db import tasks as rows
from rota.db.listener import RUNS, Listener, Wakes
from rota.db.pool import Database
from rota.model.executor import Assignment, Desk
from rota.model.ids import SessionId
from rota.model.outcome import Outcome, Succeeded
from rota.model.session import Verb
from rota.model.task import TaskForm
from rota.service import Loop
from rota.sessions import changing, opening, tasks
from rota.trace.record import Recorder
from rota.worker.worker import Worker
from support.house import House
from support.scripted_executor import Script, Scripted


async def succeed_at_once(assignment: Assignment, desk: Desk) -> Outcome:
    return Succeeded("Done.")


class Workshop:
    """A house in which sessions pursue goals."""

    def __init__(self, house: House, wakes: Wakes) -> None:
        self.house, self.wakes = house, wakes
        self.workspace_id = house.caller.workspace_id

    async def goal(self, *forms: TaskForm, draft: bool = False) -> SessionId:
        async with self.house.db.transaction() as conn:
            session_id = await opening.pursue(
                conn, self.house.caller, "Tidy the house", seats=[{"name": "worker", "agent": "worker-bee"}],
                forms=forms, draft=draft,
            )  # fmt: skip
        self.wakes.send(RUNS, {self.workspace_id})
        return session_id

    async def add(self, session_id: SessionId, *forms: TaskForm) -> None:
        async with self.house.db.transaction() as conn:
            await tasks.add(conn, self.workspace_id, session_id, forms)
        self.wakes.send(RUNS, {self.workspace_id})

    async def change(self, session_id: SessionId, verb: str) -> None:
        async with self.house.db.transaction() as conn:
            await changing.change(conn, self.house.caller, session_id, Verb(verb))
        self.wakes.send(RUNS, {self.workspace_id})

    async def tasks(self, session_id: SessionId) -> dict[str, str]:
        """How each task stands, by key."""
        async with self.house.db.connection() as conn:
            return {each["key"]: each["status"] for each in await rows.page(conn, (self.workspace_id, session_id))}

    async def task(self, session_id: SessionId, key: str) -> dict[str, Any]:
        async with self.house.db.connection() as conn:
            [found] = [each for each in await rows.page(conn, (self.workspace_id, session_id)) if each["key"] == key]
        return found

    async def status(self, session_id: SessionId) -> str:
        return str(await self.house.value("SELECT status FROM sessions WHERE id = %s", session_id))

    def is_(self, session_id: SessionId, *wanted: str) -> Any:
        async def check() -> bool:
            return await self.status(session_id) in wanted

        return check

    async def log(self, session_id: SessionId, kind: str) -> list[tuple[str | None, str]]:
        """Events of one kind: which task, and its status."""
        async with self.house.db.connection() as conn:
            told = await conn.execute(
                "SELECT data ->> 'task', data ->> 'status' FROM events WHERE session_id = %s AND kind = %s ORDER BY seq",
                [session_id, kind],
            )
            return [(task, status) for task, status in await told.fetchall()]


@pytest.fixture
def workshop(house: House, wakes: Wakes) -> Workshop:
    return Workshop(house, wakes)


@pytest.fixture
def crew(db: Database, wakes: Wakes, listener: Listener, tmp_path: Path) -> Any:
    @asynccontextmanager
    async def at_work(
        script: Script = succeed_at_once, *, workers: int = 1, places: int = 5
    ) -> AsyncIterator[Scripted]:
        agents = Scripted(script)
        recorder = Recorder(db, wakes)
        hired = [
            Worker(
                db, wakes, recorder, {"command": agents}, url="http://rota.test", home=tmp_path, places=places,
                lease=timedelta(seconds=60),
            )
            for _ in range(workers)
        ]  # fmt: skip
        loops = [Loop(worker) for worker in hired]
        going = [asyncio.create_task(each) for each in (recorder.run(), *(loop.run() for loop in loops))]
        for worker, loop in zip(hired, loops, strict=True):
            worker.listen(listener, loop)
        try:
            yield agents
        finally:
            for worker, loop in zip(hired, loops, strict=True):
                loop.stop()
                await worker.drain(timedelta(seconds=0.01), asyncio.Event())
            for task in going:
                task.cancel()
            await asyncio.gather(*going, return_exceptions=True)

    return at_work
