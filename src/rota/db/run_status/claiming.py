"""Queued → running."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from psycopg import AsyncCursor, DataError
from psycopg.rows import TupleRow

from rota.db.pool import Connection, short
from rota.model.ids import RunId, WorkerId, WorkspaceId
from rota.model.run import Claimed, Status

UNREADABLE = (DataError, ValueError, OverflowError)

# What may be claimed, of each queue the oldest: read from where the last claim ended (since), because behind it dead entries
# pile up while somebody holds a transaction open. Each run is looked up by its key behind the row of its queue, and locked
# only if it is wanted, whatever the planner takes for many.
_LOCKED = """
                  CROSS JOIN LATERAL (
                      SELECT session_id, attempt, agent_id, grant_id FROM runs
                       WHERE workspace_id = l.workspace_id AND id = l.id
                         AND status = 'queued' AND ready_at <= statement_timestamp()
                         FOR UPDATE SKIP LOCKED) r
"""

# `most` keeps the caps of agents, `room` those of workspaces; who takes a workspace for uncapped gets nothing once it is capped.
_IN_TURNS = f"""
WITH queues AS MATERIALIZED (
    SELECT q.* FROM json_to_recordset(%(queues)s::json) AS q(
        workspace_id uuid, queue uuid, pool text, executor text, priority smallint, since timestamptz,
        most integer, room integer, workspace_capped boolean)
     WHERE q.workspace_capped OR (SELECT w.max_concurrent FROM workspaces w WHERE w.id = q.workspace_id) IS NULL),
candidates AS MATERIALIZED (
    SELECT c.*, q.queue, q.priority, q.most, q.room
      FROM queues q CROSS JOIN LATERAL (
           SELECT l.*, r.*
             FROM (SELECT workspace_id, id, ready_at FROM ready_runs
                    WHERE workspace_id = q.workspace_id AND queue = q.queue AND pool = q.pool
                      AND executor = q.executor AND priority = q.priority
                      AND ready_at >= q.since AND ready_at <= statement_timestamp()
                 ORDER BY ready_at OFFSET 0) l{_LOCKED}
            LIMIT least(q.most, q.room, %(places)s)) c),
allowed AS (
    SELECT *
      FROM (SELECT *, row_number() OVER (PARTITION BY queue ORDER BY priority, ready_at) AS number FROM candidates) each
     WHERE number <= most),
turns AS (
    SELECT *, row_number() OVER (PARTITION BY workspace_id ORDER BY priority, ready_at) AS turn,
           count(*) OVER (PARTITION BY workspace_id) AS waiting
      FROM allowed),
first AS (
    SELECT workspace_id, id, session_id, attempt, agent_id, grant_id, waiting FROM turns WHERE turn <= room
  ORDER BY turn, priority, ready_at LIMIT %(places)s),
"""

# With one queue there are no turns to take.
_IN_ORDER = f"""
WITH first AS (
    SELECT c.*, count(*) OVER () AS waiting
      FROM (SELECT l.workspace_id, l.id, r.*
              FROM (SELECT workspace_id, id FROM ready_runs
                     WHERE workspace_id = %(workspace_id)s AND queue = %(queue)s AND pool = %(pool)s
                       AND executor = %(executor)s AND priority = %(priority)s
                       AND ready_at >= %(since)s AND ready_at <= statement_timestamp()
                       AND (%(workspace_capped)s
                            OR (SELECT w.max_concurrent FROM workspaces w WHERE w.id = %(workspace_id)s) IS NULL)
                  ORDER BY ready_at OFFSET 0) l{_LOCKED}
             LIMIT least(%(most)s, %(room)s, %(places)s)::bigint) c),
"""

# What each session is told is the same but for the run. Sessions are written in id order, which takes the locks too (as in
# news.py), and after the runs, which were locked when they were found.
_CLAIM_FIRST = """
chosen AS MATERIALIZED (
    SELECT f.*, row_number() OVER () - 1 AS number,
           (SELECT CASE WHEN g.revoked_at IS NOT NULL THEN 'grant_revoked' WHEN g.expires_at <= now() THEN 'grant_expired'
                        WHEN NOT ('agent:run:' || f.agent_id = ANY(g.scopes) OR 'agent:run:*' = ANY(g.scopes))
                        THEN 'grant_scope' END
              FROM grants g WHERE g.workspace_id = f.workspace_id AND g.id = f.grant_id) AS refused
      FROM first f),
numbered AS (
    UPDATE sessions s
       SET last_seq = s.last_seq + cardinality(n.run_ids), updated_at = now()
      FROM (SELECT workspace_id, session_id, array_agg(id) AS run_ids, array_agg(attempt + 1) AS attempts
              FROM chosen WHERE refused IS NULL
          GROUP BY workspace_id, session_id ORDER BY workspace_id, session_id) n
     WHERE s.workspace_id = n.workspace_id AND s.id = n.session_id
 RETURNING s.workspace_id, s.id, s.last_seq - cardinality(n.run_ids) AS before, n.run_ids, n.attempts),
told AS (
    INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
    SELECT workspace_id, id, before + generate_series(1, cardinality(run_ids)), 'run', unnest(run_ids), unnest(attempts),
           %(told)s::jsonb
      FROM numbered)
   UPDATE runs r
      SET status = 'running', attempt = r.attempt + 1, worker_id = %(worker_id)s,
          attempt_token_hash = substring(%(token_hashes)s::bytea FROM c.number::integer * 32 + 1 FOR 32),
          lease_until = clock_timestamp() + %(lease)s, started_at = coalesce(r.started_at, clock_timestamp())
     FROM chosen c
    WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING r.workspace_id, r.id, r.session_id, r.automation_id, r.agent_id, r.attempt, r.tries, r.max_attempts, r.source,
          r.executor, r.slot,
          CASE WHEN r.missed_count > 0 THEN jsonb_build_object('count', r.missed_count, 'since', r.missed_since) END AS missed,
          r.payload, r.prompt, r.input,
          (SELECT v.spec::text FROM revisions v WHERE v.workspace_id = r.workspace_id
              AND v.subject_id = coalesce(r.automation_id, r.agent_id) AND v.revision = r.revision) AS spec,
          r.timeout, r.trace_id,
          (SELECT s.last_seq = 1 FROM sessions s WHERE s.workspace_id = r.workspace_id AND s.id = r.session_id) AS first,
          c.refused, r.queue, r.pool, r.priority, r.ready_at, c.number, c.waiting, r.budget, r.retry_of
"""

CLAIM = short(
    """
-- Hand the next ready runs to one worker, stepping over rows that another worker holds, and tell their sessions. Workspaces
-- take turns, so that a long queue of one never delays another's single run. A run whose grant no longer holds comes back
-- with the reason and without an event: whoever claimed it refuses it."""
    + _IN_TURNS
    + _CLAIM_FIRST
)

CLAIM_FROM_ONE = short("-- As CLAIM, for a single queue." + _IN_ORDER + _CLAIM_FIRST)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A claimed run whose row holds something that cannot be read, such as a time beyond the calendar."""

    workspace_id: WorkspaceId
    id: RunId
    attempt: int
    reason: str


async def claim(
    conn: Connection,
    worker_id: WorkerId,
    *,
    queues: Sequence[dict[str, Any]],
    places: int,
    lease: timedelta,
    token_hashes: Sequence[bytes],
    sandbox: str | None = None,
) -> tuple[list[Claimed], list[Unreadable]]:
    """Claim up to `places` runs, each with one of the hashes; whoever knows what was hashed is that attempt's agent."""
    given = {"worker_id": worker_id, "places": places, "lease": lease, "token_hashes": b"".join(token_hashes)}
    told = {"status": Status.RUNNING, "worker_id": worker_id}
    given["told"] = orjson.dumps(told | {"sandbox": sandbox} if sandbox else told).decode()
    one_queue = len(queues) == 1
    given |= queues[0] if one_queue else {"queues": orjson.dumps(queues).decode()}
    async with conn.cursor(binary=True) as cursor:
        await cursor.execute(CLAIM_FROM_ONE if one_queue else CLAIM, given)
        try:
            return list(map(Claimed._make, await cursor.fetchall())), []
        except UNREADABLE:
            return await _read_one_by_one(cursor)


async def _read_one_by_one(cursor: AsyncCursor[TupleRow]) -> tuple[list[Claimed], list[Unreadable]]:
    claimed: list[Claimed] = []
    unreadable: list[Unreadable] = []
    for place in range(cursor.rowcount):
        await cursor.scroll(place, mode="absolute")
        try:
            claimed += map(Claimed._make, await cursor.fetchmany(1))
        except UNREADABLE as failure:
            unreadable.append(_named(cursor, place, failure))
    return claimed, unreadable


def _named(cursor: AsyncCursor[TupleRow], place: int, failure: Exception) -> Unreadable:
    """Which row it is can be told from the bytes that the server sent."""
    assert cursor.pgresult
    assert cursor.description
    columns = [column.name for column in cursor.description]
    workspace_id, run_id, attempt = (
        cursor.pgresult.get_value(place, columns.index(name)) or b"" for name in ("workspace_id", "id", "attempt")
    )
    reason = str(failure).strip() or type(failure).__name__
    return Unreadable(
        WorkspaceId(UUID(bytes=workspace_id)), RunId(UUID(bytes=run_id)), int.from_bytes(attempt, "big"), reason
    )
