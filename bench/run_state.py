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

# Statements of their own

AGE = """
UPDATE runs SET ready_at = now() - interval '1 hour' WHERE id IN (
    SELECT id FROM runs WHERE status = 'queued' ORDER BY id DESC LIMIT %s) RETURNING id
"""
COUNT = "SELECT count(*) FROM runs"
FAILED = "SELECT min(id::text) FROM runs WHERE status = 'failed' GROUP BY automation_id ORDER BY automation_id LIMIT %s"
LATENESS = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late) * 1000, percentile_cont(0.99) WITHIN GROUP (ORDER BY late) * 1000, count(*)
  FROM (SELECT extract(epoch FROM queued_at - slot)::float8 AS late FROM runs WHERE slot > %s) lateness
"""
NEWEST_CHAT = "SELECT session_id FROM runs WHERE source = 'chat' ORDER BY id DESC LIMIT 1"
NEWEST_SUCCESS = """
SELECT session_id FROM runs WHERE status = 'succeeded' AND automation_id IS NOT NULL ORDER BY id DESC LIMIT 1
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


async def session_of_newest_chat(conn: AsyncConnection[Any]) -> UUID:
    session_id: UUID = (await _row(conn, NEWEST_CHAT))[0]
    return session_id


async def session_of_newest_success(conn: AsyncConnection[Any]) -> UUID:
    """The session of the newest run of an automation that succeeded."""
    session_id: UUID = (await _row(conn, NEWEST_SUCCESS))[0]
    return session_id


async def _row(conn: AsyncConnection[Any], query: str, *values: Any) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = await (await conn.execute(query.encode(), values)).fetchone()
    assert row
    return row
