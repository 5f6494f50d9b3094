"""Where ready runs wait: a queue for each workspace or capped agent, pool, executor and priority."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import orjson
from psycopg.rows import args_row

from rota.db.pool import Connection

FIND = """
-- From one queue to the next by the index, whatever the length of each: the cost is the number of queues, not of runs.
WITH RECURSIVE found AS (
    (SELECT workspace_id, queue, pool, executor, priority FROM ready_runs
      WHERE workspace_id >= %(first)s AND workspace_id <= %(last)s
   ORDER BY workspace_id, queue, pool, executor, priority LIMIT 1)
    UNION ALL
    SELECT following.* FROM found CROSS JOIN LATERAL (
        SELECT r.workspace_id, r.queue, r.pool, r.executor, r.priority FROM ready_runs r
         WHERE r.workspace_id <= %(last)s
           AND (r.workspace_id, r.queue, r.pool, r.executor, r.priority)
               > (found.workspace_id, found.queue, found.pool, found.executor, found.priority)
      ORDER BY r.workspace_id, r.queue, r.pool, r.executor, r.priority LIMIT 1) following)
SELECT found.workspace_id, found.queue, found.pool, found.executor, found.priority,
       (SELECT extract(epoch FROM r.ready_at - statement_timestamp())::float8 FROM ready_runs r
         WHERE r.workspace_id = found.workspace_id
           AND r.queue = found.queue AND r.pool = found.pool AND r.executor = found.executor
           AND r.priority = found.priority
      ORDER BY r.ready_at LIMIT 1),
       (SELECT extract(epoch FROM r.ready_at - statement_timestamp())::float8 FROM ready_runs r
         WHERE r.workspace_id = found.workspace_id
           AND r.queue = found.queue AND r.pool = found.pool AND r.executor = found.executor
           AND r.priority = found.priority AND r.ready_at > statement_timestamp()
      ORDER BY r.ready_at LIMIT 1),
       a.id IS NOT NULL,
       (SELECT count(*) >= a.max_concurrent FROM taken_runs r
         WHERE r.workspace_id = a.workspace_id AND r.agent_id = a.id AND r.leased),
       w.max_concurrent IS NOT NULL
  FROM found
       JOIN workspaces w ON w.id = found.workspace_id
       LEFT JOIN agents a ON a.workspace_id = found.workspace_id AND a.id = found.queue
 WHERE found.pool = ANY(%(pools)s) AND found.executor = ANY(%(kinds)s)
"""

LOCK_CAPPED = """
-- Who claims for a capped agent or workspace holds its row, so that two workers never fill one gap. One that is no longer
-- capped comes too: what does not come is held by another.
WITH spaces AS (
    SELECT id, max_concurrent FROM workspaces
     WHERE id = ANY(%(workspaces)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED),
workers AS (
    SELECT id, max_concurrent FROM agents
     WHERE workspace_id = ANY(%(in_workspaces)s) AND id = ANY(%(agents)s)
  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
SELECT id, max_concurrent FROM spaces UNION ALL SELECT id, max_concurrent FROM workers
"""

RUNNING = """
-- Who waits for an answer and keeps its process takes its place too.
SELECT workspace_id, agent_id, count(*) FROM taken_runs
 WHERE leased AND workspace_id = ANY(%(workspaces)s)
GROUP BY 1, 2
"""

MARK_FULL_WORKSPACES = """
WITH busy AS (
    SELECT workspace_id, count(*) AS runs FROM taken_runs WHERE leased GROUP BY 1),
chosen AS MATERIALIZED (
    SELECT w.id FROM busy b JOIN workspaces w ON w.id = b.workspace_id WHERE b.runs >= w.max_concurrent
  ORDER BY w.id FOR NO KEY UPDATE OF w)
UPDATE workspaces w SET full_at = clock_timestamp() FROM chosen c WHERE w.id = c.id
"""

MARK_FULL_AGENTS = """
WITH busy AS (
    SELECT workspace_id, agent_id, count(*) AS runs FROM taken_runs WHERE leased GROUP BY 1, 2),
chosen AS MATERIALIZED (
    SELECT a.workspace_id, a.id FROM busy b JOIN agents a ON a.workspace_id = b.workspace_id AND a.id = b.agent_id
     WHERE b.runs >= a.max_concurrent
  ORDER BY a.workspace_id, a.id FOR NO KEY UPDATE OF a)
UPDATE agents a SET full_at = clock_timestamp() FROM chosen c WHERE a.workspace_id = c.workspace_id AND a.id = c.id
"""

MARK_LEFT = """
-- Runs have just left them: with those they ran as many as they may. Who claims for one of them holds its row, and may wait
-- for a session that is locked here; so nobody is waited for.
WITH given AS (SELECT * FROM json_to_recordset(%(left)s::json) AS g(workspace_id uuid, agent_id uuid, runs integer)),
busy AS (
    SELECT workspace_id, agent_id, count(*) AS runs FROM taken_runs
     WHERE leased AND workspace_id IN (SELECT workspace_id FROM given)
  GROUP BY 1, 2),
before AS (
    SELECT workspace_id, agent_id, sum(runs) AS runs FROM (SELECT * FROM busy UNION ALL SELECT * FROM given) b
  GROUP BY GROUPING SETS ((workspace_id, agent_id), (workspace_id))),
spaces AS (
    UPDATE workspaces SET full_at = clock_timestamp() WHERE id IN (
        SELECT w.id FROM workspaces w JOIN before b ON b.workspace_id = w.id AND b.agent_id IS NULL
         WHERE b.runs >= w.max_concurrent ORDER BY w.id FOR NO KEY UPDATE OF w SKIP LOCKED))
UPDATE agents SET full_at = clock_timestamp() WHERE (workspace_id, id) IN (
    SELECT a.workspace_id, a.id FROM agents a JOIN before b ON b.workspace_id = a.workspace_id AND b.agent_id = a.id
     WHERE b.runs >= a.max_concurrent ORDER BY a.workspace_id, a.id FOR NO KEY UPDATE OF a SKIP LOCKED)
"""

MARK_SEEN_FULL = """
-- Who claims for one of them marks it too, if it still is: so nobody is waited for.
WITH spaces AS (
    UPDATE workspaces SET full_at = clock_timestamp() WHERE id IN (
        SELECT id FROM workspaces WHERE id = ANY(%(workspaces)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
UPDATE agents SET full_at = clock_timestamp() WHERE (workspace_id, id) IN (
    SELECT workspace_id, id FROM agents WHERE workspace_id = ANY(%(in_workspaces)s) AND id = ANY(%(agents)s)
  ORDER BY workspace_id, id FOR NO KEY UPDATE SKIP LOCKED)
"""

MOVE = """
WITH chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
     WHERE l.workspace_id = %(workspace_id)s AND l.agent_id = %(agent_id)s AND r.status = 'queued'
  ORDER BY r.id FOR UPDATE OF r)
UPDATE runs r SET queue = %(queue)s FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""

ANY_FIRST, ANY_LAST = UUID(int=0), UUID(int=2**128 - 1)


class Queue(NamedTuple):
    workspace_id: UUID
    queue: UUID
    pool: str
    executor: str
    priority: int


class Found(NamedTuple):
    """A queue, in how many seconds its first run may be claimed and the first that is queued for later, whether its
    agent or workspace is capped, and whether its agent runs as many as it may just now."""

    workspace_id: UUID
    queue: UUID
    pool: str
    executor: str
    priority: int
    ready_in: float
    later_in: float | None
    agent_capped: bool
    agent_full: bool
    workspace_capped: bool

    @property
    def key(self) -> Queue:
        return Queue(*self[:5])


async def find(
    conn: Connection, *, pools: Sequence[str], kinds: Sequence[str], workspace_id: UUID | None = None
) -> list[Found]:
    """The queues that hold runs for these pools and kinds, of one workspace or of all."""
    given = {
        "pools": list(pools), "kinds": list(kinds), "first": workspace_id or ANY_FIRST, "last": workspace_id or ANY_LAST,
    }  # fmt: skip
    async with conn.cursor(row_factory=args_row(Found)) as cursor:
        await cursor.execute(FIND, given)
        return await cursor.fetchall()


async def lock_capped(
    conn: Connection, workspaces: Sequence[UUID], agents: Sequence[tuple[UUID, UUID]]
) -> dict[UUID, int | None]:
    """Lock capped workspaces and agents that nobody else claims for just now; how many each may run, None if it is
    capped no more."""
    return dict(await (await conn.execute(LOCK_CAPPED, _capped(workspaces, agents))).fetchall())


def _capped(workspaces: Sequence[UUID], agents: Sequence[tuple[UUID, UUID]]) -> dict[str, list[UUID]]:
    return {"workspaces": list(workspaces), "in_workspaces": [w for w, _ in agents], "agents": [a for _, a in agents]}


async def running(conn: Connection, workspaces: Sequence[UUID]) -> dict[UUID, int]:
    """How many runs of each of these workspaces, and of each of their agents, are running."""
    counted: dict[UUID, int] = {}
    for workspace_id, agent_id, count in await (
        await conn.execute(RUNNING, {"workspaces": list(workspaces)})
    ).fetchall():
        counted[agent_id] = count
        counted[workspace_id] = counted.get(workspace_id, 0) + count
    return counted


async def mark_full(conn: Connection) -> None:
    """Remember when workspaces and agents ran as many as they may: who waits for them then waits for no place."""
    await conn.execute(MARK_FULL_WORKSPACES)
    await conn.execute(MARK_FULL_AGENTS)


async def mark_left(conn: Connection, left: Mapping[tuple[UUID, UUID | None], int]) -> None:
    """As `mark_full`, when so many runs of these agents have just ended, capped or not."""
    given = [{"workspace_id": w, "agent_id": a or ANY_FIRST, "runs": runs} for (w, a), runs in left.items()]
    await conn.execute(MARK_LEFT, {"left": orjson.dumps(given).decode()})


async def mark_seen_full(conn: Connection, workspaces: Sequence[UUID], agents: Sequence[tuple[UUID, UUID]]) -> None:
    """As `mark_full`, by a worker that had a place for them and could not give it."""
    await conn.execute(MARK_SEEN_FULL, _capped(workspaces, agents))


async def move(conn: Connection, workspace_id: UUID, agent_id: UUID, queue: UUID) -> None:
    """An agent was capped, or is no longer: what waits for it goes to the other queue."""
    await conn.execute(MOVE, {"workspace_id": workspace_id, "agent_id": agent_id, "queue": queue})
