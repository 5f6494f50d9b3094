"""The fleet: one row for each worker process."""

from collections.abc import Sequence
from typing import Any

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import WorkerId

JOIN = """
INSERT INTO workers (id, host, pid, places, kinds, pools) VALUES (%(id)s, %(host)s, %(pid)s, %(places)s, %(kinds)s, %(pools)s)
"""
BEAT = "UPDATE workers SET last_seen_at = clock_timestamp(), busy = %(busy)s WHERE id = %(id)s"
LEAVE = "UPDATE workers SET stopped_at = clock_timestamp(), busy = 0 WHERE id = %(id)s"

LIST = """
SELECT id, host, pid, places, busy, kinds, pools, started_at, last_seen_at,
       CASE WHEN last_seen_at < clock_timestamp() - %(dead_after)s THEN 'dead'
            WHEN busy = 0 THEN 'idle' WHEN busy >= places THEN 'busy' ELSE 'alive' END AS status
  FROM workers WHERE stopped_at IS NULL AND last_seen_at > clock_timestamp() - interval '1 day'
ORDER BY started_at DESC
"""

SERVED = "SELECT DISTINCT unnest(kinds) FROM workers WHERE stopped_at IS NULL AND last_seen_at >= clock_timestamp() - %(dead_after)s"


async def join(
    conn: Connection,
    worker_id: WorkerId,
    *,
    host: str,
    pid: int,
    places: int,
    kinds: Sequence[str],
    pools: Sequence[str],
) -> None:
    given = {
        "id": worker_id,
        "host": host,
        "pid": pid,
        "places": places,
        "kinds": list(kinds),
        "pools": list(pools),
    }
    await conn.execute(JOIN, given)


async def beat(conn: Connection, worker_id: WorkerId, busy: int) -> None:
    await conn.execute(BEAT, {"id": worker_id, "busy": busy})


async def leave(conn: Connection, worker_id: WorkerId) -> None:
    await conn.execute(LEAVE, {"id": worker_id})


async def all_of(conn: Connection, *, dead_after: Any) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(LIST, {"dead_after": dead_after})
        return await cursor.fetchall()


async def served_kinds(conn: Connection, *, dead_after: Any) -> set[str]:
    return {kind for (kind,) in await (await conn.execute(SERVED, {"dead_after": dead_after})).fetchall()}
