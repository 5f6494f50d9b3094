"""No request reads more rows than it needs: all its statements, under the API's role, planned for any values.

The plans come from auto_explain while every address of `bench.addresses` is requested once, so that a new query or a new
filter cannot be left out.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
import pytest_asyncio
from bench import stock
from bench.addresses import EXEMPT, addresses, find_objects, routes
from bench.stage import Stage, furnished
from psycopg import sql
from psycopg.errors import Diagnostic, InsufficientPrivilege

from rota.access import signing_in
from rota.db import approvals, credentials, isolation, tasks, triggers
from rota.db.pool import Connection, Database
from rota.model.ids import RunId
from support.api_client import UNKNOWN, Api, Site, opened
from support.api_routes import WRITES, send

pytestmark = pytest.mark.asyncio(loop_scope="module")

AUTOMATIONS, RUNS, BUSIEST = 1_000, 10_000, 2_000
MANY = 200  # rows of a table that is not small any more
MOST_READ = 700  # rows of one table by one statement; a page shows up to a hundred
# Not in a comparison of rows, which is an index condition by its first column.
KEY_IN_FILTER = re.compile(r"(?<!, )\b(id|latest_id|seq|revision|subject_id)\)? (=|<|>|<=|>=) (?!\(hashed)")

# Written by hand, one by one, and so never many.
FEW = ["accounts", "agents", "credentials", "members", "users"]

SIZES = """
SELECT c.relname, c.reltuples::integer FROM pg_class c
 WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.reltuples > %s AND c.relname <> ALL(%s)
"""

# For every session of the database.
SETTINGS = {
    "plan_cache_mode": "force_generic_plan", "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0", "auto_explain.log_nested_statements": "on", "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off", "auto_explain.log_format": "json", "auto_explain.log_level": "notice",
}  # fmt: skip

# Statements that may read more, by a part of their text, and why.
MAY_READ_MORE = {
    "s.status = $": "sessions of one status: no index has it, because it changes when a run ends; pages ask for one kind",
    "r.status = $": "the succeeded runs: those that have not ended are newer, and are read first",
    "recent.runs AS amount": "a forecast counts the newest 20 runs of each schedule, and at most 1,000 schedules",
    "t.next_fire_at < $": "a forecast looks at up to 1,001 schedules",
    "FROM usage_spans u": "a day has 96 sums for each account and unit, and a page shows a month",
    "FROM snapshots WHERE taken_at >= $": "a day has 1,440 snapshots of each machine",
    "unnest($1::timestamptz[], $2::uuid[], $3::uuid[]) AS span": "lateness reads up to a bound for each stretch of time",
    "FROM ready_runs WHERE workspace_id = $1 LIMIT": "the queue is counted up to a bound",
    "AND grant_id = $2 AND automation_id = $3": "the runs of a grant are counted up to 1,000",
    "LIMIT $3) held) AS automations": "what a member holds is counted up to 1,000 of each",
    "sum(missed_count) AS missed": "a calendar counts an automation's runs up to a bound",
    "n.name ILIKE": "a search reads the names of all automations, from an index of names",
    "(a.name ILIKE": "a search reads the names of all automations, from an index of names",
    "-- Ends runs that are queued": "of an agent, which may have any number of live runs; the id is an index condition too",
    "-- What waits under grants that were just revoked": "it looks for them among all live runs, once for a revocation",
    "CARRY_TO_AUTOMATIONS": "a change of an agent changes each of its automations",
    "-- What waits or runs on a grant": "the page before a revocation looks where the revocation will",
    "-- Running time and number of the workspace's newest runs": "a chart adds up to 20,000 runs",
    "-- Also those that are paused or deleted": "pausing a workspace locks all of its automations",
    "-- The schedules of active automations that are not due": "resuming a workspace sets all of its schedules",
    "WITH raised AS": "a change of an agent changes each of its automations",
}


class Plan(NamedTuple):
    address: str
    statement: str
    root: dict[str, Any]

    def scans(self, tables: dict[str, int]) -> Iterator[dict[str, Any]]:
        """The nodes that read one of these tables."""
        yield from (each for each in _nodes(self.root) if each.get("Relation Name") in tables)

    def faults(self, tables: dict[str, int]) -> set[str]:
        """What is wrong with it: too many rows, a table read from end to end, or a key that is only a filter."""
        faults, rows = set(), dict.fromkeys(tables, 0.0)
        for scan in self.scans(tables):
            table = scan["Relation Name"]
            rows[table] += _rows_read(scan)
            if scan["Node Type"] == "Seq Scan" and _rows_read(scan) > MANY:
                faults.add(f"reads {table} from end to end")
            if KEY_IN_FILTER.search(scan.get("Filter", "")):
                faults.add(f"looks in {table} by {scan.get('Index Cond')}, and only then for {scan['Filter']}")
        return faults | {f"reads more than {MOST_READ} rows of {table}" for table in rows if rows[table] > MOST_READ}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)


def _rows_read(scan: dict[str, Any]) -> float:
    dismissed = sum(scan.get(kind, 0) for kind in ("Rows Removed by Filter", "Rows Removed by Index Recheck"))
    return float((scan["Actual Rows"] + dismissed) * scan["Actual Loops"])


@dataclass
class Recorder:
    """The plans of all statements that the connections of a pool carry out."""

    address: str = ""
    plans: list[Plan] = field(default_factory=list)

    def hear(self, notice: Diagnostic) -> None:
        _, found, plan = str(notice.message_primary).partition("plan:")
        if found:
            given = json.loads(plan)
            self.plans.append(Plan(self.address, " ".join(given["Query Text"].split()), given["Plan"]))

    def attach(self, patch: pytest.MonkeyPatch) -> None:
        prepare = Database._prepare

        async def prepare_and_listen(db: Database, conn: Connection) -> None:
            await prepare(db, conn)
            conn.add_notice_handler(self.hear)

        patch.setattr(Database, "_prepare", prepare_and_listen)


class Requests(NamedTuple):
    """What was requested, how it was answered, and with which plans."""

    site: Site
    addresses: dict[str, str]
    answers: dict[str, int]
    plans: list[Plan]
    tables: dict[str, int]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def requests(database_of_module: str) -> AsyncIterator[Requests]:
    """Every address requested once, of a workspace with enough in it that PostgreSQL prefers its indexes."""
    async with furnished(database_of_module) as stage:
        await stage.fill(AUTOMATIONS, datetime.now(UTC) + timedelta(days=1), tidy=False)
        await stock.fill(stage, automations=AUTOMATIONS, runs=RUNS, busiest=BUSIEST)
        asked_for = {}
        recorder = Recorder()
        tables = _explain_everything(database_of_module)
        with pytest.MonkeyPatch.context() as patch:
            recorder.attach(patch)
            async with opened(database_of_module) as site, site.client() as browser:
                asked_for = await addresses(site.app, stage)
                async with stage.db.transaction() as conn:
                    link = await signing_in.create_link(conn, stage.caller.user_id)
                await browser.post("/sign-in", data={"link": link})
                answers = {}
                for recorder.address, path in asked_for.items():
                    answers[recorder.address] = (await browser.get(path)).status_code
                await _change_everything(recorder, site, stage)
                await _ask_as_desks_do(recorder, site, stage)
                yield Requests(site, asked_for, answers, recorder.plans, tables)


async def _change_everything(recorder: Recorder, site: Site, stage: Stage) -> None:
    """Send every change that the API takes, also those that are refused in this workspace."""
    names = await find_objects(stage)
    async with site.db.transaction() as conn:
        _, token = await signing_in.add_token(conn, stage.caller.workspace_id, stage.caller.user_id, "test")
        [trigger] = await (await conn.execute("SELECT id FROM triggers LIMIT 1")).fetchone() or [None]
    api = Api(site.client(), stage.caller.workspace_slug, token)
    names |= {"trigger": trigger, "member": names["user"], "message": 1, "token": UNKNOWN, "login": UNKNOWN}
    for method, path, body in WRITES:
        recorder.address = f"{method} {path}"
        answer = await send(api, method, path.format(**names), body)
        assert answer.status_code < 500, answer.text


async def _ask_as_desks_do(recorder: Recorder, site: Site, stage: Stage) -> None:
    """What the routes of a desk look up about the run of their attempt."""
    recorder.address, workspace_id = "a desk", stage.caller.workspace_id
    async with isolation.in_workspace(site.db, workspace_id) as conn:
        row = await (await conn.execute("SELECT id FROM taken_runs WHERE leased LIMIT 1")).fetchone()
        assert row
        run_id = RunId(row[0])
        assert await approvals.asking(conn, workspace_id, run_id, 1)
        assert await tasks.standing(conn, workspace_id, run_id)
        assert await credentials.given(conn, workspace_id, run_id) == []
        assert await credentials.resolve(conn, workspace_id, run_id, 1)
        assert await triggers.event_circle(conn, workspace_id, run_id, "rain") == []


def _explain_everything(url: str) -> dict[str, int]:
    """From now on each new session is told its plans. Returns how many rows are in each table that is not small."""
    with psycopg.connect(url, autocommit=True) as conn:
        try:
            for name, value in SETTINGS.items():
                database, setting = sql.Identifier(conn.info.dbname), sql.SQL(name)
                conn.execute(sql.SQL("ALTER DATABASE {} SET {} = {}").format(database, setting, value))
        except InsufficientPrivilege:
            pytest.skip("only a superuser can have PostgreSQL tell the plans of other roles")
        return dict(conn.execute(SIZES, [MANY, FEW]).fetchall())


async def test_every_address_is_answered(requests: Requests) -> None:
    unanswered = {name: status for name, status in requests.answers.items() if status != 200}
    assert unanswered == {"/settings": 303}  # to its first section


async def test_every_route_that_reads_is_requested(requests: Requests) -> None:
    """A new route gets an address by itself, unless it is one of `EXEMPT`."""
    paths = {path.partition("?")[0] for path in requests.addresses.values()}
    missed = {route.path for route in routes(requests.site.app) if not any(map(route.path_regex.fullmatch, paths))}
    assert {path for path in missed if not path.startswith(tuple(EXEMPT))} == set()


async def test_the_requests_work_under_the_role_of_the_api(requests: Requests) -> None:
    assert requests.site.db.api_role is not None


async def test_no_request_reads_more_than_it_needs(requests: Requests) -> None:
    faults: dict[tuple[str, str], set[str]] = {}
    for plan in requests.plans:
        if not any(part in plan.statement for part in MAY_READ_MORE):
            for fault in plan.faults(requests.tables):
                faults.setdefault((plan.statement, fault), set()).add(plan.address)
    assert not faults, "\n".join(f"{min(at)} {fault}: {sql[:600]}" for (sql, fault), at in faults.items())


async def test_every_exception_is_needed(requests: Requests) -> None:
    """An exception whose statement is gone, or reads no more than others, is to be deleted."""
    at_fault = {plan.statement for plan in requests.plans if plan.faults(requests.tables)}
    assert {part for part in MAY_READ_MORE if not any(part in statement for statement in at_fault)} == set()
