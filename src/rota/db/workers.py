"""The fleet: one row for each worker process."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import orjson
from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import WorkerId, WorkspaceId

BEAT = """
INSERT INTO workers AS w (id, host, pid, places, busy, kinds, pools, sandbox, at_work)
VALUES (%(id)s, %(host)s, %(pid)s, %(places)s, %(busy)s, %(kinds)s, %(pools)s, %(sandbox)s, %(at_work)s)
    ON CONFLICT (id) DO UPDATE SET last_seen_at = clock_timestamp(), busy = excluded.busy, at_work = excluded.at_work
"""
LEAVE = "UPDATE workers SET stopped_at = clock_timestamp(), busy = 0, at_work = '[]' WHERE id = %(id)s"

LIST = """
-- A worker serves every workspace; each sees only its own runs in its hands. A dead worker is busy with nothing: its runs
-- are shown with what became of them since, which a live worker's need not be looked up for.
SELECT w.id, w.host, w.pid, w.places, CASE s.status WHEN 'dead' THEN 0 ELSE w.busy END AS busy, w.kinds, w.pools,
       w.sandbox, w.started_at, w.last_seen_at, s.status,
       (SELECT coalesce(jsonb_agg(
                   CASE s.status WHEN 'dead'
                        THEN held.run - 'workspace_id' || jsonb_build_object('last_line', '', 'since', (
                            SELECT jsonb_build_object('status', r.status, 'attempt', r.attempt, 'worker_id', r.worker_id,
                                                      'session_id', r.session_id)
                              FROM runs r
                             WHERE r.workspace_id = %(workspace_id)s AND r.id = (held.run ->> 'run_id')::uuid))
                        ELSE held.run - 'workspace_id' END), '[]')
          FROM jsonb_array_elements(w.at_work) AS held(run)
         WHERE held.run ->> 'workspace_id' = %(workspace_id)s::text) AS runs
  FROM workers w
       CROSS JOIN LATERAL (
           SELECT CASE WHEN w.last_seen_at < clock_timestamp() - %(dead_after)s THEN 'dead'
                       WHEN w.busy = 0 THEN 'idle' WHEN w.busy >= w.places THEN 'busy' ELSE 'alive' END AS status
           OFFSET 0) s
 WHERE w.stopped_at IS NULL AND w.last_seen_at > clock_timestamp() - interval '1 day'
ORDER BY w.started_at DESC
"""

SERVED = """
SELECT kind, array_agg(DISTINCT pool) FROM workers, unnest(kinds) AS kind, unnest(pools) AS pool
 WHERE stopped_at IS NULL AND last_seen_at >= clock_timestamp() - %(dead_after)s GROUP BY kind
"""


SANDBOX_OF = "SELECT sandbox FROM workers WHERE id = %(id)s"

SANDBOXES = """
SELECT DISTINCT coalesce(sandbox, 'none') FROM workers
 WHERE stopped_at IS NULL AND last_seen_at >= clock_timestamp() - %(dead_after)s
   AND %(kind)s = ANY(kinds) AND %(pool)s = ANY(pools) ORDER BY 1
"""


async def beat(
    conn: Connection,
    worker_id: WorkerId,
    *,
    host: str,
    pid: int,
    places: int,
    busy: int,
    kinds: Sequence[str],
    pools: Sequence[str],
    at_work: Sequence[dict[str, Any]],
    sandbox: str | None = None,
) -> None:
    """The worker lives, and these are the runs in its hands. Its first beat makes it known."""
    given = {
        "id": worker_id, "host": host, "pid": pid, "places": places, "busy": busy, "kinds": list(kinds),
        "pools": list(pools), "sandbox": sandbox, "at_work": orjson.dumps(at_work).decode(),
    }  # fmt: skip
    await conn.execute(BEAT, given)


async def leave(conn: Connection, worker_id: WorkerId) -> None:
    await conn.execute(LEAVE, {"id": worker_id})


async def all_of(conn: Connection, workspace_id: WorkspaceId, *, dead_after: timedelta) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(LIST, {"workspace_id": workspace_id, "dead_after": dead_after})
        return await cursor.fetchall()


async def served(conn: Connection, *, dead_after: timedelta) -> dict[str, list[str]]:
    """The kinds of agents that live workers serve, each with the pools in which they do."""
    return dict(await (await conn.execute(SERVED, {"dead_after": dead_after})).fetchall())


async def sandboxes(conn: Connection, *, kind: str, pool: str, dead_after: timedelta) -> list[str]:
    """The sandboxes that agents of this kind run in, on the live workers that serve the pool."""
    rows = await conn.execute(SANDBOXES, {"kind": kind, "pool": pool, "dead_after": dead_after})
    return [name for (name,) in await rows.fetchall()]


async def sandbox_of(conn: Connection, worker_id: str) -> str | None:
    row = await (await conn.execute(SANDBOX_OF, {"id": worker_id})).fetchone()
    return row[0] if row else None


Lacking = Literal["worker", "kind", "pool"]


def lacking(served: Mapping[str, Collection[str]], kind: str, pool: str) -> Lacking | None:
    """What a run waits for in vain: any worker, one for its kind, or one for its kind in its pool."""
    if not served:
        return "worker"
    pools = served.get(kind, ())
    return None if pool in pools else "pool" if pools else "kind"
