"""Every page's time on the server, with as much stored as a busy house has after some years."""

import secrets
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from httpx import ASGITransport, AsyncClient

from bench.goals import Goal, at_most
from bench.stage import Stage, staged
from rota.access import signing_in
from rota.access.vault import open_vault
from rota.db.listener import Listener
from rota.http.app import create_app
from rota.http.context import Web
from rota.settings import Settings

GOAL_MS = 50.0
BATCH = 50_000
BUSIEST = 20_000  # runs of one automation, which fires far more often than the others

# A run's id begins with the milliseconds of its making, so those of the past get ids of the past.
RUNS = """
WITH listed AS (SELECT a.*, row_number() OVER (ORDER BY a.id) AS n FROM automations a WHERE a.workspace_id = %(workspace_id)s)
INSERT INTO runs (workspace_id, id, automation_id, trigger_id, session_id, agent_id, grant_id, revision, status, source, slot, queue,
                  pool, executor, timeout, queued_at, ready_at, started_at, finished_at, attempt, skip_reason, error_class, summary, trace_id)
SELECT a.workspace_id,
       (lpad(to_hex((extract(epoch FROM made.at) * 1000)::bigint), 12, '0') || '7' || substr(made.hash, 1, 3) || '8' || substr(made.hash, 4, 15))::uuid,
       a.id, t.id, %(session_id)s, a.agent_id, a.grant_id, 1,
       CASE WHEN made.luck = 0 THEN 'failed' WHEN made.luck < 30 THEN 'skipped' ELSE 'succeeded' END, 'schedule', made.at, a.workspace_id,
       'default', 'command', interval '1 hour', made.at, made.at, CASE WHEN made.luck BETWEEN 1 AND 29 THEN NULL ELSE made.at + interval '40 ms' END,
       made.at + interval '2 s', 1, CASE WHEN made.luck BETWEEN 1 AND 29 THEN 'prior_in_flight' END,
       CASE WHEN made.luck = 0 THEN 'agent_error' END, 'All is well, and this is what was said at the end.', md5(made.hash)
  FROM (SELECT n, now() - interval '180 days' * n / %(count)s::float8 AS at, md5(%(salt)s || n) AS hash,
               ('x' || substr(md5(n::text), 1, 4))::bit(16)::int %% 1000 AS luck
          FROM generate_series(%(first)s, %(first)s + %(batch)s - 1) AS n) made
       JOIN listed a ON a.n = CASE WHEN %(one)s THEN 1 ELSE 1 + made.n %% %(automations)s END
       JOIN LATERAL (SELECT id FROM triggers t WHERE t.workspace_id = a.workspace_id AND t.automation_id = a.id LIMIT 1) t ON true
"""
SESSION = """
INSERT INTO sessions (workspace_id, id, kind, origin, automation_id, agent_id, owner_id)
SELECT workspace_id, gen_random_uuid(), 'automation', 'schedule', id, agent_id, owner_id FROM automations WHERE workspace_id = %s LIMIT 1
RETURNING id
"""
# A session that has said much, many others that automations made, some conversations between them, and a long log.
EVENTS = """
INSERT INTO events (workspace_id, session_id, seq, kind, data)
SELECT %(workspace_id)s, %(session_id)s, n, CASE WHEN n % 5 = 0 THEN 'tool' ELSE 'output' END,
       CASE WHEN n % 5 = 0 THEN '{"name": "search", "query": "something"}' ELSE '{"text": "Some **words** of an agent."}' END::jsonb
  FROM generate_series(1, 100000) AS n
"""
SAID = "UPDATE sessions SET last_seq = 100000 WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s"
OTHERS = """
INSERT INTO sessions (workspace_id, id, kind, origin, automation_id, agent_id, owner_id)
SELECT s.workspace_id, gen_random_uuid(), CASE WHEN n % 1000 = 0 THEN 'interactive' ELSE 'automation' END, 'user',
       CASE WHEN n % 1000 = 0 THEN NULL ELSE s.automation_id END, s.agent_id, s.owner_id
  FROM sessions s, generate_series(1, 200000) AS n WHERE s.workspace_id = %(workspace_id)s AND s.id = %(session_id)s
"""
AUDIT = """
INSERT INTO audit (workspace_id, id, user_id, action, object_kind, object_id, status, before, after)
SELECT %(workspace_id)s, gen_random_uuid(), u.id, 'automation.pause', 'automation', n::text, 200, '{"status": "active"}', '{"status": "paused"}'
  FROM (SELECT id FROM users LIMIT 1) u, generate_series(1, 200000) AS n
"""
SNAPSHOTS = """
INSERT INTO snapshots (id, taken_at, host, workers, sessions, running, queued, cpu_percent, memory_mb)
SELECT gen_random_uuid(), now() - interval '1 minute' * n, 'h' || n %% 3, 3, 3, 3, n %% 40, 20, 900 FROM generate_series(1, 30240) AS n
"""


async def measure(*, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    automations, runs = (1_000, 100_000) if quick else (10_000, 1_000_000)
    async with staged() as stage:
        await stage.fill(automations, datetime.now(UTC) + timedelta(days=1), tidy=False)
        async with stage.db.connection() as conn:
            session = await (await conn.execute(SESSION, [stage.caller.workspace_id])).fetchone()
            assert session
            given = {"workspace_id": stage.caller.workspace_id, "session_id": session[0], "automations": automations}
            for salt, count, one in (("many", runs, False), ("one", BUSIEST, True)):
                for first in range(1, count + 1, BATCH):
                    batch = {"first": first, "batch": min(BATCH, count), "count": count, "one": one, "salt": salt}
                    await conn.execute(RUNS, {**given, **batch})
            await conn.execute(SNAPSHOTS.replace("%%", "%"))
            for statement in (EVENTS, SAID, OTHERS, AUDIT):
                await conn.execute(statement.replace("% ", "%% "), given)
        await stage.tidy()
        return await _pages(stage, times=20 if quick else 60, stored=f"{automations:,} automations and {runs:,} runs")


async def _pages(stage: Stage, *, times: int, stored: str) -> tuple[dict[str, Any], list[Goal]]:
    figures: dict[str, Any] = {"stored": stored}
    with tempfile.TemporaryDirectory() as home:
        web = Web(stage.db, stage.wakes, Listener(stage.url), Settings(), open_vault(Path(home)))
        async with AsyncClient(transport=ASGITransport(create_app(web)), base_url="http://rota.test") as browser:
            async with stage.db.transaction() as conn:
                link = await signing_in.create_link(conn, stage.caller.user_id)
            await browser.get("/sign-in", params={"token": link})
            for name, path in (await _addresses(stage)).items():
                figures |= await _timed(browser, name, path, times)
    slowest = max(value for name, value in figures.items() if name.endswith("p95 ms"))
    return figures, [at_most("server time of the slowest page, p95 ms", slowest, GOAL_MS)]


async def _addresses(stage: Stage) -> dict[str, str]:
    async with stage.db.connection() as conn:
        rows = await conn.execute(
            "SELECT slug FROM automations WHERE workspace_id = %s ORDER BY id", [stage.caller.workspace_id]
        )
        slugs = [row[0] for row in await rows.fetchall()]
        session = await (await conn.execute("SELECT id FROM sessions WHERE last_seq > 0 LIMIT 1")).fetchone()
    root, one, busiest = "/w/default", f"/w/default/automations/{slugs[-1]}", f"/w/default/automations/{slugs[0]}"
    return {
        "automations": f"{root}/automations",
        "automations, searched in vain": f"{root}/automations?q={secrets.token_hex(4)}",
        "automations, none needs attention": f"{root}/automations?status=attention",
        "one automation": one,
        "one automation, calendar": f"{one}?view=calendar",
        "the busiest, calendar": f"{busiest}?view=calendar",
        "one automation, why": f"{one}?at=2026-01-01T09:00",
        "editor": f"{one}/edit",
        "runs": f"{root}/runs",
        "runs that failed": f"{root}/runs?status=failed",
        "runs that were cancelled": f"{root}/runs?status=cancelled",
        "session": f"{root}/sessions/{session[0] if session else ''}",
        "fleet": f"{root}/fleet",
        "approvals": f"{root}/approvals",
        "session, an earlier part": f"{root}/sessions/{session[0] if session else ''}?before=50000",
        "conversations": f"{root}/sessions",
        "goals, of which there are none": f"{root}/sessions?kind=background",
        "sessions of automations": f"{root}/sessions?kind=automation",
        "you": f"{root}/settings/me",
        "members": f"{root}/settings/members",
        "a member, with what would end": f"{root}/settings/members/{stage.caller.user_id}",
        "tokens": f"{root}/settings/tokens",
        "credentials": f"{root}/settings/credentials",
        "grants": f"{root}/settings/grants",
        "audit log": f"{root}/settings/audit",
        "audit log, of one thing": f"{root}/settings/audit?object_kind=automation&object_id=77",
    }


async def _timed(browser: AsyncClient, name: str, path: str, times: int) -> dict[str, float]:
    taken = []
    for _ in range(times + 3):
        started = time.perf_counter()
        answer = await browser.get(path)
        taken.append((time.perf_counter() - started) * 1000)
        assert answer.status_code == 200, (path, answer.status_code)
    warm = sorted(taken[3:])
    return {f"{name}, p50 ms": statistics.median(warm), f"{name}, p95 ms": warm[int(len(warm) * 0.95)]}
