"""How the house was doing, once a minute for each machine."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from rota.db.paging import LATEST_TIME, or_end
from rota.db.pool import Connection

TAKE = """
-- Every process may try; only the first within a span takes it.
INSERT INTO snapshots (id, host, workers, sessions, running, queued, cpu_percent, memory_mb)
SELECT %(id)s, %(host)s,
       (SELECT count(*) FROM workers WHERE stopped_at IS NULL AND last_seen_at > now() - %(dead_after)s),
       (SELECT count(DISTINCT session_id) FROM taken_runs WHERE status = 'running'),
       (SELECT count(*) FROM taken_runs WHERE status = 'running'),
       (SELECT count(*) FROM (SELECT FROM ready_runs LIMIT 100000) waiting),
       %(cpu_percent)s, %(memory_mb)s
 WHERE NOT EXISTS (SELECT FROM snapshots WHERE host = %(host)s AND taken_at > now() - %(every)s)
"""

QUEUE_DEPTH = """
SELECT count(*) FROM (
    SELECT FROM ready_runs WHERE ready_at <= clock_timestamp() LIMIT 100000) waiting
"""

PAGE = """
-- Behind the last one shown, which may be pruned by now, with all that would follow it.
SELECT id, taken_at, host, workers, sessions, running, queued, cpu_percent, memory_mb FROM snapshots
 WHERE taken_at < %(before)s {after}
ORDER BY taken_at DESC, id DESC LIMIT %(limit)s
"""
AFTER_LAST = "AND (taken_at, id) < (SELECT shown.taken_at, shown.id FROM snapshots shown WHERE shown.id = %(last)s)"


async def take(
    conn: Connection,
    snapshot_id: UUID,
    *,
    host: str,
    every: timedelta,
    dead_after: timedelta,
    cpu_percent: float | None,
    memory_mb: float | None,
) -> None:
    given = {"id": snapshot_id, "host": host, "every": every, "dead_after": dead_after}
    await conn.execute(TAKE, {**given, "cpu_percent": cpu_percent, "memory_mb": memory_mb})


async def page(
    conn: Connection, *, before: datetime | None, last: UUID | None = None, limit: int
) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        query = PAGE.format(after=AFTER_LAST if last else "")
        await cursor.execute(query.encode(), {"before": or_end(before, LATEST_TIME), "last": last, "limit": limit})
        return await cursor.fetchall()


OVER_TIME = """
SELECT to_timestamp(floor(extract(epoch FROM taken_at) / %(bucket)s) * %(bucket)s) AS at, max(workers) AS workers,
       max(running) AS running, max(queued) AS queued, avg(cpu_percent)::float8 AS cpu_percent
  FROM snapshots WHERE taken_at >= %(start)s GROUP BY 1 ORDER BY 1
"""


async def over_time(conn: Connection, *, start: datetime, bucket: timedelta) -> list[dict[str, Any]]:
    """The most that ran and waited in each stretch of time, and how busy the machines were on average."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(OVER_TIME, {"start": start, "bucket": bucket.total_seconds()})
        return await cursor.fetchall()


async def queue_depth(conn: Connection) -> int:
    """How many runs are ready and wait for a place; a hundred thousand at most."""
    row = await (await conn.execute(QUEUE_DEPTH)).fetchone()
    assert row
    return int(row[0])
