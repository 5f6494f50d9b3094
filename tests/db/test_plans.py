"""Every hot query reads what it needs by an index, also as a generic plan, with 30,000 rows stored."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InsufficientPrivilege, UndefinedFile
from psycopg.pq import ExecStatus

from rota.db import (
    aftermath,
    attempts,
    audit,
    automations,
    budgets,
    directories,
    events,
    grants,
    people,
    pruning,
    queues,
    runs,
    sessions,
    tallies,
    triggers,
)
from rota.db.pool import PLAN_ONCE, Connection, Database, Reserved
from rota.db.run_status import claiming, ending, lanes, settling, starting
from rota.model.caller import Caller
from rota.model.ids import AutomationId, WorkerId
from rota.roster import running
from rota.worker.queues import Queues
from support import live_run_tables as mirror
from support.databases import database
from support.house import QUEUE, House

# Not taken_runs, which holds as many as there are places.
LARGE = {"workspaces", "triggers", "automations", "runs", "live_runs", "ready_runs", "sessions", "events", "revisions"}
ROWS = 30_000

FILL = f"""
WITH model AS (SELECT * FROM automations LIMIT 1),
others AS (
    INSERT INTO workspaces (id, slug, name) SELECT gen_random_uuid(), 'w' || n, 'W' FROM generate_series(1, {ROWS}) n),
made AS (
    INSERT INTO automations (workspace_id, id, slug, name, agent_id, owner_id, grant_id, prompt)
    SELECT workspace_id, gen_random_uuid(), 'a' || n, 'A', agent_id, owner_id, grant_id, 'p'
      FROM model, generate_series(1, {ROWS}) n
 RETURNING workspace_id, id, agent_id, owner_id, grant_id),
kept AS (
    INSERT INTO revisions (workspace_id, subject_id, revision, spec, created_by)
    SELECT workspace_id, id, 1, '{{}}', owner_id FROM made),
timed AS (
    INSERT INTO triggers (workspace_id, id, automation_id, kind, cron, timezone, anchor_at, next_fire_at)
    SELECT workspace_id, gen_random_uuid(), id, 'cron', '0 * * * *', 'UTC', now(), now() + random() * interval '30 days' FROM made),
opened AS (
    INSERT INTO sessions (workspace_id, id, kind, origin, automation_id, agent_id, owner_id, last_seq)
    SELECT workspace_id, id, 'automation', 'schedule', id, agent_id, owner_id, 1 FROM made
 RETURNING workspace_id, id),
told AS (
    INSERT INTO events (workspace_id, session_id, seq, kind, data) SELECT workspace_id, id, 1, 'run', '{{}}' FROM opened)
INSERT INTO runs (workspace_id, id, automation_id, session_id, agent_id, grant_id, revision, status, source, queue, pool, executor,
                  timeout, trace_id, finished_at, ready_at, lane, attempt, worker_id, lease_until)
SELECT workspace_id, gen_random_uuid(), id, id, agent_id, grant_id, 1,
       CASE WHEN n % 1000 = 1 THEN 'running' WHEN n % 2 = 0 THEN 'queued' ELSE 'succeeded' END, 'schedule', workspace_id, 'default', 'command', '1 hour', 't',
       CASE WHEN n % 1000 <> 1 AND n % 2 = 1 THEN now() END, now(), id, 1, 'w', now() + interval '1 minute'
  FROM (SELECT *, row_number() OVER () AS n FROM made) numbered
"""


class Filled(NamedTuple):
    name: str
    caller: Caller


@pytest.fixture(scope="module")
def filled(database_of_module: str) -> Filled:
    """A database to copy, whose filling takes many times as long."""

    async def furnish() -> Caller:
        async with opened(database_of_module) as db:
            house = await House.build(db)
            await house.automation()
            async with db.connection() as conn:
                await rest(conn)
                await fill(conn)
        return house.caller

    return Filled(str(conninfo_to_dict(database_of_module)["dbname"]), asyncio.run(furnish()))


@pytest.fixture
def url_of_copy(server_url: str, filled: Filled) -> Iterator[str]:
    yield from database(server_url, filled.name)


@pytest.fixture
async def new(url_of_copy: str) -> AsyncIterator[Connection]:
    """Much was stored within the first minute, and PostgreSQL has not looked at it yet."""
    async with opened(url_of_copy) as db, db.connection() as conn:
        yield conn


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    db = Database(url)
    await db.open()
    yield db
    await db.close()


async def rest(conn: Connection) -> None:
    """Nobody looks at the tables by himself."""
    if conn.info.server_version < 160_000:
        pytest.skip("EXPLAIN (GENERIC_PLAN) came with PostgreSQL 16")
    for table in (*LARGE, "taken_runs", "grants", "agents"):
        await conn.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())


async def fill(conn: Connection) -> None:
    conn.patience = 600.0  # it takes longer than anybody else may
    await conn.execute(FILL.encode())


@pytest.fixture
async def stored(new: Connection) -> Connection:
    await new.execute("VACUUM ANALYZE")
    return new


HOT = {
    "the idle pass": triggers.NEXT,
    "what is due": triggers.DUE,
    "an inbound trigger": triggers.INBOUND,
    "advance": triggers.ADVANCE,
    "start": starting.START,
    "hold lanes": lanes.HOLD_LANES,
    "claim": claiming.CLAIM,
    "claim from one": claiming.CLAIM_FROM_ONE,
    "find queues": queues.FIND,
    "what runs for capped agents": queues.RUNNING,
    "settle": settling.SETTLE,
    "succeed": settling.SUCCEED,
    "promote": lanes.PROMOTE,
    "lost leases": settling.LEASE_ENDED,
    "renew": attempts.RENEW,
    "append": events.APPEND,
    "hold an attempt": events.HOLD,
    "hold an attempt alone": events.HOLD_ALONE,
    "what runs with a budget have spent": budgets.SPENT,
    "the months they draw on": budgets.HOLD_MONTHS,
    "what is spent of these": budgets.MONTHS,
    "an event": events.FIND,
    "the newest events": events.TAIL,
    "pages of events": events.PAGES,
    "what was said before": events.EARLIER,
    "who is concerned": aftermath.CONCERNED,
    "who failed before": aftermath.HOLD_FAILING,
    "a run": runs.FIND,
    "the ledger": runs.LIST + " AND r.automation_id = %(automation_id)s ORDER BY r.id DESC LIMIT %(limit)s",
    "runs of an agent": f"{runs.LIST} AND {runs.OF_AGENT} ORDER BY {runs.BY_AGENT} DESC LIMIT %(limit)s",
    "the last runs of agents": runs.LATEST_OF_AGENTS,
    "runs of a workspace": runs.LIST + " ORDER BY r.id DESC LIMIT %(limit)s",
    "automations": automations.SHOWN + " AND a.id < %(before)s ORDER BY a.id DESC LIMIT %(limit)s",
    "sessions": sessions.SHOWN + " AND s.id < %(before)s ORDER BY s.id DESC LIMIT %(limit)s",
    "automations of an owner": automations.SHOWN
    + f" AND {automations.OF_OWNER} AND a.id < %(before)s ORDER BY {automations.BY_OWNER} DESC LIMIT %(limit)s",
    "runs of an owner": runs.LIST_OF_OWNER[None],
    "runs of an owner that succeeded": runs.LIST_OF_OWNER["succeeded"],
    "sessions of an owner": sessions.SHOWN
    + f" AND {sessions.OF_OWNER} AND s.id < %(before)s ORDER BY {sessions.BY_OWNER} DESC LIMIT %(limit)s",
    "sessions of an agent": sessions.SHOWN
    + f" AND {sessions.OF_AGENT} AND s.id < %(before)s ORDER BY {sessions.BY_AGENT} DESC LIMIT %(limit)s",
    "an origin": sessions.ORIGIN,
    "slugs that are taken": automations.TAKEN,
    "how far usage is summed up": tallies.STANDINGS,
    "how late runs were": runs.LATENESS,
    "a workspace": people.FIND_WORKSPACE,
    "who asks": people.MEMBERSHIP,
    "runs that are old enough": pruning.OLD_RUNS,
    "runs that nothing needs": pruning.RUNS,
    "sessions that let their directory go": directories.LET_GO,
    **{f"the {kind} that is changed": table.look for kind, table in audit.TABLES.items()},
}

# These read the first or last rows of a workspace; whom an end concerns, the first run that waits in one that is capped.
LISTS = {
    "runs of a workspace", "automations", "sessions", "how late runs were", "how far usage is summed up", "who is concerned",
}  # fmt: skip

ONLY_WHO_IS_CONCERNED = {
    "live_runs_waiting_for_lane", "automations_failing_or_deleted", "triggers_after", "sessions_with_tasks",
    "ready_runs_in_order", "workspaces_pkey",
}  # fmt: skip


async def test_every_hot_query_finds_its_rows_by_an_index(stored: Connection) -> None:
    scans = {name: found for name, query in HOT.items() if (found := await scanned(stored, query))}
    assert scans == {}
    for query in (triggers.NEXT, triggers.DUE):
        assert "triggers_due" in await indexes(stored, query)
    assert "ready_runs_in_order" in await indexes(stored, claiming.CLAIM)
    assert "automations_of_owner" in await indexes(stored, HOT["automations of an owner"])
    assert "sessions_of_agent" in await indexes(stored, HOT["sessions of an agent"])
    assert "sessions_of_owner" in await indexes(stored, HOT["sessions of an owner"])
    for query in runs.LIST_OF_OWNER.values():
        assert {"automations_of_owner", "runs_of_automation", "runs_of_person"} <= await indexes(stored, query)
    for query in (HOT["runs of an agent"], runs.LATEST_OF_AGENTS):
        assert "runs_of_agent" in await indexes(stored, query)
    assert await indexes(stored, aftermath.CONCERNED) == ONLY_WHO_IS_CONCERNED
    assert await indexes(stored, aftermath.HOLD_FAILING) == {"automations_failing_or_deleted"}
    for query in (lanes.PROMOTE, lanes.FREE_LANES):  # the one session of an automation has had every run of it
        assert "runs_of_session" not in await indexes(stored, query)


async def test_what_is_looked_for_by_its_id_is_not_looked_for_in_its_whole_workspace(new: Connection) -> None:
    """Before its first look PostgreSQL takes a workspace for a handful of rows."""
    wide = {name: found for name, query in HOT.items() if name not in LISTS and (found := await across(new, query))}
    assert wide == {}


async def test_a_worker_that_plans_while_there_is_nearly_nothing_looks_by_id_too(house: House) -> None:
    """It keeps these plans until it has written a hundred runs, and the next until a thousand."""
    async with house.db.connection() as conn:
        await rest(conn)
        await house.automation()
        await conn.execute(PLAN_ONCE)
        at_work = (
            "claim", "claim from one", "settle", "who failed before", "succeed", "renew", "hold an attempt", "append",
        )  # fmt: skip
        assert {name: found for name in at_work if (found := await across(conn, HOT[name]))} == {}


async def across(conn: Connection, query: str) -> list[str]:
    """The indexes of large tables that are read from a workspace's first row to its last."""
    return [
        node["Index Name"]
        for node in nodes(await plan(conn, query))
        if node.get("Relation Name") in LARGE and re.fullmatch(r"\(workspace_id = [^()]*\)", node.get("Index Cond", ""))
    ]


READ = """
SELECT sum(idx_tup_read)::integer FROM pg_stat_user_indexes WHERE relname IN ('runs', 'live_runs', 'ready_runs', 'taken_runs', 'sessions', 'revisions')
"""


async def test_a_line_that_planned_for_nearly_nothing_plans_anew_once_it_has_written_much(house: House) -> None:
    async with house.db.connection() as conn:
        await rest(conn)
    automation_id = await house.automation()
    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, AutomationId(automation_id))
    line, queues = Reserved(house.db), Queues(("default",), ("command",))

    async def read_by_claiming(count: int) -> int:
        async with line.connection() as conn:
            await queues.look(conn)
            before = await _read_so_far(conn)
            found = await queues.to_read(conn, count)
            hashes = [bytes(32)] * count
            claimed, _ = await claiming.claim(
                conn, WorkerId("w"), queues=found, places=count, lease=timedelta(minutes=1), token_hashes=hashes
            )
            assert len(claimed) == count
            line.wrote(count)
            return await _read_so_far(conn) - before

    await read_by_claiming(1)
    async with house.db.connection() as conn:
        await fill(conn)
    await read_by_claiming(100)
    assert await read_by_claiming(100) < 5_000
    await line.close()


async def _read_so_far(conn: Connection) -> int:
    await conn.execute("SELECT pg_stat_force_next_flush()")
    await conn.execute("SELECT pg_stat_clear_snapshot()")
    row = await (await conn.execute(READ)).fetchone()
    assert row
    return int(row[0])


WAITING = 5_000
A_HUNDRED = "WHERE id = ANY(ARRAY(SELECT id FROM runs WHERE finished_at IS NULL LIMIT 100))"
CHANGES = (
    f"UPDATE runs SET status = 'running', attempt = 1, worker_id = 'w', lease_until = now() + interval '1 hour' {A_HUNDRED}",
    f"UPDATE runs SET lease_until = now() + interval '2 hours' {A_HUNDRED}",
    f"UPDATE runs SET status = 'succeeded', finished_at = now(), lease_until = NULL {A_HUNDRED}",
    f"UPDATE runs SET ready_at = ready_at + interval '1 second' {A_HUNDRED}",
    f"UPDATE runs SET status = 'skipped', skip_reason = 'paused', finished_at = now() {A_HUNDRED}",
    f"DELETE FROM runs {A_HUNDRED}",
)
TELL_PLANS = """
SELECT set_config('auto_explain.' || name, given, false)
  FROM (VALUES ('log_min_duration', '0'), ('log_nested_statements', 'on'), ('log_analyze', 'on'), ('log_timing', 'off'),
               ('log_format', 'json'), ('log_level', 'notice')) AS settings(name, given)
"""


async def test_who_changes_a_hundred_runs_looks_at_no_other(house: House) -> None:
    """PostgreSQL looked when nobody waited, and takes live_runs for empty however long it has become since."""
    await house.automation()
    async with house.db.connection() as conn:
        await rest(conn)
        await conn.execute(QUEUE, {"count": 1})
        await conn.execute("DELETE FROM runs")
        await conn.execute("VACUUM ANALYZE live_runs, ready_runs, taken_runs")
        await conn.execute(QUEUE, {"count": WAITING})
        told = await plans_told(conn)
        for change in CHANGES:
            await conn.execute(change.encode())
        mirrored = [found for found in told if written_by(found) & set(mirror.MIRRORED)]
        assert set().union(*map(written_by, mirrored)) == set(mirror.MIRRORED)
        assert max(dismissed(found) for found in mirrored) <= 100
        by = {node["Index Name"] for found in mirrored for node in nodes(found) if "Index Name" in node}
        assert by == {"live_runs_pkey", "ready_runs_pkey", "taken_runs_pkey", "runs_pkey"}


MANY_GRANTS = f"""
INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, revoked_at)
SELECT workspace_id, gen_random_uuid(), user_id, account_id, scopes, CASE WHEN n <= 3 THEN now() END
  FROM (SELECT * FROM grants LIMIT 1) model, generate_series(1, {ROWS}) n
"""
RARE = (
    "UPDATE sessions SET origin = 'import' WHERE id IN (SELECT id FROM sessions LIMIT 3)",
    "UPDATE sessions SET kind = 'background', status = 'draft' WHERE id IN (SELECT id FROM sessions WHERE origin <> 'import' LIMIT 3)",
    MANY_GRANTS,
    "VACUUM ANALYZE sessions, grants",
)


async def test_a_list_of_the_rare_looks_at_no_other(filled: Filled, stored: Connection) -> None:
    for each in RARE:
        await stored.execute(each.encode())
    workspace_id = filled.caller.workspace_id
    told = await plans_told(stored)
    some: dict[str, Any] = {"before": None, "limit": 51}
    for _ in range(8):  # by then it is planned for any workspace
        assert len(await sessions.page(stored, workspace_id, **some, origin="import")) == 3
        assert len(await sessions.page(stored, workspace_id, **some, origin="webhook")) == 0
        assert len(await sessions.page(stored, workspace_id, **some, status="draft")) == 3
        assert len(await grants.page(stored, workspace_id, **some, status="revoked")) == 3
    assert len(told) == 32
    assert max(map(dismissed, told)) < 10
    told.clear()
    for _ in range(8):
        assert await automations.page(stored, workspace_id, **some, standing="attention") == []
    assert max(read_of(found, "grants") for found in told) < 10  # not those of each automation, nor of each chat


async def test_what_may_still_wait_for_a_place_is_not_looked_up_in_the_ledger(stored: Connection) -> None:
    """However many wait, and however many of them for an agent that runs as many as it may."""
    told = await plans_told(stored)
    for wait in ("start_within = '15 minutes'", "ready_at = now() - interval '1 hour', queue = agent_id"):
        await stored.execute(f"UPDATE runs SET {wait} WHERE status = 'queued'".encode())
        await stored.execute("UPDATE agents SET full_at = now()")
        await stored.execute("VACUUM ANALYZE runs, ready_runs, agents")
        told.clear()
        assert await ending.end_stuck(stored, 200) == []
        assert sum(read_of(found, "runs") for found in told) == 0
        assert sum(read_of(found, "ready_runs") for found in told) == ROWS / 2
    await stored.execute("UPDATE agents SET full_at = now() - interval '1 hour'")
    told.clear()
    assert len(await ending.end_stuck(stored, 200)) == 200
    assert sum(read_of(found, "runs") for found in told) < 2_000


def read_of(found: dict[str, Any], table: str) -> int:
    """Rows of a table that were looked at, meant or not."""
    of = [node for node in nodes(found) if node.get("Relation Name") == table]
    return sum(int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]) for node in of)


async def plans_told(conn: Connection) -> list[dict[str, Any]]:
    """The plans of all that is carried out on this line from now on, also by triggers, with what it came to."""
    try:
        await conn.execute("LOAD 'auto_explain'")
    except (InsufficientPrivilege, UndefinedFile):
        pytest.skip("this PostgreSQL tells nobody of us what its triggers do")
    await conn.execute(TELL_PLANS)
    told: list[dict[str, Any]] = []
    conn.add_notice_handler(
        lambda notice: told.append(json.loads(str(notice.message_primary).partition("plan:")[2])["Plan"])
    )
    return told


def written_by(found: dict[str, Any]) -> set[str]:
    return {node["Relation Name"] for node in nodes(found) if node["Node Type"] == "ModifyTable"}


def dismissed(found: dict[str, Any]) -> int:
    """Rows that were looked at and not meant; joins count each pair."""
    kinds = ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return sum(int(node.get(kind, 0) * node["Actual Loops"]) for node in nodes(found) for kind in kinds)


async def test_a_worker_writes_runs_and_sessions_in_id_order(stored: Connection) -> None:
    """In any other order two workers that share sessions wait for each other: with much stored, and with nothing."""
    await stored.execute(PLAN_ONCE)
    for _ in range(2):
        for query in (claiming.CLAIM, claiming.CLAIM_FROM_ONE, settling.SETTLE):
            found = await plan(stored, query)
            assert drives_writes(found, "sessions") in ("Aggregate: Sorted", "sessions_pkey")
        assert drives_writes(found, "runs") in ("CTE given", "runs_pkey")
        assert [node["Node Type"] for node in nodes(found) if node.get("Subplan Name") == "CTE given"] == ["Sort"]
        found = await plan(stored, settling.SUCCEED)
        assert drives_writes(found, "runs") in ("CTE given", "runs_pkey")
        assert drives_writes(found, "sessions") in ("CTE changed", "sessions_pkey")
        await stored.execute("TRUNCATE runs, live_runs, ready_runs, taken_runs, sessions, events CASCADE")
        await stored.execute("VACUUM ANALYZE runs, live_runs, ready_runs, taken_runs, sessions, events")


def drives_writes(found: dict[str, Any], table: str) -> str:
    """What gives the rows of this table that are written, one after the other."""
    [written] = (
        node["Plans"][0]
        for node in nodes(found)
        if node["Node Type"] == "ModifyTable" and node["Relation Name"] == table
    )
    assert written["Node Type"] == "Nested Loop"
    outer = written["Plans"][0]
    match outer["Node Type"]:
        case "Subquery Scan":
            return f"{outer['Plans'][0]['Node Type']}: {outer['Plans'][0].get('Strategy')}"
        case "CTE Scan":
            return f"CTE {outer['CTE Name']}"
        case _:
            return str(outer.get("Index Name"))


async def plan(conn: Connection, query: str) -> dict[str, Any]:
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"${numbers.setdefault(match[1], len(numbers) + 1)}"

    generic = re.sub(r"%\((\w+)\)s", numbered, query).replace("%%", "%")
    # By the simple protocol: EXPLAIN (GENERIC_PLAN) takes $1 as it stands.
    result = conn.pgconn.exec_(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {_typed(generic, numbers)}".encode())
    assert result.status == ExecStatus.TUPLES_OK, result.error_message.decode()
    return json.loads(result.get_value(0, 0) or b"")[0]["Plan"]  # type: ignore[no-any-return]


def _typed(query: str, numbers: dict[str, int]) -> str:
    """Parameters that stand alone in an expression have no type of their own."""
    kinds = {"lease": "interval", "places": "bigint", "limit": "bigint", "dead_after": "interval", "kept": "interval"}
    for name, number in numbers.items():
        if name in kinds:
            query = re.sub(rf"\${number}\b", f"${number}::{kinds[name]}", query)
    return query


def nodes(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield found
    for each in found.get("Plans", []):
        yield from nodes(each)


async def scanned(conn: Connection, query: str) -> list[str]:
    return [
        node["Relation Name"]
        for node in nodes(await plan(conn, query))
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE
    ]


async def indexes(conn: Connection, query: str) -> set[str]:
    return {node["Index Name"] for node in nodes(await plan(conn, query)) if "Index Name" in node}
