"""Where a session's agent goes on: the last checkpoint, opaque, in place of the one before."""

from datetime import datetime
from uuid import UUID

from rota.db.pool import Connection
from rota.model.ids import RunId, SessionId, WorkspaceId

STORE = """
-- Fenced: the run's row is locked against a rescue, and must still belong to this attempt. Tasks of one session work side
-- by side, so each keeps its own.
WITH held AS (
    SELECT r.session_id, CASE WHEN r.source = 'task' THEN r.id ELSE r.session_id END AS thread
      FROM runs r
     WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s AND r.attempt = %(attempt)s
       AND r.status IN ('running', 'awaiting_approval') AND r.lease_until > clock_timestamp()
       FOR SHARE)
INSERT INTO checkpoints (workspace_id, session_id, thread, run_id, attempt, data)
SELECT %(workspace_id)s, session_id, thread, %(run_id)s, %(attempt)s, %(data)s FROM held
    ON CONFLICT (workspace_id, session_id, thread) DO UPDATE
   SET run_id = excluded.run_id, attempt = excluded.attempt, data = excluded.data, stored_at = clock_timestamp()
"""

FIND = """
SELECT data, stored_at FROM checkpoints
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND thread = %(thread)s
"""

HAND_ON = """
UPDATE checkpoints SET thread = %(new)s
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND thread = %(old)s
"""


async def store(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int, data: bytes) -> bool:
    """False: the attempt belongs to somebody else, and nothing was kept."""
    given = {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt, "data": data}
    return (await conn.execute(STORE, given)).rowcount > 0


async def find(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, thread: UUID
) -> tuple[bytes, datetime] | None:
    given = {"workspace_id": workspace_id, "session_id": session_id, "thread": thread}
    row = await (await conn.execute(FIND, given)).fetchone()
    return (row[0], row[1]) if row else None


async def hand_on(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, *, old: RunId, new: RunId
) -> None:
    """What a task's run left is its next run's."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "old": old, "new": new}
    await conn.execute(HAND_ON, given)
