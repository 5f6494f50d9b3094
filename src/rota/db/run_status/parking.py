"""Running ⇄ awaiting approval."""

from rota.db.pool import Connection
from rota.db.run_status.news import ARE_HELD, CHANGED, COUNTED_IN, TELL, TELL_OF_CHANGED, Ended, ended
from rota.model.ids import RunId, WorkspaceId
from rota.model.run import FIRST_IN_LINE

WAIT = """
-- The agent waits for an answer and keeps its process, place and lease.
UPDATE runs SET status = 'awaiting_approval'
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND attempt = %(attempt)s
   AND status = 'running' AND lease_until > clock_timestamp()
"""

GO_ON = """
-- All is answered, and the process that waits still holds its lease. One that does not is rescued.
UPDATE runs r SET status = 'running'
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'awaiting_approval' AND lease_until > clock_timestamp()
   AND NOT EXISTS (SELECT FROM approvals a
                    WHERE a.workspace_id = r.workspace_id AND a.run_id = r.id AND a.status = 'pending')
"""

RESUME = (
    """
-- All is answered: a parked run is queued before everybody else, and stays there if it has to be tried again.
WITH changed AS (
   UPDATE runs r
      SET status = 'queued', ready_at = clock_timestamp(), priority = %(priority)s, worker_id = NULL
    WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'awaiting_approval' AND lease_until IS NULL
      AND NOT EXISTS (SELECT FROM approvals a
                       WHERE a.workspace_id = r.workspace_id AND a.run_id = r.id AND a.status = 'pending')
RETURNING """
    + CHANGED
    + """, false AS freed, 'answered' AS reason, NULL AS fault),
"""
    + TELL_OF_CHANGED
)

FAIL_PARKED = (
    """
-- A run that waits for an answer that nobody can give any more.
WITH changed AS (
   UPDATE runs r
      SET status = 'failed', finished_at = clock_timestamp(), error_class = %(error_class)s, error_detail = %(error_detail)s
    WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'awaiting_approval' AND lease_until IS NULL
"""
    + TELL
)

END_EXPIRED = (
    f"""
-- Nobody answered in time. A process that still waits loses its lease with it, and is stopped by its worker.
WITH due AS MATERIALIZED (
    SELECT DISTINCT workspace_id, run_id FROM (
        SELECT workspace_id, run_id FROM approvals
         WHERE status = 'pending' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT %(limit)s) first),
candidates AS MATERIALIZED (
    SELECT r.workspace_id, r.id, r.automation_id
      FROM due d JOIN runs r ON r.workspace_id = d.workspace_id AND r.id = d.run_id
     WHERE r.status = 'awaiting_approval'),{COUNTED_IN}
chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id, r.lease_until IS NOT NULL AS leased
      FROM candidates c JOIN runs r ON r.workspace_id = c.workspace_id AND r.id = c.id
     WHERE {ARE_HELD} AND r.status = 'awaiting_approval'
  ORDER BY r.workspace_id, r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = 'failed', finished_at = clock_timestamp(), error_class = 'approval_expired',
          error_detail = 'Nobody answered in time.', lease_until = NULL, attempt_token_hash = NULL
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, c.leased AS freed, NULL AS reason, NULL AS fault),
"""
    + TELL_OF_CHANGED
)


async def wait(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> None:
    """Running → awaiting approval, in the same place."""
    await conn.execute(WAIT, {"workspace_id": workspace_id, "id": run_id, "attempt": attempt})


async def go_on(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> bool:
    """Awaiting approval → running, in the same place."""
    return (await conn.execute(GO_ON, {"workspace_id": workspace_id, "id": run_id})).rowcount > 0


async def resume(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> list[Ended]:
    """Awaiting approval, parked → queued, first in line."""
    return await ended(conn, RESUME, {"workspace_id": workspace_id, "id": run_id, "priority": FIRST_IN_LINE})


async def fail_parked(
    conn: Connection, workspace_id: WorkspaceId, run_id: RunId, *, error_class: str, error_detail: str
) -> list[Ended]:
    given = {"workspace_id": workspace_id, "id": run_id, "error_class": error_class, "error_detail": error_detail}
    return await ended(conn, FAIL_PARKED, given)


async def end_expired(conn: Connection, limit: int) -> list[Ended]:
    return await ended(conn, END_EXPIRED, {"limit": limit})
