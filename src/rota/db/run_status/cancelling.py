"""Live runs are asked to stop; who waits in nobody's hands ends at once."""

from dataclasses import dataclass

from psycopg.rows import args_row

from rota.db.pool import Connection
from rota.db.run_status.news import TELL, Ended, ended
from rota.model.ids import AutomationId, GrantId, RunId, SessionId, WorkspaceId

_REQUEST = """
-- Asks the worker of each live run to stop it; what is queued is ended by END_QUEUED, what is parked by END_PARKED.
WITH found AS MATERIALIZED ({which}),
chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id, r.cancel_requested_at IS NULL AS first
      FROM found f JOIN runs r ON r.workspace_id = %(workspace_id)s AND r.id = f.id
     WHERE r.status IN ('running', 'awaiting_approval') {and_what}
  ORDER BY r.id FOR UPDATE OF r)
   UPDATE runs r SET cancel_requested_at = coalesce(r.cancel_requested_at, clock_timestamp()),
                     cancel_reason = coalesce(r.cancel_reason, %(reason)s)
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING r.id, r.session_id, r.attempt, r.cancel_reason, c.first
"""

REQUEST_CANCEL = _REQUEST.format(
    which="""
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND id = %(id)s
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s
       AND source NOT IN ('chat', 'task')
     UNION
    SELECT t.id FROM taken_runs t JOIN live_runs l ON l.workspace_id = t.workspace_id AND l.id = t.id
     WHERE t.workspace_id = %(workspace_id)s AND t.session_id = %(session_id)s AND l.automation_id IS NULL""",
    and_what="",
)

# By itself: no index has the grant, so it looks at everything live in the workspace, which the others must not.
REQUEST_END_OF_GRANTS = _REQUEST.format(
    which="""
    SELECT id FROM taken_runs WHERE workspace_id = %(workspace_id)s""",
    and_what="AND r.grant_id = ANY(%(grant_ids)s)",
)

END_PARKED = (
    """
-- A run that waits for an answer in nobody's hands has no worker to end it.
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) AND status = 'awaiting_approval' AND lease_until IS NULL
       AND cancel_requested_at IS NOT NULL
  ORDER BY id FOR UPDATE),
changed AS (
   UPDATE runs r
      SET status = CASE WHEN r.cancel_reason = 'grant_invalid' THEN 'failed' ELSE 'cancelled' END,
          finished_at = clock_timestamp(), error_class = r.cancel_reason,
          error_detail = CASE r.cancel_reason WHEN 'grant_invalid' THEN 'Its grant was revoked while it waited for an answer.'
                         ELSE 'Cancelled while it waited for an answer.' END
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""
    + TELL
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A live run that somebody asked to cancel; `first` unless somebody had before."""

    id: RunId
    session_id: SessionId
    attempt: int
    reason: str
    first: bool


async def request_cancel(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    run_id: RunId | None = None,
    automation_id: AutomationId | None = None,
    session_id: SessionId | None = None,
    reason: str,
) -> list[Asked]:
    given = {"workspace_id": workspace_id, "id": run_id, "automation_id": automation_id, "session_id": session_id}
    async with conn.cursor(row_factory=args_row(Asked)) as cursor:
        await cursor.execute(REQUEST_CANCEL.encode(), {**given, "reason": reason})
        return await cursor.fetchall()


async def request_end_of_grants(conn: Connection, workspace_id: WorkspaceId, grant_ids: list[GrantId]) -> list[Asked]:
    """Ask for the end of what runs under grants that were revoked."""
    given = {"workspace_id": workspace_id, "grant_ids": grant_ids, "reason": "grant_invalid"}
    async with conn.cursor(row_factory=args_row(Asked)) as cursor:
        await cursor.execute(REQUEST_END_OF_GRANTS.encode(), given)
        return await cursor.fetchall()


async def end_parked(conn: Connection, workspace_id: WorkspaceId, ids: list[RunId]) -> list[Ended]:
    return await ended(conn, END_PARKED, {"workspace_id": workspace_id, "ids": ids})
