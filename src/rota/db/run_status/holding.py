"""A session's tasks are kept back while it is paused."""

from collections.abc import Iterable
from uuid import UUID

import orjson

from rota.db.pool import Connection
from rota.model.ids import SessionId, WorkspaceId

HOLD = """
-- Runs of tasks that nobody has claimed wait without `ready_at` and without a lane until their session is resumed.
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND status = 'queued'
       AND ready_at IS NOT NULL AND lane IS NULL AND automation_id IS NULL
  ORDER BY id FOR UPDATE SKIP LOCKED)
UPDATE runs r SET ready_at = NULL FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""

HOLD_IN_PAUSED = """
-- The same for runs that go back to the queue while their session is paused.
UPDATE runs r SET ready_at = NULL
  FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
 WHERE r.workspace_id = g.workspace_id AND r.id = g.id AND r.status = 'queued' AND r.lane IS NULL
   AND EXISTS (SELECT FROM sessions s WHERE s.workspace_id = r.workspace_id AND s.id = r.session_id AND s.status = 'paused')
"""

LET_GO = """
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND status = 'queued'
       AND ready_at IS NULL AND lane IS NULL
  ORDER BY id FOR UPDATE)
UPDATE runs r SET ready_at = clock_timestamp() FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""

LOCK_LIVE = """
-- Runs are locked before their session, as everywhere. Those that an automation started are not the session's to end.
SELECT id FROM runs
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND automation_id IS NULL
   AND status IN ('queued', 'running', 'awaiting_approval')
ORDER BY id
   FOR UPDATE
"""


async def hold(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """Keep the session's tasks from starting."""
    await conn.execute(HOLD, {"workspace_id": workspace_id, "session_id": session_id})


async def hold_in_paused(conn: Connection, runs: Iterable[tuple[UUID, UUID]]) -> None:
    rows = [{"workspace_id": workspace_id, "id": run_id} for workspace_id, run_id in runs]
    await conn.execute(HOLD_IN_PAUSED, {"runs": orjson.dumps(rows).decode()})


async def let_go(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """Make ready what `hold` kept back."""
    await conn.execute(LET_GO, {"workspace_id": workspace_id, "session_id": session_id})


async def lock_live(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """Keep the session's own runs from being claimed or ended by others until this transaction ends."""
    await conn.execute(LOCK_LIVE, {"workspace_id": workspace_id, "session_id": session_id})
