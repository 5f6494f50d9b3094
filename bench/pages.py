"""Every page's time on the server, with as much stored as a busy house has after half a year."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import UUID

from httpx import ASGITransport, AsyncClient
from psycopg import AsyncCursor

from bench import run_state, stock
from bench.goals import Goal, at_most
from bench.stage import Stage, staged
from rota.access import signing_in
from rota.access.vault import open_vault
from rota.db.listener import Listener
from rota.http.app import create_app
from rota.http.context import Web
from rota.http.shapes.pages import cursor_of
from rota.service import keep_for_good, look_for_cycles_rarely
from rota.settings import Settings

GOAL_MS = 50.0
BUSIEST = 20_000  # runs of one automation, which fires far more often than the others
WARMING = 7  # looks before it counts: a statement is prepared after its fifth

ROOT = "/w/default"


async def measure(*, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    automations, runs = (1_000, 100_000) if quick else (10_000, 1_000_000)
    async with staged() as stage:
        await stage.fill(automations, datetime.now(UTC) + timedelta(days=1), tidy=False)
        await stock.fill(stage, automations=automations, runs=runs, busiest=BUSIEST)
        figures = {"stored": f"{automations:,} automations and {runs:,} runs"}
        looked_at = await look(stage, times=20 if quick else 60)
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
    """Every page, as a browser of an admin asks for it."""
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(allowed_hosts=("rota.test",))
        web = Web(stage.db, stage.wakes, Listener(stage.url), settings, open_vault(Path(home)))
        async with AsyncClient(transport=ASGITransport(create_app(web)), base_url="http://rota.test") as browser:
            async with stage.db.transaction() as conn:
                link = await signing_in.create_link(conn, stage.caller.user_id)
            await browser.post("/sign-in", data={"link": link})
            look_for_cycles_rarely()
            keep_for_good()  # as a server does once it has started
            return {name: await _seen(browser, path, times) for name, path in (await addresses(stage)).items()}


async def addresses(stage: Stage) -> dict[str, str]:
    slugs = await _column(stage, "SELECT slug FROM automations ORDER BY id")
    [talk] = await _column(stage, "SELECT id FROM sessions ORDER BY last_seq DESC LIMIT 1")
    async with stage.db.connection() as conn:
        run = await run_state.session_of_newest_success(conn)
        chat = await run_state.session_of_newest_chat(conn)
    [grant] = await _column(stage, "SELECT grant_id FROM automations ORDER BY id LIMIT 1")
    deep = {
        table: cursor_of(await _middle(stage, table)) for table in ("automations", run_state.RUNS, "approvals", "audit")
    }
    news = cursor_of(
        (await _column(stage, "SELECT latest_id FROM notifications ORDER BY latest_id OFFSET 1000 LIMIT 1"))[0]
    )
    one, busiest = f"{ROOT}/automations/{slugs[-1]}", f"{ROOT}/automations/{slugs[0]}"
    settings = (
        "me",
        "members",
        "tokens",
        "credentials",
        "grants",
        "accounts",
        "audit",
    )
    return {
        "automations": f"{ROOT}/automations",
        "automations, deep": f"{ROOT}/automations?cursor={deep['automations']}",
        "automations, searched": f"{ROOT}/automations?q=automation+77",
        "automations, searched in vain": f"{ROOT}/automations?q=nobodyiscalledso",
        "automations, paused": f"{ROOT}/automations?status=paused",
        "automations, needing attention": f"{ROOT}/automations?status=attention",
        "automations, deleted": f"{ROOT}/automations?status=deleted",
        "palette": f"{ROOT}/find?q=automation+77",
        "new automation": f"{ROOT}/automations/new",
        "one automation": one,
        "one automation, calendar and usage": f"{one}?view=calendar",
        "one automation, one day": f"{one}?day={datetime.now(UTC) - timedelta(days=9):%Y-%m-%d}",
        "one automation, why": f"{one}?at={datetime.now(UTC) - timedelta(days=9):%Y-%m-%dT09:00}",
        "the busiest automation": busiest,
        "the busiest automation, calendar and usage": f"{busiest}?view=calendar",
        "editor": f"{one}/edit",
        "runs": f"{ROOT}/runs",
        "runs, deep": f"{ROOT}/runs?cursor={deep[run_state.RUNS]}",
        **{f"runs, {status}": f"{ROOT}/runs?status={status}" for status in ("failed", "skipped", "succeeded", "running", "queued", "cancelled")},
        "conversations": f"{ROOT}/sessions",
        "goals": f"{ROOT}/sessions?kind=background",
        "goals, paused": f"{ROOT}/sessions?kind=background&status=paused",
        "sessions of automations": f"{ROOT}/sessions?kind=automation",
        "session": f"{ROOT}/sessions/{run}",
        "session, a conversation": f"{ROOT}/sessions/{chat}",
        "session of 100,000 events": f"{ROOT}/sessions/{talk}",
        "session of 100,000 events, an earlier part": f"{ROOT}/sessions/{talk}?before=50000",
        "approvals": f"{ROOT}/approvals",
        "approvals, approved": f"{ROOT}/approvals?status=approved",
        "approvals, approved, deep": f"{ROOT}/approvals?status=approved&cursor={deep['approvals']}",
        "approvals, expired": f"{ROOT}/approvals?status=expired",
        "notifications": f"{ROOT}/notifications",
        "notifications, deep": f"{ROOT}/notifications?cursor={news}",
        "notifications, unread": f"{ROOT}/notifications?unread=true",
        "notification choices": f"{ROOT}/notifications/choices",
        "fleet": f"{ROOT}/fleet",
        **{f"settings, {each}": f"{ROOT}/settings/{each}" for each in settings},
        "settings, one member": f"{ROOT}/settings/members/{stage.caller.user_id}",
        "settings, every grant": f"{ROOT}/settings/grants?shown=all",
        "settings, one grant": f"{ROOT}/settings/grants/{grant}",
        "settings, audit, deep": f"{ROOT}/settings/audit?cursor={deep['audit']}",
        "settings, audit, of one thing": f"{ROOT}/settings/audit?object_kind=automation&object_id=77",
        "settings, audit, of one action": f"{ROOT}/settings/audit?action=automation.pause",
        "settings, audit, refused": f"{ROOT}/settings/audit?refused=true",
        "sign in": "/sign-in",
        "not found": f"{ROOT}/automations/none",
    }  # fmt: skip


async def _column(stage: Stage, query: str) -> list[Any]:
    async with stage.db.connection() as conn:
        return [row[0] for row in await (await conn.execute(query.encode())).fetchall()]


async def _middle(stage: Stage, table: str) -> UUID:
    """An id with about as many rows before it as after it."""
    [found] = await _column(
        stage, f"SELECT id FROM {table} ORDER BY id OFFSET (SELECT count(*) / 2 FROM {table}) LIMIT 1"
    )
    return UUID(str(found))


async def _seen(browser: AsyncClient, path: str, times: int) -> Seen:
    seen = Seen([], [], [], 0)
    for at in range(times + WARMING):
        with _statements() as asked:
            began, worked = time.perf_counter(), time.process_time()
            answer = await browser.get(path)
            took, worked = time.perf_counter() - began, time.process_time() - worked
        if answer.status_code != (404 if path.endswith("/none") else 200):
            raise AssertionError(f"{path} answered {answer.status_code}")
        if at >= WARMING:
            for figures, value in ((seen.took, took), (seen.worked, worked), (seen.asked, sum(asked))):
                figures.append(value * 1000)
            seen = seen._replace(statements=len(asked))
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
