"""What automations remember. What has expired is not there, also before it is pruned."""

from typing import Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rota.db.pool import Connection
from rota.model.ids import AutomationId, RunId, WorkspaceId
from rota.model.memory import MOST_KEYS, Remembered

PUT = """
-- The count keeps an automation from growing without end; two that come at once may both be the last.
INSERT INTO memory AS m (workspace_id, automation_id, key, value, confidence, expires_at, run_id)
SELECT %(workspace_id)s, %(automation_id)s, %(key)s, %(value)s, %(confidence)s, now() + %(ttl)s::interval, %(run_id)s
 WHERE %(most)s > (SELECT count(*) FROM memory
                    WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND key <> %(key)s
                      AND (expires_at IS NULL OR expires_at > now()))
    ON CONFLICT (workspace_id, automation_id, key) DO UPDATE
   SET value = excluded.value, confidence = excluded.confidence, expires_at = excluded.expires_at,
       run_id = excluded.run_id, updated_at = now(),
       created_at = CASE WHEN m.expires_at <= now() THEN now() ELSE m.created_at END
RETURNING key, value, confidence, expires_at, run_id, created_at, updated_at
"""

PAGE = """
SELECT key, value, confidence, expires_at, run_id, created_at, updated_at FROM memory
 WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND key > %(after)s
   AND (expires_at IS NULL OR expires_at > now())
ORDER BY key LIMIT %(limit)s
"""

FIND = """
SELECT key, value, confidence, expires_at, run_id, created_at, updated_at FROM memory
 WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND key = %(key)s
   AND (expires_at IS NULL OR expires_at > now())
"""

DELETE = """
   DELETE FROM memory
    WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND key = %(key)s
RETURNING expires_at IS NULL OR expires_at > now()
"""


async def put(
    conn: Connection,
    workspace_id: WorkspaceId,
    automation_id: AutomationId,
    given: Remembered,
    *,
    run_id: RunId | None = None,
) -> dict[str, Any] | None:
    """Keep a value in place of the one before; None if the automation's memory is full."""
    values = {
        "workspace_id": workspace_id, "automation_id": automation_id, "key": given.key, "value": Jsonb(given.value),
        "confidence": given.confidence, "ttl": given.ttl, "run_id": run_id, "most": MOST_KEYS,
    }  # fmt: skip
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(PUT, values)
        return await cursor.fetchone()


async def page(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, *, after: str, limit: int
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "automation_id": automation_id, "after": after, "limit": limit}
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(PAGE, given)
        return await cursor.fetchall()


async def find(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, key: str
) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(FIND, {"workspace_id": workspace_id, "automation_id": automation_id, "key": key})
        return await cursor.fetchone()


async def delete(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, key: str) -> bool:
    """Whether there was something to forget."""
    rows = await conn.execute(DELETE, {"workspace_id": workspace_id, "automation_id": automation_id, "key": key})
    row = await rows.fetchone()
    return bool(row and row[0])
