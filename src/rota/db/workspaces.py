"""A workspace's own name, zone and limits."""

from collections.abc import Mapping
from typing import Any

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.errors import NotFound
from rota.model.ids import WorkspaceId

FIND = """
SELECT id, slug, name, timezone, minimum_interval, max_concurrent, max_schedules, created_at
  FROM workspaces WHERE id = %(id)s
"""

CHANGE = """
UPDATE workspaces
   SET name = %(name)s, timezone = %(timezone)s, minimum_interval = %(minimum_interval)s,
       max_concurrent = %(max_concurrent)s, max_schedules = %(max_schedules)s
 WHERE id = %(id)s
"""


EVERYWHERE = """
SELECT w.id, w.slug, w.name, w.created_at,
       (SELECT count(*) FROM members m WHERE m.workspace_id = w.id AND m.removed_at IS NULL) AS members
  FROM workspaces w ORDER BY w.created_at, w.id
"""


async def everywhere(conn: Connection) -> list[dict[str, Any]]:
    """All workspaces of the server. For its operator."""
    return await named_rows(conn, EVERYWHERE, {})


async def find(conn: Connection, workspace_id: WorkspaceId, *, lock: bool = False) -> dict[str, Any]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(FIND + (" FOR NO KEY UPDATE" if lock else ""), {"id": workspace_id})
        found = await cursor.fetchone()
    if not found:
        raise NotFound("There is no such workspace.")
    return found


async def change(conn: Connection, workspace: Mapping[str, Any]) -> None:
    await conn.execute(CHANGE, workspace)
