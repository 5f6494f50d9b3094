"""Sessions as they are read."""

from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import SessionId, WorkspaceId

SHOWN = """
SELECT s.id, s.kind, s.status, s.origin, s.automation_id, s.agent_id, s.owner_id, s.last_seq, s.created_at, s.updated_at,
       coalesce(s.title, a.name, g.name) AS title, g.name AS agent_name, g.slug AS agent_slug
  FROM sessions s
       JOIN agents g ON g.workspace_id = s.workspace_id AND g.id = s.agent_id
       LEFT JOIN automations a ON a.workspace_id = s.workspace_id AND a.id = s.automation_id
 WHERE s.workspace_id = %(workspace_id)s
"""

ORIGIN = """
-- Its first run, if an automation started it.
SELECT a.id AS automation_id, a.name AS automation_name, a.slug AS automation_slug, r.id AS run_id, r.source, r.slot,
       r.started_at, r.queued_at
  FROM sessions s
       JOIN automations a ON a.workspace_id = s.workspace_id AND a.id = s.automation_id
       JOIN LATERAL (
           SELECT * FROM runs r WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id ORDER BY r.id LIMIT 1) r ON true
 WHERE s.workspace_id = %(workspace_id)s AND s.id = %(id)s
"""

FILTERS = ("kind", "automation_id", "agent_id", "status")


async def find(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(f"{SHOWN} AND s.id = %(id)s".encode(), {"workspace_id": workspace_id, "id": session_id})
        return await cursor.fetchone()


async def page(
    conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int, **filters: Any
) -> list[dict[str, Any]]:
    chosen = {name: value for name, value in filters.items() if value is not None and name in FILTERS}
    conditions = "".join(f" AND s.{name} = %({name})s" for name in chosen)
    query = f"{SHOWN}{conditions} AND s.id < coalesce(%(before)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')"
    async with conn.cursor(row_factory=dict_row) as cursor:
        given = {"workspace_id": workspace_id, "before": before, "limit": limit, **chosen}
        await cursor.execute(f"{query} ORDER BY s.id DESC LIMIT %(limit)s".encode(), given)
        return await cursor.fetchall()


async def origin(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(ORIGIN, {"workspace_id": workspace_id, "id": session_id})
        return await cursor.fetchone()
