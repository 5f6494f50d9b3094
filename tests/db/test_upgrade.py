"""A house that is lived in since the first schema: every migration finds rows, none loses one, and the house works on.

`lived_in/` has a file for each migration behind which Rota began to write something new: rows as that Rota wrote them.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rota.db import migrate as chain
from rota.db.migrate import Migration, migrate, migrations
from rota.model.executor import Assignment, Desk
from rota.model.outcome import Outcome, Succeeded
from rota.model.webhook import sign
from rota.scheduler.tick import Scheduler
from rota.trace.record import Recorder
from rota.watch.rescue import Rescue
from rota.worker.worker import Worker
from support import run_state
from support.api_client import COOKIE, Api, Site, assert_ok, opened
from support.databases import database, owned_database
from support.live_run_tables import astray, count_rows, find_live_runs
from support.lived_in import KNOWN, LIVED_IN, Rows, rows
from support.run_state import PRESENT, Run
from support.running_worker import at_work
from support.scripted_executor import Scripted
from support.waiting import until

# Tables that came before anybody wrote into them, with the migration since which somebody does.
FILLED_SINCE = {"session_roles": 9, "deliveries": 9}

# Columns that a migration changes or takes out, by its number and their table. All others stay as they were written.
CHANGED = {
    (16, "tokens"): {"scopes"},
    (44, "grants"): {"scopes"},
    (35, "live_runs"): {"queue", "ready_at", "leased", "status", "pool", "executor"},
}

SCHEMA_OF_THE_BACKUP = 11

TOKEN, LOGIN = "rota_of_the_first_days", "login-of-the-first-days"
SIGNED_WITH = "whsec_YXMgdGhlIGZpcnN0IFJvdGEgc2VhbGVk"


@dataclass(frozen=True)
class Step:
    """One migration: the rows that it found, those that it left, and those of the life after it."""

    migration: Migration
    found: Rows
    left: Rows
    lived: Rows


@dataclass(frozen=True)
class Story:
    url: str
    steps: list[Step]


async def live_through(url: str, whole: list[Migration]) -> list[Step]:
    """Bring an empty database as far as that, one migration at a time, with life in between."""
    steps = []
    chain.newest()  # is looked up once, so before the chain is cut
    with psycopg.connect(url, autocommit=True) as conn, pytest.MonkeyPatch.context() as patch:
        conn.execute(KNOWN)
        lived = rows(conn)
        for each in whole:
            patch.setattr(chain, "migrations", lambda each=each: whole[: each.number])
            assert await migrate(url) == [each.name]
            found, left = lived, rows(conn)
            if (life := LIVED_IN / f"{each.number:04}_{each.name}.sql").exists():
                conn.execute(life.read_bytes())
            lived = rows(conn)
            steps.append(Step(each, found, left, lived))
    return steps


@pytest.fixture(scope="module")
def story(server_url: str) -> Iterator[Story]:
    """Its owner is no superuser, so that row-level security holds for migrations too."""
    for url in owned_database(server_url, "CREATEROLE"):
        yield Story(url, asyncio.run(live_through(url, migrations())))


@pytest.fixture
def database_url(server_url: str, story: Story) -> Iterator[str]:
    """The house as it stands behind the newest migration, a copy for each test."""
    owner = {name: conninfo_to_dict(story.url)[name] for name in ("user", "password")}
    for url in database(server_url, str(conninfo_to_dict(story.url)["dbname"])):
        yield make_conninfo(url, **owner)


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    async with opened(database_url) as site:
        yield site


@pytest.fixture
def api(site: Site) -> Api:
    """The admin, by a token of the first days."""
    return Api(site.client(), "default", TOKEN)


async def values(site: Site, query: str) -> list[tuple[Any, ...]]:
    async with site.db.connection() as conn:
        await conn.execute("SET search_path = public, known")
        return await (await conn.execute(query.encode())).fetchall()


async def unlike(site: Site) -> list[Any]:
    async with site.db.connection() as conn:
        return await astray(conn)


async def live_runs(site: Site) -> list[dict[str, Any]]:
    async with site.db.connection() as conn:
        return await find_live_runs(conn)


async def find_runs(site: Site, **where: Any) -> list[Run]:
    async with site.db.connection() as conn:
        return await run_state.find_runs(conn, **where)


async def find_run(site: Site, **where: Any) -> Run:
    return run_state.only(await find_runs(site, **where))


async def named(site: Site, name: str) -> UUID:
    found: UUID
    [(found,)] = await values(site, f"SELECT id('{name}')")
    return found


# ── The migrations ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_table_held_rows_when_the_next_migration_came(story: Story) -> None:
    for step in story.steps:
        number, name = step.migration.number, step.migration.name
        empty = [table for table, held in step.lived.items() if not held and FILLED_SINCE.get(table, 0) <= number]
        assert not empty, f"give these tables rows in {LIVED_IN.name}/{number:04}_{name}.sql: {empty}"


def test_every_life_is_that_of_a_migration() -> None:
    known = {f"{each.number:04}_{each.name}.sql" for each in migrations()}
    assert {file.name for file in LIVED_IN.iterdir()} <= known


def test_no_migration_loses_or_changes_what_it_does_not_say(story: Story) -> None:
    for step in story.steps:
        for table, found in step.found.items():
            changed = CHANGED.get((step.migration.number, table), set())
            assert stays(step.left[table], found, changed) == stays(found, found, changed), (step.migration.name, table)


def stays(held: list[dict[str, Any]], found: list[dict[str, Any]], changed: set[str]) -> list[str]:
    """The rows with those columns that were found, but for those that were to change."""
    columns = sorted(set().union(*found) - changed)
    return sorted(json.dumps([row.get(column, "gone") for column in columns]) for row in held)


async def test_what_migrations_fill_in_by_themselves_is_right(site: Site) -> None:
    assert await values(site, "SELECT recorded = amount, amount FROM usage") == [(True, 1200)]
    assert await values(site, "SELECT DISTINCT key_id FROM webhook_secrets") == [("k1",)]
    assert await values(site, "SELECT scopes FROM tokens") == [(["read", "run", "write", "admin"],)]
    assert await values(site, "SELECT count(DISTINCT id), min(idle)::text FROM logins") == [(2, "7 days")]
    wide = "SELECT id = id('grant of weekday'), scopes[1] = 'agent:run:' || id('reader') FROM grants WHERE scopes[2] = 'workspace:read'"
    assert await values(site, wide) == [(True, True)]
    assert await values(site, "SELECT DISTINCT cardinality(scopes) FROM grants ORDER BY 1") == [(1,), (2,)]
    [(made_for,)] = await values(
        site, "SELECT count(*) FROM grants g JOIN automations a ON a.id = g.automation_id AND a.grant_id = g.id"
    )
    assert [(made_for,)] == await values(site, "SELECT count(*) FROM automations")
    admitted = await values(site, "SELECT name, admitted_by = id('house') FROM users ORDER BY name")
    assert admitted == [("Ann", True), ("Ben", True), ("Cem", None), ("Local admin", None)]


async def test_the_mirror_of_live_runs_holds_what_the_ledger_says(site: Site) -> None:
    assert await unlike(site) == []
    async with site.db.connection() as conn:
        assert await count_rows(conn) == {"live_runs": 9, "ready_runs": 5, "taken_runs": 3}


async def test_an_old_backup_restored_under_another_owner_is_brought_up_with_all_its_rows(server_url: str) -> None:
    """Its row-level security lets the former owner see them, whom the new one is not."""
    owners = contextmanager(owned_database)
    with owners(server_url, "CREATEROLE") as heir, owners(server_url, "CREATEROLE") as former:
        await live_through(former, migrations()[:SCHEMA_OF_THE_BACKUP])
        name, restored = (
            conninfo_to_dict(former)["user"],
            make_conninfo(heir, dbname=conninfo_to_dict(former)["dbname"]),
        )
        with psycopg.connect(make_conninfo(server_url, dbname=str(name)), autocommit=True) as conn:
            conn.execute(f"REASSIGN OWNED BY {name} TO {conninfo_to_dict(heir)['user']}".encode())
            await migrate(restored)
            assert conn.execute("SELECT recorded = amount FROM usage").fetchall() == [(True,)]
        async with opened(restored) as site:
            assert await unlike(site) == []
            assert len(await live_runs(site)) == 8


# ── The house behind them ────────────────────────────────────────────────────────────────────────────────────────


async def test_all_that_lives_is_brought_to_its_end(site: Site, api: Api, tmp_path: Path) -> None:
    """What waits is claimed and what waits for its lane follows; what was lost is rescued, what was asked is answered."""
    given: list[Assignment] = []

    async def work(assignment: Assignment, _: Desk) -> Outcome:
        given.append(assignment)
        return Succeeded("Done.")

    async def at_rest() -> bool:
        return [run["id"] for run in await live_runs(site)] == [await named(site, "later")]

    web = site.web
    recorder = Recorder(web.db, web.wakes)
    worker = Worker(web.db, web.wakes, recorder, {"command": Scripted(work)}, url="http://rota.test", home=tmp_path)
    async with at_work(worker, recorder, web.listener):
        await Rescue(web.db, web.wakes).once()
        assert_ok(await api.post(f"/approvals/{await named(site, 'approval of parked')}", {"answer": "approve"}), 200)
        await until(at_rest)
    assert await unlike(site) == []
    names = ("ready", "waiting", "running", "parked", "asking", "planning", "turn", "next")
    ended = {name: (await find_run(site, id=await named(site, name))) for name in names}
    assert {run["status"] for run in ended.values()} == {"succeeded"}
    assert await values(site, "SELECT status, count(*) FROM tasks GROUP BY 1") == [("done", 2)]
    assert ended["waiting"]["started_at"] >= ended["ready"]["finished_at"]
    parked = await named(site, "parked")
    [resumed] = [each for each in given if each.run_id == parked]
    assert resumed.checkpoint == b"half way"
    assert resumed.answer
    assert resumed.answer.approved


async def test_a_trigger_of_the_first_days_fires(site: Site) -> None:
    await Scheduler(site.db, site.web.wakes).once()
    [*_, fired] = await find_runs(site, automation_id=await named(site, "digest"), slot=PRESENT)
    assert fired["slot"] > datetime(2026, 6, 2, tzinfo=UTC)
    assert (fired["status"], fired["source"], fired["agent_id"]) == ("queued", "schedule", await named(site, "bee"))
    assert await values(site, "SELECT next_fire_at > now() FROM triggers WHERE automation_id = id('digest')") == [
        (True,)
    ]
    assert await unlike(site) == []


async def test_a_webhook_is_signed_with_the_secret_it_always_had(site: Site) -> None:
    now = str(int(time.time()))
    headers = {"webhook-id": "one", "webhook-timestamp": now, "webhook-signature": sign(SIGNED_WITH, "one", now, b"{}")}
    url = f"/hooks/{await named(site, 'webhook of mail')}"
    assert_ok(await site.client().post(url, content=b"{}", headers=headers), 202)
    mail = await named(site, "mail")
    assert sum(run["lane"] == mail and run["waits"] for run in await live_runs(site)) == 2


LISTS = {
    "/automations": 8, "/automations/report/runs": 3, "/automations/report/revisions": 1, "/automations/report/memory": 1,
    "/runs": 14, "/agents": 4, "/agents/bee/runs": 11, "/grants": 11, "/accounts": 1, "/credentials": 1, "/tokens": 1, "/members": 3,
    "/approvals": 2, "/notifications": 1, "/audit": 1, "/workers": 1, "/snapshots": 1,
}  # fmt: skip


async def test_the_admin_reads_all_that_was_written(site: Site, api: Api) -> None:
    found = {path: len(assert_ok(await api.get(path), 200)["items"]) for path in LISTS}
    assert found == LISTS


SESSIONS = ("session of succeeded", "session of failed", "session of parked", "goal", "chat", "imported")
ROOMS = ("", "/events", "/transcript", "/tasks", "/roles", "/messages", "/artifacts", "/export")


async def test_the_admin_reads_every_kind_of_session(site: Site, api: Api) -> None:
    for name in SESSIONS:
        session_id = await named(site, name)
        answers = {room: (await api.get(f"/sessions/{session_id}{room}")).status_code for room in ROOMS}
        assert answers == dict.fromkeys(ROOMS, 200), name


PAGES = (
    "/automations", "/automations/report", "/automations/diary/edit", "/runs", "/sessions", "/agents", "/agents/bee", "/approvals",
    "/notifications", "/fleet", "/settings/grants", "/settings/accounts", "/settings/credentials", "/settings/tokens",
    "/settings/members", "/settings/audit", "/settings/me",
)  # fmt: skip


async def test_the_admin_is_still_signed_in_and_sees_every_page(site: Site) -> None:
    async with site.client(cookies={COOKIE: LOGIN}, headers={"Accept": "text/html"}) as browser:
        paths = [*PAGES, *[f"/sessions/{await named(site, name)}" for name in SESSIONS]]
        answers = {path: (await browser.get(f"/w/default{path}")).status_code for path in paths}
    assert answers == dict.fromkeys(paths, 200)
