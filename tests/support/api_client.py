"""The API for tests: one application for a module, a workspace of its own for each test, callers of every level."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest_asyncio
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

from rota.access import signing_in
from rota.access.vault import Vault
from rota.daemon import bind
from rota.db import people
from rota.db.listener import CANCELS, Listener, Wakes
from rota.db.pool import Database
from rota.http.app import create_app
from rota.http.context import Web
from rota.http.server import create_server
from rota.model.caller import Level
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.ids import RunId, UserId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from rota.roster import agents
from rota.roster.first_start import settle_in
from rota.settings import Settings
from rota.trace.record import Recorder
from rota.worker.worker import Worker
from support.databases import database
from support.house import House
from support.run_state import from_now
from support.waiting import until

HOUR = timedelta(hours=1)
COOKIE = "rota_80_login"  # of http://rota.test
DAILY = {"cron": "0 9 * * *", "timezone": "UTC"}
UNKNOWN = "01a1e0db-2cd9-7826-809d-0931e0e98709"

WAITING_FOR_A_LOCK = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""

_numbers = count(1)


@dataclass(frozen=True)
class Site:
    """The application and what it stands on."""

    web: Web
    app: FastAPI
    database_url: str

    @property
    def db(self) -> Database:
        return self.web.db

    def client(self, **options: Any) -> AsyncClient:
        transport = ASGITransport(self.app, raise_app_exceptions=options.pop("raise_app_exceptions", True))
        return AsyncClient(transport=transport, base_url="http://rota.test", **options)

    async def waiting_for_a_lock(self, wanted: int) -> None:
        """Wait until so many requests wait for something that somebody else holds."""

        async def check() -> bool:
            async with self.db.connection() as conn:
                row = await (await conn.execute(WAITING_FOR_A_LOCK)).fetchone()
            return row == (wanted,)

        await until(check)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Site]:
    db, listener = Database(url, size=20), Listener(url)
    await db.open()
    wakes = Wakes(db, listener)
    listening = asyncio.create_task(listener.run())
    with tempfile.TemporaryDirectory(prefix="rota-test-") as home:
        web = Web(
            db, wakes, listener, Settings(home=Path(home), allowed_hosts=("rota.test",)), Vault({"k1": bytes(32)})
        )
        yield Site(web, create_app(web), url)
    web.closing.set()
    await wakes.close()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(server_url: str, template: str) -> AsyncIterator[Site]:
    """A database takes longer to make than most tests take, so the tests of a module share one."""
    for url in database(server_url, template):
        async with opened(url) as site:
            yield site


class Api:
    """One caller's way to one workspace."""

    def __init__(self, client: AsyncClient, workspace: str, token: str) -> None:
        self.client, self.workspace, self.token = client, workspace, token

    def url(self, path: str) -> str:
        return f"/api/v1/workspaces/{self.workspace}{path}"

    async def send(self, method: str, path: str, **options: Any) -> Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        if (key := options.pop("key", None)) is not None:
            headers["Idempotency-Key"] = key
        return await self.client.request(method, self.url(path), headers=headers, **options)

    async def get(self, path: str, **params: Any) -> Response:
        return await self.send("GET", path, params=params)

    async def pages(self, path: str, limit: int) -> list[dict[str, Any]]:
        """All items of a list, page by page, each full but the last."""
        items: list[dict[str, Any]] = []
        given: dict[str, Any] = {"limit": limit}
        while True:
            page = assert_ok(await self.get(path, **given), 200)
            items += page["items"]
            assert len(items) < 1000, "this list has no end"
            if page["next_cursor"] is None:
                return items
            assert len(page["items"]) == limit
            given["cursor"] = page["next_cursor"]

    async def post(self, path: str, json: Any = None, **options: Any) -> Response:
        return await self.send("POST", path, json=json, **options)

    async def patch(self, path: str, json: Any, **options: Any) -> Response:
        return await self.send("PATCH", path, json=json, **options)

    async def delete(self, path: str, **options: Any) -> Response:
        return await self.send("DELETE", path, **options)


@dataclass(frozen=True)
class AtWork:
    """A run that was claimed, what its agent was given, and how it will end."""

    assignment: Assignment
    desk: Desk
    outcome: "asyncio.Future[Outcome]"

    @property
    def id(self) -> RunId:
        return self.assignment.run_id

    @property
    def token(self) -> str:
        return self.assignment.environment["ROTA_TOKEN"]


class Waiting:
    """An executor whose agents wait for the test to say how they end."""

    kind = "command"
    resumes = True

    def __init__(self, at_work: "asyncio.Queue[AtWork]") -> None:
        self._at_work = at_work

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        begun = AtWork(assignment, desk, asyncio.get_running_loop().create_future())
        self._at_work.put_nowait(begun)
        return await begun.outcome

    async def abandon(self, lost: LostAttempt) -> None:
        pass


class Office(House):
    """A workspace with an admin and an agent, reached through the API; and what its workers do, by hand."""

    def __init__(self, site: Site, *args: Any) -> None:
        super().__init__(*args)
        self.site = site
        self.pool = self.caller.workspace_slug  # of its own, so that no test claims another's runs
        self._at_work: asyncio.Queue[AtWork] = asyncio.Queue()
        self._hired: Worker | None = None

    async def api(self, level: str = "admin") -> Api:
        """Somebody of this level: the admin, or a new member."""
        user_id = self.caller.user_id if level == "admin" else await self.member(level)
        async with self.db.transaction() as conn:
            _, token = await signing_in.add_token(conn, self.caller.workspace_id, user_id, "test")
        return Api(self.site.client(), self.caller.workspace_slug, token)

    async def member(self, level: str) -> UserId:
        user_id = UserId(new_id())
        async with self.db.transaction() as conn:
            await people.add_user(conn, user_id, f"A {level}")
            await people.add_member(conn, self.caller.workspace_id, user_id, Level(level))
        return user_id

    async def work(self) -> None:
        """Have one more run taken by a worker."""
        worker = self._hired = self._hired or self._hire()
        worker.places = len(worker.attempts) + 1
        worker._hear("")  # it listens to nobody: look everywhere
        await worker.once()

    async def claim(self) -> "AtWork":
        """The next run of this workspace, as a worker takes it."""
        await self.work()
        async with asyncio.timeout(60):
            return await self._at_work.get()

    async def settle(self, at_work: "AtWork", outcome: Outcome | None = None) -> None:
        """Let the agent end so, and wait until it is written."""
        at_work.outcome.set_result(outcome or Succeeded("Done."))
        await until(lambda: self.has_runs(1, id=at_work.id, lease_until=None))

    async def take_away(self, what: str, at_work: "AtWork") -> None:
        """End the hold of an attempt on its run: its lease, its number, or its grant, revoked or by its time."""
        match what:
            case "lease":
                await self.set_run(at_work.id, lease_until=from_now(seconds=-1))
            case "attempt":
                await self.set_run(at_work.id, attempt=at_work.assignment.attempt + 1)
            case "grant" | "time of grant":
                column = {"grant": "revoked_at", "time of grant": "expires_at"}[what]
                grant_id = (await self.run(at_work.id))["grant_id"]
                await self.execute(f"UPDATE grants SET {column} = now() WHERE id = %s", grant_id)
            case _:
                raise AssertionError(f"an attempt does not hold a {what}")

    async def fail(self, at_work: "AtWork") -> None:
        await self.settle(at_work, Failed(ErrorClass.AGENT_ERROR, "The tap was closed.", retryable=False))

    def _hire(self) -> Worker:
        web = self.site.web
        executor = Waiting(self._at_work)
        return Worker(
            web.db, web.wakes, Recorder(web.db, web.wakes), {"command": executor}, url="http://rota.test",
            home=Path("/nowhere"), pools=[self.pool], lease=HOUR, vault=web.vault,
        )  # fmt: skip

    def hear_cancels(self) -> None:
        """Let the worker stop the agents of runs that are to be cancelled."""
        assert self._hired, "nothing was claimed yet"
        self.site.web.listener.on(CANCELS, self._hired.cancel)

    async def leave(self) -> None:
        if self._hired:
            await self._hired.drain(timedelta(seconds=0.01), asyncio.Event())

    async def count(self, *tables: str) -> dict[str, int]:
        """How many rows these tables hold, for showing that a refusal left nothing behind."""
        counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
        return dict(zip(tables, await self.value(f"SELECT ARRAY[{counts}]"), strict=True))


async def furnish(site: Site) -> Office:
    """Another workspace."""
    slug = f"w{next(_numbers)}"
    async with site.db.transaction() as conn:
        caller = (await settle_in(conn, slug)).caller
        values = {"name": "Worker bee", "executor": "command", "config": {"argv": ["true"]}, "pool": slug}
        await agents.create(conn, caller, values)
    return Office(site, site.db, caller)


@pytest_asyncio.fixture(loop_scope="module")
async def office(site: Site) -> AsyncIterator[Office]:
    furnished = await furnish(site)
    yield furnished
    await furnished.leave()


@pytest_asyncio.fixture(loop_scope="module")
async def api(office: Office) -> Api:
    """The admin."""
    return await office.api()


@asynccontextmanager
async def serving(site: Site, port: int = 0) -> AsyncIterator[str]:
    """The address of a real server of this application."""
    with bind("127.0.0.1", port) as listening:
        server = create_server(site.app, site.web.settings)
        running = asyncio.create_task(server._serve(sockets=[listening]))

        async def started() -> bool:
            return server.started

        await until(started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            site.web.closing.set()
            server.should_exit = True
            await running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(site: Site) -> AsyncIterator[str]:
    """The same application behind a real server: httpx keeps back what an application in its own process streams."""
    async with serving(site) as address:
        yield address


def example(**values: Any) -> dict[str, Any]:
    """An automation as somebody would write it."""
    return {"name": "Morning digest", "agent": "worker-bee", "prompt": "Summarise my inbox", **values}


def assert_refused(answer: Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    """The problem that an answer tells: its status, its stable code and the field, in the one form all refusals have."""
    told: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, told["status"], told["code"], told.get("field")) == (status, status, code, field), told
    assert told["title"]
    assert told["detail"]
    return told


def assert_ok(answer: Response, status: int = 201) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told
