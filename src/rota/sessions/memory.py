"""Memory: remembered by agents at work and by people, recalled in later runs."""

from typing import Any

from rota.db import memory
from rota.db.pool import Connection
from rota.errors import Conflict, NotFound
from rota.model.ids import AutomationId, RunId, WorkspaceId
from rota.model.memory import MOST_KEYS, Remembered, check_key, checked


async def remember(
    conn: Connection,
    workspace_id: WorkspaceId,
    automation_id: AutomationId,
    given: Remembered,
    *,
    run_id: RunId | None = None,
) -> dict[str, Any]:
    """Keep a value in place of the one before it."""
    kept = await memory.put(conn, workspace_id, automation_id, checked(given), run_id=run_id)
    if kept is None:
        raise Conflict(
            f"This automation remembers {MOST_KEYS} things already; forget one first.", code="memory_full", field="key"
        )
    return kept


async def recall(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, key: str
) -> dict[str, Any] | None:
    check_key(key)
    return await memory.find(conn, workspace_id, automation_id, key)


async def forget(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, key: str) -> None:
    check_key(key)
    if not await memory.delete(conn, workspace_id, automation_id, key):
        raise NotFound("Nothing is remembered under this key.")
