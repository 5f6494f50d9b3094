"""The server's time for every page and list, under the API's role, with as much stored as a busy workspace has after half a year."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from httpx import ASGITransport, AsyncClient
from psycopg import AsyncCursor

from bench import stock
from bench.addresses import addresses
from bench.goals import Goal, at_most
from bench.stage import Stage, staged
from rota.access import signing_in
from rota.access.vault import open_vault
from rota.db import isolation
from rota.db.listener import Listener
from rota.http.app import create_app
from rota.http.context import Web
from rota.service import keep_for_good, look_for_cycles_rarely
from rota.settings import Settings

GOAL_MS = 50.0
BUSIEST = 20_000  # runs of one automation, which fires far more often than the others
WARMING = 7  # looks before it counts: a statement is prepared after its fifth
SLOW = 2.0  # seconds


async def measure(*, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    automations, runs = (10_000, 100_000) if quick else (100_000, 1_000_000)
    async with staged() as stage:
        await stage.fill(automations, datetime.now(UTC) + timedelta(days=1), tidy=False)
        await stock.fill(stage, automations=automations, runs=runs, busiest=BUSIEST)
        figures = {"stored": f"{automations:,} automations and {runs:,} runs"}
        looked_at = await look(stage, times=10 if quick else 40)
    for name, seen in looked_at.items():
        figures |= {f"{name}, {what}": value for what, value in seen.told().items()}
    slowest = max(looked_at, key=lambda name: looked_at[name].p95)
    return figures, [at_most(f"p95 ms of the slowest page ({slowest})", looked_at[slowest].p95, GOAL_MS)]


class Seen(NamedTuple):
    """How long a page took, each time it was looked at; what of that this process worked, and what the database did."""

    took: list[float]
    worked: list[float]
    asked: list[float]
    statements: int

    @property
    def p95(self) -> float:
        return sorted(self.took)[int(len(self.took) * 0.95)]

    def told(self) -> dict[str, Any]:
        middle = {"p50 ms": self.took, "CPU of Python, p50 ms": self.worked, "statements, p50 ms": self.asked}
        return {
            **{name: statistics.median(each) for name, each in middle.items()},
            "p95 ms": self.p95,
            "statements": self.statements,
        }


async def look(stage: Stage, *, times: int) -> dict[str, Seen]:
    """Every page and list, as a browser of an admin asks for it. The slow ones are requested less often."""
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(allowed_hosts=("rota.test",))
        web = Web(stage.db, stage.wakes, Listener(stage.url), settings, open_vault(Path(home)))
        async with stage.db.connection() as conn:
            assert await isolation.role_of(stage.db, conn), "there must be a role for the API: it is what is measured"
        app = create_app(web)
        async with AsyncClient(transport=ASGITransport(app), base_url="http://rota.test") as browser:
            async with stage.db.transaction() as conn:
                link = await signing_in.create_link(conn, stage.caller.user_id)
            await browser.post("/sign-in", data={"link": link})
            look_for_cycles_rarely()
            keep_for_good()  # as a server does once it has started
            return {name: await _seen(browser, path, times) for name, path in (await addresses(app, stage)).items()}


async def _seen(browser: AsyncClient, path: str, times: int) -> Seen:
    seen = Seen([], [], [], 0)
    for at in range(times + WARMING):
        with _statements() as asked:
            began, worked = time.perf_counter(), time.process_time()
            answer = await browser.get(path)
            took, worked = time.perf_counter() - began, time.process_time() - worked
        if answer.status_code not in {200, 303}:
            raise AssertionError(f"{path} answered {answer.status_code}")
        if at >= WARMING:
            for figures, value in ((seen.took, took), (seen.worked, worked), (seen.asked, sum(asked))):
                figures.append(value * 1000)
            seen = seen._replace(statements=len(asked))
        if took > SLOW and at >= WARMING + 2:
            break
    return seen


@contextmanager
def _statements() -> Iterator[list[float]]:
    """How long each statement took until its rows were there."""
    execute, asked = AsyncCursor.execute, []

    async def timed(*given: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return await execute(*given, **more)
        finally:
            asked.append(time.perf_counter() - began)

    with patch.object(AsyncCursor, "execute", timed):
        yield asked
