"""Runs as they are read: the ledger, and when the next one may be claimed."""

from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import AutomationId, RunId, WorkspaceId

NEXT_READY = """
-- How long until a run that is queued for later may be claimed.
SELECT extract(epoch FROM min(ready_at) - clock_timestamp())::float8
  FROM runs WHERE status = 'queued' AND ready_at IS NOT NULL AND ready_at > clock_timestamp()
"""

COLUMNS = """
r.id, r.automation_id, r.trigger_id, r.session_id, r.agent_id, r.grant_id, r.revision, r.status, r.source, r.slot,
CASE WHEN r.missed_count > 0 THEN jsonb_build_object('count', r.missed_count, 'since', r.missed_since) END AS missed,
r.payload, r.prompt, r.input, r.retry_of, r.created_by, r.ready_at, r.queued_at, r.started_at, r.finished_at, r.attempt, r.tries, r.rescues,
r.max_attempts, r.worker_id, r.skip_reason, r.error_class, r.error_detail, r.summary, r.trace_id, r.cancel_requested_at,
(SELECT coalesce(jsonb_object_agg(unit, amount), '{}')
   FROM (SELECT unit, sum(amount) AS amount FROM usage u WHERE u.workspace_id = r.workspace_id AND u.run_id = r.id
         GROUP BY unit) spent) AS usage
"""

FIND = f"SELECT {COLUMNS} FROM runs r WHERE r.workspace_id = %(workspace_id)s AND r.id = %(id)s"  # noqa: S608

LIST = f"""
SELECT {COLUMNS} FROM runs r
 WHERE r.workspace_id = %(workspace_id)s AND r.id < coalesce(%(before)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
"""  # noqa: S608

QUEUED_OF = """
SELECT id FROM runs WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND status = 'queued'
   AND source NOT IN ('chat', 'task')
ORDER BY id LIMIT 1
"""


async def seconds_until_ready(conn: Connection) -> float | None:
    row = await (await conn.execute(NEXT_READY)).fetchone()
    return row[0] if row else None


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
