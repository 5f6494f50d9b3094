"""As much stored as a busy house has after half a year: written set by set, with the indexes built afterwards."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection

from bench import run_state
from bench.stage import Stage
from rota.watch.tally import Tally

FILLED = ("sessions", run_state.RUNS, "usage", "events", "approvals", "notifications", "audit", "artifacts", "grants")
SPOKEN = 100_000  # events of the session that has said most

# How PostgreSQL would make what is dropped for the filling again: indexes, then keys, then what refers to them.
KEYS = """
SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', conrelid::regclass, conname),
       format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', conrelid::regclass, conname, pg_get_constraintdef(oid))
  FROM pg_constraint
 WHERE (conrelid = ANY(%(tables)s::regclass[]) AND contype IN ('p', 'u', 'f'))
    OR (confrelid = ANY(%(tables)s::regclass[]) AND contype = 'f')
ORDER BY contype = 'f' DESC, conname
"""
INDEXES = """
SELECT format('DROP INDEX %%s', i.indexrelid::regclass), pg_get_indexdef(i.indexrelid)
  FROM pg_index i
 WHERE i.indrelid = ANY(%(tables)s::regclass[])
   AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)
"""

# An id begins with the milliseconds of its making, so those of the past get ids of the past.
ID = """
CREATE FUNCTION pg_temp.id_at(moment timestamptz, salt text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '7' || substr(md5(salt), 1, 3)
            || '8' || substr(md5(salt), 4, 15))::uuid
$$
"""

GRANTS = """
INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, created_at, automation_id)
SELECT g.workspace_id, pg_temp.id_at(now() - interval '180 days', a.id::text), g.user_id, g.account_id, g.scopes,
       now() - interval '180 days', a.id
  FROM automations a JOIN grants g ON g.workspace_id = a.workspace_id AND g.id = a.grant_id
"""
HOLD = """
UPDATE automations SET grant_id = pg_temp.id_at(now() - interval '180 days', id::text), created_at = now() - interval '180 days',
       status = CASE WHEN hashtext(id::text) % 20 = 0 THEN 'paused' ELSE 'active' END,
       failures = CASE WHEN hashtext(id::text) % 100 = 7 THEN 3 ELSE 0 END
"""
# Every automation in turn. The first of them fires far more often than the others, and its additional runs share one session.
PLANNED = """
CREATE TEMPORARY TABLE planned AS
WITH listed AS (SELECT a.*, t.id AS trigger_id, row_number() OVER (ORDER BY a.id) AS n
                  FROM automations a JOIN triggers t ON t.workspace_id = a.workspace_id AND t.automation_id = a.id)
SELECT a.workspace_id, a.id AS automation_id, a.trigger_id, a.agent_id, a.owner_id, a.grant_id, g.account_id, made.n, made.at, made.luck,
       pg_temp.id_at(made.at, 'r' || made.n) AS run_id,
       CASE WHEN made.luck BETWEEN 1 AND 29 THEN NULL
            WHEN made.n > %(runs)s THEN pg_temp.id_at(now() - interval '180 days', 'same')
            ELSE pg_temp.id_at(made.at, 's' || made.n) END AS session_id
  FROM (SELECT n, now() - interval '180 days' * CASE WHEN n > %(runs)s THEN (n - %(runs)s) / %(busiest)s::float8 - 1e-9
                                                       ELSE n / %(runs)s::float8 END AS at,
               ('x' || substr(md5(n::text), 1, 4))::bit(16)::int % 1000 AS luck
          FROM generate_series(1, %(runs)s + %(busiest)s) AS n) made
       JOIN listed a ON a.n = CASE WHEN made.n > %(runs)s THEN 1 ELSE 1 + made.n % %(automations)s END
       JOIN grants g ON g.workspace_id = a.workspace_id AND g.automation_id = a.id
"""
SESSIONS = """
INSERT INTO sessions (workspace_id, id, kind, status, origin, automation_id, agent_id, owner_id, last_seq, created_at)
SELECT workspace_id, session_id, 'automation', CASE WHEN luck = 0 THEN 'failed' ELSE 'done' END, 'schedule', automation_id, agent_id,
       owner_id, 3, at FROM planned
 WHERE session_id IS NOT NULL AND n <= %(runs)s
UNION ALL
(SELECT workspace_id, session_id, 'automation', 'active', 'schedule', automation_id, agent_id, owner_id, %(busiest)s, at FROM planned
  WHERE session_id IS NOT NULL AND n > %(runs)s LIMIT 1)
UNION ALL
SELECT workspace_id, pg_temp.id_at(at, 'c' || n), CASE WHEN n % 2000 = 0 THEN 'background' ELSE 'interactive' END, 'done', 'user',
       NULL, agent_id, owner_id, 0, at FROM planned WHERE n % 500 = 0
"""
SHARED = """
UPDATE automations a SET session = 'same', session_id = p.session_id
  FROM (SELECT * FROM planned WHERE session_id IS NOT NULL AND n > %(runs)s LIMIT 1) p
 WHERE a.workspace_id = p.workspace_id AND a.id = p.automation_id
"""
USAGE = """
INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id)
SELECT workspace_id, run_id, 1, unit, amount, account_id
  FROM planned, (VALUES ('tokens', 1800), ('money', 0.02)) AS spent(unit, amount) WHERE session_id IS NOT NULL
"""
EVENTS = """
INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data, created_at)
SELECT workspace_id, session_id, seq, kind, run_id, 1, data::jsonb, at
  FROM planned, (VALUES (1, 'run', '{"status": "running"}'), (2, 'output', '{"text": "All is **well**."}'),
                        (3, 'run', '{"status": "succeeded"}')) AS said(seq, kind, data)
 WHERE session_id IS NOT NULL AND n <= %(runs)s AND at > now() - interval '90 days'
 UNION ALL
SELECT workspace_id, session_id, n - %(runs)s, 'output', run_id, 1, '{"text": "All is **well**."}', at
  FROM planned WHERE session_id IS NOT NULL AND n > %(runs)s
"""
SPEECH = """
WITH busiest AS (
    UPDATE sessions s SET last_seq = %(spoken)s FROM (SELECT * FROM planned WHERE session_id IS NOT NULL AND n <= %(runs)s ORDER BY at LIMIT 1) p
     WHERE s.workspace_id = p.workspace_id AND s.id = p.session_id RETURNING p.*)
INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data, created_at)
SELECT b.workspace_id, b.session_id, m, CASE WHEN m % 5 = 0 THEN 'tool' WHEN m % 17 = 0 THEN 'message' ELSE 'output' END, b.run_id, 1,
       CASE WHEN m % 5 = 0 THEN '{"name": "search", "query": "something"}'
            WHEN m % 17 = 0 THEN '{"from": "planner", "to": "judge", "body": "Have a look."}'
            ELSE '{"text": "Some **words** of an agent."}' END::jsonb, b.at
  FROM busiest b, generate_series(1, %(spoken)s) AS m
"""
LEFT = """
INSERT INTO artifacts (workspace_id, id, session_id, run_id, attempt, name, media_type, uri)
SELECT workspace_id, pg_temp.id_at(at, 'f' || n), session_id, run_id, 1, 'Pull request', 'text/html', 'https://example.com/' || n
  FROM planned WHERE n % 20 = 0 AND session_id IS NOT NULL
"""
APPROVALS = """
INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, status, option_id, answered_by, created_at,
                       expires_at, answered_at)
SELECT workspace_id, pg_temp.id_at(at, 'a' || n), run_id, session_id, 1, 'May I send it to everybody?',
       '[{"id": "approve", "label": "Approve", "approves": true}, {"id": "refuse", "label": "Refuse", "approves": false}]',
       'approved', 'approve', owner_id, at, at + interval '1 day', at + interval '1 minute'
  FROM planned WHERE n % 20 = 0 AND session_id IS NOT NULL
"""
NOTIFICATIONS = """
INSERT INTO notifications (workspace_id, user_id, id, latest_id, kind, subject_id, automation_id, run_id, session_id, about, detail,
                           created_at, updated_at, read_at)
SELECT workspace_id, owner_id, pg_temp.id_at(at, 'n' || n), pg_temp.id_at(at, 'n' || n), 'run_failed', run_id, automation_id, run_id,
       session_id, 'Automation', 'It did not go well.', at, at, CASE WHEN n % 40 = 0 THEN NULL ELSE at END
  FROM planned WHERE n % 20 = 0
"""
AUDIT = """
INSERT INTO audit (workspace_id, id, user_id, action, object_kind, object_id, status, before, after, created_at)
SELECT workspace_id, pg_temp.id_at(at, 'l' || n), owner_id, 'automation.pause', 'automation', automation_id::text, 200,
       '{"status": "active"}', '{"status": "paused"}', at
  FROM planned WHERE n % 5 = 0
"""
SNAPSHOTS = """
INSERT INTO snapshots (id, taken_at, host, workers, sessions, running, queued, cpu_percent, memory_mb)
SELECT gen_random_uuid(), now() - interval '1 minute' * (n / 3), 'h' || n % 3, 3, 3, 3, n % 40, 20, 900 FROM generate_series(1, 30240) AS n
"""
WORKERS = """
INSERT INTO workers (id, host, pid, places, busy, kinds, pools, at_work)
SELECT 'h' || n % 3 || '-' || n, 'h' || n % 3, n, 5, n % 6, '{command,python}', '{default}', '[]' FROM generate_series(1, 30) AS n
"""
MEMORY = """
INSERT INTO memory (workspace_id, automation_id, key, value)
SELECT workspace_id, id, 'seen-' || n, '{"at": "2026-01-01", "count": 12}' FROM automations, generate_series(1, 5) AS n
"""
# Each message of the session that has said most, to two roles.
DELIVERIES = """
INSERT INTO deliveries (workspace_id, session_id, seq, role, acked_at)
SELECT workspace_id, session_id, seq, role, CASE WHEN seq < %(spoken)s / 2 THEN created_at END
  FROM events, (VALUES ('agent'), ('user')) AS each(role) WHERE kind = 'message'
"""
REFUSALS = """
INSERT INTO audit (workspace_id, id, user_id, action, object_kind, status, code, created_at)
SELECT workspace_id, pg_temp.id_at(at, 'e' || n), owner_id, 'agent.create', 'agent', 403, 'forbidden', at FROM planned WHERE n % 100000 = 0
"""
# A goal with many tasks.
GOAL = """
WITH goal AS (
    SELECT s.* FROM sessions s WHERE s.kind = 'background' ORDER BY s.id DESC LIMIT 1),
marked AS (
    UPDATE sessions s SET has_tasks = true FROM goal WHERE s.workspace_id = goal.workspace_id AND s.id = goal.id),
role AS (
    INSERT INTO session_roles (workspace_id, session_id, name, agent_id, grant_id)
    SELECT goal.workspace_id, goal.id, 'planner', goal.agent_id, (SELECT id FROM grants LIMIT 1) FROM goal
 RETURNING workspace_id, session_id, name)
INSERT INTO tasks (workspace_id, session_id, id, key, role, status, unmet, prompt, timeout, batch, finished_at)
SELECT workspace_id, session_id, pg_temp.id_at(now(), 't' || n), 'task-' || n, name, 'skipped', 0, 'Do it.', interval '1 hour', session_id, now()
  FROM role, generate_series(1, %(tasks)s) AS n
"""
# Agents that never ran, people, tokens, accounts and credentials. A sealed value begins with the length and the name of its key.
OTHERS = """
INSERT INTO agents (workspace_id, id, slug, name, executor, config, created_by)
SELECT workspace_id, pg_temp.id_at(now(), 'g' || n), 'idle-' || n, 'Idle ' || n, 'command', config, created_by
  FROM (SELECT * FROM agents ORDER BY id LIMIT 1) one, generate_series(1, %(others)s) AS n;
INSERT INTO users (id, name) SELECT pg_temp.id_at(now(), 'u' || n), 'Person ' || n FROM generate_series(1, %(others)s) AS n;
INSERT INTO members (workspace_id, user_id, level) SELECT w.id, u.id, 'member' FROM workspaces w, users u WHERE u.name LIKE 'Person %';
INSERT INTO tokens (workspace_id, id, user_id, name, secret_hash, scopes, revoked_at)
SELECT workspace_id, pg_temp.id_at(now(), 'k' || n), user_id, 'Token ' || n, decode(md5('k' || n), 'hex'), '{read}',
       CASE WHEN n % 50 > 0 THEN now() END
  FROM (SELECT * FROM members WHERE level = 'admin' LIMIT 1) one, generate_series(1, 10 * %(others)s) AS n;
INSERT INTO accounts (workspace_id, id, name) SELECT id, pg_temp.id_at(now(), 'b' || n), 'Account ' || n
  FROM workspaces, generate_series(1, %(others)s) AS n;
INSERT INTO credentials (workspace_id, id, name, sealed, created_by)
SELECT workspace_id, pg_temp.id_at(now(), 'v' || n), 'key-' || n, '\\x026b31ffffffff'::bytea, user_id
  FROM (SELECT * FROM members WHERE level = 'admin' LIMIT 1) one, generate_series(1, %(others)s) AS n
"""
STATEMENTS = (
    GRANTS, HOLD, PLANNED, SESSIONS, SHARED, run_state.FILL, USAGE, EVENTS, SPEECH, LEFT, APPROVALS, NOTIFICATIONS, AUDIT, REFUSALS, DELIVERIES,
    GOAL, SNAPSHOTS, WORKERS, MEMORY, *OTHERS.split(";"),
)  # fmt: skip


async def fill(stage: Stage, *, automations: int, runs: int, busiest: int) -> None:
    """The first automation has `busiest` runs more than the others, in one session."""
    given = {
        "automations": automations, "runs": runs, "busiest": busiest, "spoken": min(SPOKEN, 5 * busiest),
        "live": busiest // 2, "tasks": busiest // 4, "others": 300,
    }  # fmt: skip
    # A connection of its own: those of the pool hang up on a statement that takes half a minute.
    async with await AsyncConnection.connect(stage.url, autocommit=True) as conn:
        for setting in ("synchronous_commit = off", "maintenance_work_mem = '256MB'", "work_mem = '128MB'"):
            await conn.execute(f"SET {setting}".encode())
        async with conn.transaction(), _bare(conn, FILLED):  # one: what it calls now stays the same
            await conn.execute(ID)
            for each in STATEMENTS:
                await conn.execute(_filled_in(each, given))
        async with conn.transaction():  # with its indexes and triggers, which keep the tables of live runs
            await conn.execute(_filled_in(run_state.FILL_LIVE, given))
        await conn.execute("VACUUM (ANALYZE, PARALLEL 2)")
        await _tallied(stage)
        await conn.execute("VACUUM ANALYZE usage_spans")


async def _tallied(stage: Stage) -> None:
    """As `watch` would have done in all that time."""
    keeper = Tally(stage.db)
    while not await keeper.once():
        pass


def _filled_in(statement: str, given: dict[str, int]) -> bytes:
    for name, value in given.items():
        statement = statement.replace(f"%({name})s", str(value))
    return statement.encode()


@asynccontextmanager
async def _bare(conn: AsyncConnection[Any], tables: Sequence[str]) -> AsyncIterator[None]:
    """Without keys and indexes, which are built anew at the end: far quicker than to keep them row by row."""
    keys = await (await conn.execute(KEYS, {"tables": list(tables)})).fetchall()
    indexes = await (await conn.execute(INDEXES, {"tables": list(tables)})).fetchall()
    for drop, _ in (*keys, *indexes):
        await conn.execute(drop.encode())
    yield
    for _, make in (*indexes, *reversed(keys)):
        await conn.execute(make.encode())
