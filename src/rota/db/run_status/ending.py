"""Queued → cancelled, skipped or failed, without an attempt."""

from uuid import UUID

from rota.db.pool import Connection
from rota.db.run_status.news import ARE_HELD, COUNTED_IN, TELL, Ended, ended
from rota.model.ids import AgentId, AutomationId, GrantId, RunId, SessionId, WorkspaceId
from rota.model.run import SkipReason, Status

END_QUEUED = (
    """
-- Ends runs that are queued: one by its id, or all triggered ones that nobody has claimed yet, of an automation, an
-- agent or the workspace. Without IS NOT NULL all live runs would be read for an agent also where none is given.
WITH found AS MATERIALIZED (
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND id = %(id)s
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s
        AND %(agent_id)s::uuid IS NOT NULL
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND %(of_all)s::boolean),
chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM found f JOIN runs r ON r.workspace_id = %(workspace_id)s AND r.id = f.id
     WHERE r.status = 'queued'
       AND (r.id = %(id)s OR (r.trigger_id IS NOT NULL AND r.retry_of IS NULL AND r.attempt = 0))
  ORDER BY r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = %(status)s, finished_at = clock_timestamp(), skip_reason = %(skip_reason)s,
          error_class = %(error_class)s,
          error_detail = CASE WHEN %(error_class)s::text IS NULL THEN NULL WHEN r.started_at IS NULL
                              THEN 'Cancelled before it began.' ELSE 'Cancelled before it went on.' END
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""
    + TELL
)

END_OF_GRANTS = (
    """
-- What waits under grants that were just revoked: skipped if it never began, else failed. Found among the live ones.
WITH chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
     WHERE l.workspace_id = %(workspace_id)s
       AND r.grant_id = ANY(%(grant_ids)s) AND r.status = 'queued'
  ORDER BY r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = CASE WHEN r.started_at IS NULL THEN 'skipped' ELSE 'failed' END, finished_at = clock_timestamp(),
          skip_reason = CASE WHEN r.started_at IS NULL THEN 'grant_revoked' END,
          error_class = CASE WHEN r.started_at IS NOT NULL THEN 'grant_invalid' END,
          error_detail = CASE WHEN r.started_at IS NOT NULL THEN 'Its grant was revoked before it could go on.' END
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""
    + TELL
)

END_WAITING_EXCEPT = (
    """
WITH chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
     WHERE l.workspace_id = %(workspace_id)s AND l.automation_id = %(automation_id)s AND r.status = 'queued'
       AND l.source NOT IN ('chat', 'task') AND l.id <> ALL(%(keep)s)
  ORDER BY r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = 'cancelled', finished_at = clock_timestamp(), error_class = 'replaced',
          error_detail = 'A later run of this automation took its turn.'
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""
    + TELL
)

# As `format_duration` has it: 1h30m, 0.5s.
SPAN = """concat(
    nullif(floor(extract(epoch FROM r.start_within) / 86400), 0) || 'd',
    nullif(mod(floor(extract(epoch FROM r.start_within) / 3600), 24), 0) || 'h',
    nullif(mod(floor(extract(epoch FROM r.start_within) / 60), 60), 0) || 'm',
    nullif(trim_scale(mod(extract(epoch FROM r.start_within), 60)), 0) || 's')"""

END_STUCK = (
    f"""
-- Queued and ready for longer than it may wait for a place. Tasks wait as long as it takes. While its agent or workspace
-- runs as many as it may, it is not a place that is missing: time counts from when there was room again. The queue tells who
-- may be stuck, and each of those is looked up in the ledger: LIMIT 1, or a plan may read all of it.
WITH candidates AS MATERIALIZED (
    SELECT r.workspace_id, r.id, r.automation_id
      FROM ready_runs l
           JOIN workspaces w ON w.id = l.workspace_id
           LEFT JOIN agents q ON q.workspace_id = l.workspace_id AND q.id = l.queue
           CROSS JOIN LATERAL (
               SELECT * FROM runs r WHERE r.workspace_id = l.workspace_id AND r.id = l.id LIMIT 1) r
           JOIN agents a ON a.workspace_id = r.workspace_id AND a.id = r.agent_id
     WHERE l.stuck_at < statement_timestamp()
       AND greatest(l.ready_at, q.full_at, w.full_at) + (l.stuck_at - l.ready_at) < statement_timestamp()
       AND r.status = 'queued' AND r.source <> 'task'
       AND greatest(r.ready_at, a.full_at, w.full_at) + r.start_within < clock_timestamp()
     LIMIT %(limit)s),{COUNTED_IN}
chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM candidates c JOIN runs r ON r.workspace_id = c.workspace_id AND r.id = c.id
     WHERE {ARE_HELD} AND r.status = 'queued' AND r.ready_at + r.start_within < clock_timestamp()
       FOR UPDATE OF r SKIP LOCKED),
changed AS (
   UPDATE runs r
      SET status = 'failed', finished_at = clock_timestamp(), error_class = 'stuck',
          error_detail = 'It waited ' || {SPAN} || CASE WHEN EXISTS (
              SELECT FROM workers w
               WHERE w.last_seen_at >= r.ready_at AND r.executor = ANY(w.kinds) AND r.pool = ANY(w.pools))
              THEN ' for a worker with a free place.'
              ELSE ' for a worker that serves the kind ' || r.executor || ' in the pool ' || r.pool || '; none was there.' END
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""
    + TELL
)

END_OF_SESSION = (
    """
-- SKIP LOCKED: whoever claims one just now has its row and waits for the session's, which is ours.
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND status = 'queued' AND automation_id IS NULL
  ORDER BY id FOR UPDATE SKIP LOCKED),
changed AS (
   UPDATE runs r
      SET status = 'cancelled', finished_at = clock_timestamp(), error_class = 'cancelled_by_user',
          error_detail = CASE WHEN r.started_at IS NULL THEN 'Its session was ended before it began.'
                         ELSE 'Its session was ended before it went on.' END
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""
    + TELL
)


async def end_queued(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    run_id: RunId | None = None,
    automation_id: AutomationId | None = None,
    agent_id: AgentId | None = None,
    of_all: bool = False,
    status: Status,
    skip_reason: SkipReason | None = None,
    error_class: str | None = None,
) -> list[Ended]:
    """End runs that still wait: one by its id, or every triggered one of an automation, an agent or the workspace."""
    given = {
        "workspace_id": workspace_id, "id": run_id, "automation_id": automation_id, "agent_id": agent_id, "status": status,
        "skip_reason": skip_reason, "error_class": error_class, "of_all": of_all,
    }  # fmt: skip
    return await ended(conn, END_QUEUED, given)


async def end_of_grants(conn: Connection, workspace_id: WorkspaceId, grant_ids: list[GrantId]) -> list[Ended]:
    """End what waits under grants that were revoked."""
    return await ended(conn, END_OF_GRANTS, {"workspace_id": workspace_id, "grant_ids": grant_ids})


async def end_waiting_except(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, keep: list[UUID]
) -> list[Ended]:
    return await ended(
        conn, END_WAITING_EXCEPT, {"workspace_id": workspace_id, "automation_id": automation_id, "keep": keep}
    )


async def end_stuck(conn: Connection, limit: int) -> list[Ended]:
    return await ended(conn, END_STUCK, {"limit": limit})


async def end_of_session(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> list[Ended]:
    return await ended(conn, END_OF_SESSION, {"workspace_id": workspace_id, "session_id": session_id})
