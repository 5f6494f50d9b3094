"""Attempts that were lost with their worker: what they left outside is still to be cleaned up, at least once."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

import orjson
from psycopg.rows import args_row

from rota.db.pool import Connection
from rota.model.executor import LostAttempt

ADD = """
INSERT INTO abandonments (workspace_id, run_id, attempt, executor, pool)
SELECT r.workspace_id, r.id, g.attempt, r.executor, r.pool
  FROM json_to_recordset(%(lost)s::json) AS g(workspace_id uuid, id uuid, attempt integer)
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.id = g.id
    ON CONFLICT DO NOTHING
"""

LOST = """
       r.executor, a.workspace_id, a.run_id, r.session_id, a.attempt,
       coalesce((SELECT v.spec -> 'agent' -> 'config' FROM revisions v WHERE v.workspace_id = r.workspace_id
                    AND v.subject_id = coalesce(r.automation_id, r.agent_id) AND v.revision = r.revision), '{}'),
       r.finished_at IS NOT NULL
"""

OF_RUN = f"""
SELECT {LOST}
  FROM abandonments a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
 WHERE a.workspace_id = %(workspace_id)s AND a.run_id = %(run_id)s AND a.attempt < %(attempt)s
ORDER BY a.attempt
"""  # noqa: S608 — made of constants

TAKE = f"""
-- Of runs that have ended, which never changes again: nobody can begin another attempt meanwhile. Whoever takes one has
-- so long for it; then it is due again, and later each time.
WITH due AS MATERIALIZED (
    SELECT a.workspace_id, a.run_id, a.attempt
      FROM abandonments a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
     WHERE a.due_at <= clock_timestamp() AND r.finished_at IS NOT NULL
       AND a.executor = ANY(%(kinds)s) AND a.pool = ANY(%(pools)s)
  ORDER BY a.due_at LIMIT %(limit)s
       FOR UPDATE OF a SKIP LOCKED)
   UPDATE abandonments a
      SET tries = a.tries + 1, due_at = clock_timestamp() + %(patience)s * (2 ^ least(a.tries, 8))
     FROM due, runs r
    WHERE a.workspace_id = due.workspace_id AND a.run_id = due.run_id AND a.attempt = due.attempt
      AND r.workspace_id = a.workspace_id AND r.id = a.run_id
RETURNING {LOST}
"""  # noqa: S608 — made of constants

DONE = """
DELETE FROM abandonments a
 USING json_to_recordset(%(done)s::json) AS g(workspace_id uuid, run_id uuid, attempt integer)
 WHERE a.workspace_id = g.workspace_id AND a.run_id = g.run_id AND a.attempt = g.attempt
"""


def _given(lost: Iterable[tuple[UUID, UUID, int]], name: str) -> str:
    return orjson.dumps([{"workspace_id": w, name: r, "attempt": a} for w, r, a in lost]).decode()


async def add(conn: Connection, lost: Iterable[tuple[UUID, UUID, int]]) -> None:
    await conn.execute(ADD, {"lost": _given(lost, "id")})


async def of_run(conn: Connection, workspace_id: UUID, run_id: UUID, *, before: int) -> list[LostAttempt]:
    """Lost attempts of a run that goes on."""
    given = {"workspace_id": workspace_id, "run_id": run_id, "attempt": before}
    async with conn.cursor(row_factory=args_row(LostAttempt)) as cursor:
        await cursor.execute(OF_RUN, given)
        return await cursor.fetchall()


async def take(
    conn: Connection, *, kinds: Sequence[str], pools: Sequence[str], patience: timedelta, limit: int
) -> list[LostAttempt]:
    """Lost attempts of runs that have ended. They come again if they are not `done` within the patience."""
    given = {"kinds": list(kinds), "pools": list(pools), "patience": patience, "limit": limit}
    async with conn.cursor(row_factory=args_row(LostAttempt)) as cursor:
        await cursor.execute(TAKE, given)
        return await cursor.fetchall()


async def done(conn: Connection, lost: Iterable[LostAttempt]) -> None:
    keys = [(each.workspace_id, each.run_id, each.attempt) for each in lost]
    await conn.execute(DONE, {"done": _given(keys, "run_id")})
