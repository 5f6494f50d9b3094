"""Deletes what is older than it is kept, a bounded number of rows at a time."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import orjson

from rota.db.pool import Connection

# As = ANY(ARRAY(…)) each deletes at most so many rows, found by an index of time. What may be renewed is asked again
# outside: PostgreSQL up to the releases of autumn 2025 deletes a row found by its ctid also when it was changed meanwhile.
EVENTS = """
WITH gone AS (
    DELETE FROM events WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM events WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
 RETURNING workspace_id, session_id, seq, kind),
undelivered AS (
    DELETE FROM deliveries d USING gone
     WHERE gone.kind = 'message' AND d.workspace_id = gone.workspace_id AND d.session_id = gone.session_id
       AND d.seq = gone.seq)
SELECT 1 FROM gone
"""
WRITE_KEYS = """
DELETE FROM write_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM write_keys WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
SNAPSHOTS = """
DELETE FROM snapshots WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM snapshots WHERE taken_at < now() - %(kept)s LIMIT %(limit)s))
"""
START_KEYS = """
DELETE FROM start_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM start_keys WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
HELD_WORDS = """
DELETE FROM held_words WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM held_words WHERE held_at < now() - %(kept)s LIMIT %(limit)s)) AND held_at < now() - %(kept)s
"""
RATE_BUCKETS = """
DELETE FROM rate_buckets WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM rate_buckets WHERE filled_at < now() - %(kept)s LIMIT %(limit)s)) AND filled_at < now() - %(kept)s
"""
WORKERS = """
DELETE FROM workers WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM workers WHERE last_seen_at < now() - %(kept)s LIMIT %(limit)s)) AND last_seen_at < now() - %(kept)s
"""
MEMORY = """
DELETE FROM memory WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM memory WHERE expires_at < now() - %(kept)s LIMIT %(limit)s)) AND expires_at < now() - %(kept)s
"""
AUDIT = """
DELETE FROM audit WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM audit WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
NOTIFICATIONS = """
DELETE FROM notifications WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM notifications WHERE updated_at < now() - %(kept)s LIMIT %(limit)s)) AND updated_at < now() - %(kept)s
"""
CHECKPOINTS = """
-- Not where a run may still go on.
DELETE FROM checkpoints WHERE ctid = ANY(ARRAY(
    SELECT c.ctid FROM checkpoints c
     WHERE c.stored_at < now() - %(kept)s
       AND NOT EXISTS (SELECT FROM runs r WHERE r.workspace_id = c.workspace_id AND r.session_id = c.session_id
                          AND r.finished_at IS NULL)
     LIMIT %(limit)s)) AND stored_at < now() - %(kept)s
"""
ABANDONMENTS = """
-- Whose kind nobody has served for so long.
DELETE FROM abandonments WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM abandonments WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""
APPROVALS = """
-- Of runs that have ended: what was asked and answered is part of the transcript.
DELETE FROM approvals WHERE ctid = ANY(ARRAY(
    SELECT a.ctid FROM approvals a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
     WHERE a.created_at < now() - %(kept)s AND r.finished_at < now() - %(kept)s LIMIT %(limit)s))
"""
WEBHOOK_SECRETS = """
-- Which have run out: they were replaced.
DELETE FROM webhook_secrets WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM webhook_secrets WHERE expires_at < now() - %(kept)s LIMIT %(limit)s))
"""
FORMER_CREDENTIALS = """
-- Once nobody is at work who may have been given them.
DELETE FROM former_credentials WHERE ctid = ANY(ARRAY(
    SELECT f.ctid FROM former_credentials f
     WHERE f.replaced_at < now() - %(kept)s
       AND NOT EXISTS (SELECT FROM taken_runs t JOIN runs r ON r.workspace_id = t.workspace_id AND r.id = t.id
                        WHERE t.workspace_id = f.workspace_id AND r.started_at < f.replaced_at + %(kept)s)
     LIMIT %(limit)s))
"""
SIGN_INS = """
WITH links AS (DELETE FROM sign_in_links WHERE expires_at < now()),
on_the_way AS (DELETE FROM oidc_sign_ins WHERE expires_at < now()),
throttled AS (DELETE FROM throttles WHERE greatest(last_at, open_at) < now() - interval '1 day')
DELETE FROM logins WHERE least(expires_at, last_used_at + idle) < now()
"""


# The first id of this instant: ids begin with the milliseconds of their making.
_ID_AT = "rpad(lpad(to_hex(greatest(extract(epoch FROM {}) * 1000, 0)::bigint), 12, '0'), 32, '0')::uuid"
_FIRST = "'00000000-0000-0000-0000-000000000000'::uuid"

OLD_RUNS = f"""
-- The next runs that were made long enough ago, behind the last that was looked at.
SELECT w.id AS workspace_id, r.id, r.session_id
  FROM workspaces w
       CROSS JOIN LATERAL (
           SELECT id, session_id FROM runs
            WHERE workspace_id = w.id AND id < {_ID_AT.format("now() - %(kept)s")}
              AND id > CASE WHEN w.id = %(workspace_id)s THEN %(after)s ELSE {_FIRST} END
         ORDER BY id LIMIT %(limit)s) r
 WHERE w.id >= %(workspace_id)s
ORDER BY w.id, r.id LIMIT %(limit)s
"""  # noqa: S608 — constants of this module, here and below

# A run stays while it is live or has ended lately; the newest of an automation, which pages and the next run refer to; and
# what it has spent until that is summed up and no budget of this month can count it any more, in any time zone.
_STAYS = f"""(
    r.finished_at IS NULL OR r.finished_at >= now() - %(kept)s
    OR r.automation_id IS NOT NULL AND NOT EXISTS (
           SELECT FROM runs n WHERE n.workspace_id = r.workspace_id AND n.automation_id = r.automation_id AND n.id > r.id)
    OR EXISTS (SELECT FROM usage u WHERE u.workspace_id = r.workspace_id AND u.run_id = r.id)
       AND r.id >= least({_ID_AT.format("date_trunc('month', now()) - interval '1 day'")}, coalesce(
               (SELECT {_ID_AT.format("t.until")} FROM usage_tallies t WHERE t.workspace_id = r.workspace_id), {_FIRST})))
"""  # noqa: S608

RUNS = f"""
-- A session that is over goes as a whole, once all its runs are old enough and its events and artifacts are gone. It is locked,
-- so that nobody goes on in it meanwhile, and left for later if somebody has it. Of sessions that go on, and of slots that did
-- not run, runs go one by one; not where tasks are still to be done, since these are given what earlier ones have said.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid, session_id uuid)),
closed AS MATERIALIZED (
    SELECT s.workspace_id, s.id FROM sessions s
     WHERE (s.workspace_id, s.id) IN (SELECT workspace_id, session_id FROM given)
       AND s.status IN ('done', 'failed', 'archived') AND s.imported IS NULL
       AND NOT EXISTS (SELECT FROM automations a
                        WHERE a.workspace_id = s.workspace_id AND a.id = s.automation_id AND a.session_id = s.id)
       AND NOT EXISTS (SELECT FROM events e WHERE e.workspace_id = s.workspace_id AND e.session_id = s.id)
       AND NOT EXISTS (SELECT FROM artifacts f WHERE f.workspace_id = s.workspace_id AND f.session_id = s.id)
       AND NOT EXISTS (SELECT FROM runs r WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id AND {_STAYS})
       FOR UPDATE OF s SKIP LOCKED),
gone AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM closed c JOIN runs r ON r.workspace_id = c.workspace_id AND r.session_id = c.id
     UNION
    SELECT r.workspace_id, r.id
      FROM given g JOIN runs r ON r.workspace_id = g.workspace_id AND r.id = g.id
           LEFT JOIN sessions s ON s.workspace_id = r.workspace_id AND s.id = r.session_id
     WHERE NOT {_STAYS}
       AND (s.id IS NULL OR NOT s.has_tasks AND (
                s.status NOT IN ('done', 'failed', 'archived')
                OR EXISTS (SELECT FROM automations a
                            WHERE a.workspace_id = s.workspace_id AND a.id = s.automation_id AND a.session_id = s.id)))),
spent AS (DELETE FROM usage x USING gone WHERE x.workspace_id = gone.workspace_id AND x.run_id = gone.id),
reserved AS (DELETE FROM reservations x USING gone WHERE x.workspace_id = gone.workspace_id AND x.run_id = gone.id),
asked AS (DELETE FROM approvals x USING gone WHERE x.workspace_id = gone.workspace_id AND x.run_id = gone.id),
lost AS (DELETE FROM abandonments x USING gone WHERE x.workspace_id = gone.workspace_id AND x.run_id = gone.id),
held AS (DELETE FROM held_words x USING gone WHERE x.workspace_id = gone.workspace_id AND x.run_id = gone.id),
left_off AS (DELETE FROM checkpoints x USING closed c WHERE x.workspace_id = c.workspace_id AND x.session_id = c.id),
waited AS (DELETE FROM task_dependencies x USING closed c WHERE x.workspace_id = c.workspace_id AND x.session_id = c.id),
done AS (DELETE FROM tasks x USING closed c WHERE x.workspace_id = c.workspace_id AND x.session_id = c.id),
roles AS (DELETE FROM session_roles x USING closed c WHERE x.workspace_id = c.workspace_id AND x.session_id = c.id),
runs_gone AS (DELETE FROM runs x USING gone WHERE x.workspace_id = gone.workspace_id AND x.id = gone.id RETURNING 1),
sessions_gone AS (DELETE FROM sessions x USING closed c WHERE x.workspace_id = c.workspace_id AND x.id = c.id RETURNING 1)
SELECT (SELECT count(*) FROM runs_gone), (SELECT count(*) FROM sessions_gone)
"""  # noqa: S608

Place = tuple[UUID, UUID]  # a workspace and a run: how far somebody has looked
START = UUID(int=0), UUID(int=0)


async def old_runs(
    conn: Connection, after: Place, kept: timedelta, limit: int
) -> Sequence[tuple[UUID, UUID, UUID | None]]:
    """Workspace, id and session of runs that may be old enough."""
    values = {"workspace_id": after[0], "after": after[1], "kept": kept, "limit": limit}
    return await (await conn.execute(OLD_RUNS.encode(), values)).fetchall()


async def prune_runs(
    conn: Connection, found: Sequence[tuple[UUID, UUID, UUID | None]], kept: timedelta
) -> tuple[int, int]:
    """Delete those of the runs that nothing needs, with what belongs to them; how many runs and sessions went."""
    given = [{"workspace_id": w, "id": r, "session_id": s} for w, r, s in found]
    cursor = await conn.execute(RUNS.encode(), {"runs": orjson.dumps(given).decode(), "kept": kept})
    [(runs, sessions)] = await cursor.fetchall()
    return runs, sessions


async def prune(conn: Connection, query: str, kept: timedelta, limit: int) -> int:
    return (await conn.execute(query.encode(), {"kept": kept, "limit": limit})).rowcount


async def prune_sign_ins(conn: Connection) -> int:
    return (await conn.execute(SIGN_INS)).rowcount
