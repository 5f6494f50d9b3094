"""Reads and changes the state of runs. Benchmarks name the table of runs only here, so that a new layout changes one file."""

from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

RUNS = "runs"

# Statements that are part of a larger script

FILL = """
INSERT INTO runs (workspace_id, id, automation_id, trigger_id, session_id, agent_id, grant_id, revision, status, source, slot, queue,
                  pool, executor, timeout, queued_at, ready_at, started_at, finished_at, attempt, skip_reason, error_class, summary, trace_id)
SELECT workspace_id, run_id, automation_id, trigger_id, session_id, agent_id, grant_id, 1,
       CASE WHEN luck = 0 THEN 'failed' WHEN luck < 30 THEN 'skipped' ELSE 'succeeded' END, 'schedule', at, workspace_id,
       'default', 'command', interval '1 hour', at, at, CASE WHEN luck BETWEEN 1 AND 29 THEN NULL ELSE at + interval '40 ms' END,
       at + interval '2 s', 1, CASE WHEN luck BETWEEN 1 AND 29 THEN 'prior_in_flight' END,
       CASE WHEN luck = 0 THEN 'agent_error' END, 'All is well, and this is what was said at the end.', md5(n::text)
  FROM planned
UNION ALL
SELECT workspace_id, pg_temp.id_at(at, 'd' || n), NULL, NULL, pg_temp.id_at(at, 'c' || n), agent_id, grant_id, 1, 'succeeded', 'chat', NULL,
       workspace_id, 'default', 'command', interval '1 hour', at, at, at, at + interval '9 s', 1, NULL, NULL, 'Gladly.', md5('d' || n)
  FROM planned WHERE n % 500 = 0
"""
# Runs that have not ended: most wait, some are worked on, some wait for an answer.
FILL_LIVE = """
WITH live AS (
    INSERT INTO runs (workspace_id, id, automation_id, session_id, agent_id, grant_id, revision, status, source, queue, pool, executor,
                      timeout, queued_at, ready_at, attempt, lease_until, worker_id, trace_id)
    SELECT workspace_id, pg_temp.id_at(now(), 'live' || n), automation_id, session_id, agent_id, grant_id, 1,
           CASE WHEN n % 200 = 0 THEN 'awaiting_approval' WHEN n % 20 = 0 THEN 'running' ELSE 'queued' END, 'run_now', workspace_id,
           'default', 'command', interval '1 hour', now(), now(), 1,
           CASE WHEN n % 20 = 0 AND n % 200 <> 0 THEN now() + interval '1 day' END, 'w', 'live' || n
      FROM (SELECT * FROM planned WHERE session_id IS NOT NULL AND n <= %(runs)s ORDER BY n DESC LIMIT %(live)s) newest
 RETURNING *)
INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, status, expires_at)
SELECT workspace_id, pg_temp.id_at(now(), id::text), id, session_id, 1, 'May I?', '[{"id": "approve", "label": "Approve", "approves": true}]',
       'pending', now() + interval '1 day'
  FROM live WHERE status = 'awaiting_approval'
"""

# Statements of their own

AGE = """
UPDATE runs SET ready_at = now() - interval '1 hour' WHERE id IN (
    SELECT id FROM runs WHERE status = 'queued' ORDER BY id DESC LIMIT %s) RETURNING id
"""
COUNT = "SELECT count(*) FROM runs"
FAILED = "SELECT min(id::text) FROM runs WHERE status = 'failed' GROUP BY automation_id ORDER BY automation_id LIMIT %s"
EXAMPLES = """
SELECT json_build_object(
       'busiest', (SELECT automation_id FROM runs WHERE automation_id IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1),
       'run', (SELECT id FROM runs WHERE status = 'succeeded' AND automation_id IS NOT NULL ORDER BY id DESC LIMIT 1),
       'session', (SELECT session_id FROM runs WHERE status = 'succeeded' AND automation_id IS NOT NULL ORDER BY id DESC LIMIT 1),
       'chat', (SELECT session_id FROM runs WHERE source = 'chat' ORDER BY id DESC LIMIT 1),
       'standing', (SELECT session_id FROM runs GROUP BY 1 HAVING session_id IS NOT NULL ORDER BY count(*) DESC LIMIT 1))
"""
LATENESS = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late) * 1000, percentile_cont(0.99) WITHIN GROUP (ORDER BY late) * 1000, count(*)
  FROM (SELECT extract(epoch FROM queued_at - slot)::float8 AS late FROM runs WHERE slot > %s) lateness
"""
WRITERS = "SELECT count(DISTINCT xmin::text) FROM runs WHERE finished_at > %s"


async def age_queued(conn: AsyncConnection[Any], count: int) -> set[UUID]:
    """Let this many of the newest waiting runs look as if they had waited for an hour; their ids."""
    return {row[0] for row in await (await conn.execute(AGE, [count])).fetchall()}


async def count_runs(conn: AsyncConnection[Any]) -> int:
    return int((await _row(conn, COUNT))[0])


async def count_writers(conn: AsyncConnection[Any], *, since: datetime) -> int:
    """How many transactions wrote the runs that have ended since."""
    return int((await _row(conn, WRITERS, since))[0])


async def failed_runs(conn: AsyncConnection[Any], count: int) -> list[str]:
    """The oldest failed run of each automation, by id."""
    return [str(row[0]) for row in await (await conn.execute(FAILED, [count])).fetchall()]


async def lateness(conn: AsyncConnection[Any], *, since: datetime) -> tuple[float, float, int]:
    """How many milliseconds after their slots runs were queued, as median and 99th percentile, and of how many runs."""
    median, p99, count = await _row(conn, LATENESS, since)
    return median, p99, count


async def find_examples(conn: AsyncConnection[Any]) -> dict[str, str]:
    """The busiest automation, a run with its session, a chat's session, and the session with the most runs."""
    return dict((await _row(conn, EXAMPLES))[0])


async def _row(conn: AsyncConnection[Any], query: str, *values: Any) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = await (await conn.execute(query.encode(), values)).fetchone()
    assert row
    return row
