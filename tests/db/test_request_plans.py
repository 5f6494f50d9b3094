"""No request reads more rows than it needs: every statement of it, under the API's role, with plans for any values."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
import pytest
import pytest_asyncio
from httpx import ASGITransport, AsyncClient
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic

from bench import stage, stock
from bench.addresses import EXEMPT, addresses, routes
from rota.access import signing_in
from rota.db import isolation
from rota.db.pool import Connection, Database
from support import api_client
from support.api_client import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

AUTOMATIONS, RUNS, BUSIEST = 2_000, 20_000, 2_000
GROWING = {
    "abandonments", "accounts", "agents", "approvals", "artifacts", "audit", "automations", "checkpoints", "contents",
    "credentials", "deliveries", "events", "former_credentials", "grants", "held_words", "imported_parts", "live_runs",
    "logins", "members", "memory", "notification_outbox", "notifications", "ready_runs", "reservations", "revisions",
    "runs", "session_roles", "sessions", "snapshots", "start_keys", "task_dependencies", "tasks", "tokens", "triggers",
    "usage", "usage_spans", "users", "workspaces", "write_keys",
}  # fmt: skip
MOST_READ = 500  # rows of one table by one statement; a page shows up to a hundred

# For every session of the database.
SETTINGS = {
    "plan_cache_mode": "force_generic_plan", "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0", "auto_explain.log_nested_statements": "on", "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off", "auto_explain.log_format": "json", "auto_explain.log_level": "notice",
}  # fmt: skip


class Plan(NamedTuple):
    address: str
    statement: str
    root: dict[str, Any]


@dataclass
class Recorder:
    """The plans of all statements that the pool of a database has carried out."""

    address: str = ""
    plans: list[Plan] = field(default_factory=list)

    def hear(self, notice: Diagnostic) -> None:
        told = json.loads(str(notice.message_primary).partition("plan:")[2])
        self.plans.append(Plan(self.address, told["Query Text"], told["Plan"]))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(database_of_module: str) -> AsyncIterator[Site]:
    """A workspace with as much in it as the planner needs to tell a list from a table."""
    if conninfo_to_dict(database_of_module)["user"] is None:
        pytest.skip("")
    async with stage._open(database_of_module, "command") as furnished:
        await furnished.fill(AUTOMATIONS, stage_time(), tidy=False)
        await stock.fill(furnished, automations=AUTOMATIONS, runs=RUNS, busiest=BUSIEST)
    async with api_client.opened(database_of_module) as site:
        yield site


def stage_time():
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) + timedelta(days=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorded(site: Site) -> list[Plan]:
    recorder = Recorder()
    prepare = Database._prepare

    async def listen(self, conn: Connection) -> None:
        await prepare(self, conn)
        conn.add_notice_handler(recorder.hear)

    with psycopg.connect(site.database_url, autocommit=True) as admin:
        for name, value in SETTINGS.items():
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET {name} = '{value}'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "_prepare", listen)
        async with api_client.opened(site.database_url) as observed:
            stage_ = type("S", (), {"db": site.db})()
            async with observed.db.connection() as conn:
                assert await isolation.role_of(observed.db, conn)
            async with site.db.transaction() as conn:
                [user] = await (await conn.execute("SELECT user_id FROM members WHERE level = 'admin' LIMIT 1")).fetchone()
                link = await signing_in.create_link(conn, user)
            async with observed.client() as browser:
                await browser.post("/sign-in", data={"link": link})
                for name, path in (await addresses(observed.app, stage_)).items():
                    recorder.address = name; print(name, flush=True)
                    answer = await browser.get(path)
                    if answer.status_code != 200:
                        print("!!", name, answer.status_code, answer.text[:200])
    return recorder.plans


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def read(plan: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes(plan):
        if node.get("Relation Name") in GROWING and "Scan" in node["Node Type"]:
            removed = sum(node.get(kind, 0) for kind in ("Rows Removed by Filter", "Rows Removed by Index Recheck"))
            rows = (node["Actual Rows"] + removed) * node["Actual Loops"]
            found[node["Relation Name"]] = found.get(node["Relation Name"], 0) + int(rows)
    return found


KEYS = r"\b(?:id|latest_id|seq|revision|user_id|session_id|run_id|automation_id|agent_id|subject_id|grant_id|account_id|key|day|taken_at)\)? (?:=|<|>|<=|>=) "


async def test_all(recorded: list[Plan]) -> None:
    seen = {}
    for address, statement, root in recorded:
        much = {t: n for t, n in read(root).items() if n > MOST_READ}
        seq = {
            n["Relation Name"] for n in nodes(root) if n["Node Type"] == "Seq Scan" and n["Relation Name"] in GROWING
        }
        keys = [
            (n["Relation Name"], n.get("Index Cond", ""), n["Filter"])
            for n in nodes(root)
            if n.get("Relation Name") in GROWING and re.search(KEYS, n.get("Filter", ""))
        ]
        if much or seq or keys:
            e = seen.setdefault(statement, ([], {}, set(), {}))
            e[0].append(address)
            e[1].update(much)
            e[2].update(seq)
            for k in keys:
                e[3][k[0] + k[2]] = k
    for s, (a, m, q, k) in seen.items():
        print("=" * 100)
        print(" ".join(s.split())[:700])
        print("AT", len(a), a[:4])
        print("READ", m, "SEQ", q)
        for v in k.values():
            print("KEY", v)
    print(len(recorded), len({p.statement for p in recorded}))
