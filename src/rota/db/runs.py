"""Runs as they are read: the ledger."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import AutomationId, RunId, WorkspaceId

COLUMNS = """
r.id, r.automation_id, r.trigger_id, r.session_id, r.agent_id, r.grant_id, r.revision, r.status, r.source, r.slot,
CASE WHEN r.missed_count > 0 THEN jsonb_build_object('count', r.missed_count, 'since', r.missed_since) END AS missed,
r.payload, r.prompt, r.input, r.retry_of, r.created_by, r.ready_at, r.queued_at, r.started_at, r.finished_at, r.attempt, r.tries, r.rescues,
r.max_attempts, r.executor, r.pool, r.timeout, r.worker_id, r.skip_reason, r.error_class, r.error_detail, r.summary, r.trace_id, r.cancel_requested_at,
(SELECT coalesce(jsonb_object_agg(unit, amount), '{}')
   FROM (SELECT unit, sum(amount) AS amount FROM usage u WHERE u.workspace_id = r.workspace_id AND u.run_id = r.id
         GROUP BY unit) spent) AS usage
"""

FIND = f"SELECT {COLUMNS} FROM runs r WHERE r.workspace_id = %(workspace_id)s AND r.id = %(id)s"  # noqa: S608

LIST = f"""
SELECT {COLUMNS} FROM runs r
 WHERE r.workspace_id = %(workspace_id)s AND r.id < coalesce(%(before)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
"""  # noqa: S608

USUAL_DURATION = """
-- The median of its last twenty successes.
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at))
  FROM (SELECT finished_at, started_at FROM runs
         WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND status = 'succeeded'
      ORDER BY id DESC LIMIT 20) recent
"""

BY_KEYS = """
SELECT r.trigger_id, r.idempotency_key, r.id
  FROM json_to_recordset(%(keys)s::json) AS g(workspace_id uuid, trigger_id uuid, key text)
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.trigger_id = g.trigger_id AND r.idempotency_key = g.key
"""

AT_WORK_OUTSIDE_LANE = """
-- The run that an automation started in a session made for it. Chat turns of a session wait for each other in its lane.
SELECT id FROM runs
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND automation_id IS NOT NULL
   AND lane IS DISTINCT FROM session_id AND status IN ('queued', 'running', 'awaiting_approval')
 LIMIT 1
"""

QUEUED_OF = """
SELECT id FROM runs WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND status = 'queued'
   AND source NOT IN ('chat', 'task')
ORDER BY id LIMIT 1
"""


async def find(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(FIND, {"workspace_id": workspace_id, "id": run_id})
        return await cursor.fetchone()


FILTERS = ("automation_id", "agent_id", "session_id", "status")


async def page(
    conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int, **filters: Any
) -> list[dict[str, Any]]:
    """Runs, newest first, by any of `FILTERS`."""
    chosen = {name: value for name, value in filters.items() if value is not None and name in FILTERS}
    conditions = "".join(f" AND r.{name} = %({name})s" for name in chosen)
    async with conn.cursor(row_factory=dict_row) as cursor:
        given = {"workspace_id": workspace_id, "before": before, "limit": limit, **chosen}
        await cursor.execute(f"{LIST}{conditions} ORDER BY r.id DESC LIMIT %(limit)s".encode(), given)
        return await cursor.fetchall()


async def queued_of(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> RunId | None:
    rows = await conn.execute(QUEUED_OF, {"workspace_id": workspace_id, "automation_id": automation_id})
    row = await rows.fetchone()
    return row[0] if row else None


async def at_work_outside_lane(conn: Connection, workspace_id: WorkspaceId, session_id: UUID) -> RunId | None:
    row = await (
        await conn.execute(AT_WORK_OUTSIDE_LANE, {"workspace_id": workspace_id, "session_id": session_id})
    ).fetchone()
    return row[0] if row else None


SUBJECTS = """
-- What each run is of: its automation, or its agent when it was run directly.
SELECT r.id, g.name AS agent_name, a.name AS automation_name,
       CASE WHEN a.deleted_at IS NULL THEN a.slug ELSE a.id::text END AS automation_ref
  FROM runs r
       JOIN agents g ON g.workspace_id = r.workspace_id AND g.id = r.agent_id
       LEFT JOIN automations a ON a.workspace_id = r.workspace_id AND a.id = r.automation_id
 WHERE r.workspace_id = %(workspace_id)s AND r.id = ANY(%(ids)s)
"""


async def subjects(conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Names for a page of runs, by the run's id."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(SUBJECTS, {"workspace_id": workspace_id, "ids": list(ids)})
        return {row["id"]: row for row in await cursor.fetchall()}


async def by_keys(conn: Connection, keys: Iterable[tuple[UUID, UUID, str]]) -> dict[tuple[UUID, str], RunId]:
    """Runs that these triggers and idempotency keys have started before."""
    given = [{"workspace_id": w, "trigger_id": t, "key": key} for w, t, key in keys]
    rows = await conn.execute(BY_KEYS, {"keys": orjson.dumps(given).decode()})
    return {(trigger_id, key): run_id for trigger_id, key, run_id in await rows.fetchall()}


async def usual_duration(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> timedelta | None:
    given = {"workspace_id": workspace_id, "automation_id": automation_id}
    row = await (await conn.execute(USUAL_DURATION, given)).fetchone()
    return timedelta(seconds=row[0]) if row and row[0] is not None else None
