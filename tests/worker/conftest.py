"""A worker with an executor that does what the test says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.model.ids import RunId
from rota.roster import running
from rota.service import Loop
from rota.trace.record import Recorder
from rota.worker.lease import Lease
from rota.worker.worker import Worker
from support.house import House
from support.running_worker import at_work
from support.scripted_executor import Abandoning, Script, Scripted


class Shift:
    """A worker at work."""

    def __init__(self, worker: Worker, lease: Lease, loop: Loop, executor: Scripted) -> None:
        self.worker, self.lease, self.loop, self.executor = worker, lease, loop, executor


@pytest.fixture
def shift(db: Database, wakes: Wakes, listener: Listener, tmp_path: Path) -> Any:
    @asynccontextmanager
    async def begin(
        script: Script,
        *,
        places: int = 5,
        lease: float = 60.0,
        poll: float = 5.0,
        abandon: Abandoning | None = None,
        **options: Any,
    ) -> AsyncIterator[Shift]:
        """`options` are further ones of the worker."""
        recorder = Recorder(db, wakes)
        executor = Scripted(script, abandon)
        span = timedelta(seconds=lease)
        worker = Worker(
            db, wakes, recorder, {"command": executor}, url="http://rota.test", home=tmp_path, places=places,
            lease=span, poll=timedelta(seconds=poll), **options,
        )  # fmt: skip
        keeper = Lease(db, worker, lease=span, heartbeat=span / 3)
        try:
            async with at_work(worker, recorder, listener) as loop:
                yield Shift(worker, keeper, loop, executor)
        finally:
            await keeper.leave()

    return begin


@pytest.fixture
async def unheard(database_url: str) -> AsyncIterator[Database]:
    """A way to the same database that wakes nobody, as if every notification were lost."""
    database = Database(database_url, size=2)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def run_now(house: House, wakes: Wakes) -> Any:
    async def start(automation_id: Any) -> RunId:
        async with house.db.transaction() as conn:
            run_id = await running.run_now(conn, house.caller, automation_id)
        wakes.send("rota_runs")
        return run_id

    return start
