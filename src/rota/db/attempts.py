"""What belongs to one attempt: its lease, and the token with which its agent reaches Rota over HTTP."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import as_uuid

RENEW = """
-- One statement for the whole process. What doesn't come back belongs to somebody else now; whose grant has ended
-- meanwhile is asked to stop.
   UPDATE runs r
      SET lease_until = clock_timestamp() + %(lease)s,
          (cancel_requested_at, cancel_reason) = (
              SELECT coalesce(r.cancel_requested_at, CASE WHEN over THEN clock_timestamp() END),
                     coalesce(r.cancel_reason, CASE WHEN over THEN 'grant_invalid' END)
                FROM (SELECT EXISTS (
                          SELECT FROM grants h WHERE h.workspace_id = r.workspace_id AND h.id = r.grant_id
                             AND (h.revoked_at IS NOT NULL OR h.expires_at <= now())) AS over) held)
     FROM json_to_recordset(%(attempts)s::json) AS g(workspace_id uuid, id uuid, attempt integer)
    WHERE r.workspace_id = g.workspace_id AND r.id = g.id AND r.attempt = g.attempt
      AND r.status IN ('running', 'awaiting_approval') AND r.lease_until > clock_timestamp()
RETURNING r.id, r.cancel_requested_at IS NOT NULL
"""

BY_TOKEN = """
-- A zombie's token finds nothing: the lease must be held, by this attempt, under a grant that still holds.
SELECT g.user_id, r.workspace_id, r.session_id, r.id AS run_id, r.attempt, g.id AS grant_id, g.account_id, g.scopes,
       coalesce(r.automation_id, (SELECT s.automation_id FROM sessions s
                                   WHERE s.workspace_id = r.workspace_id AND s.id = r.session_id)) AS automation_id
  FROM runs r JOIN grants g ON g.workspace_id = r.workspace_id AND g.id = r.grant_id
 WHERE r.workspace_id = %(workspace_id)s AND r.id = %(id)s AND r.attempt = %(attempt)s
   AND r.status IN ('running', 'awaiting_approval') AND r.lease_until > clock_timestamp() AND r.attempt_token_hash = %(hash)s
   AND g.revoked_at IS NULL AND (g.expires_at IS NULL OR g.expires_at > now())
"""

# What an id or slug names. No slug has the form of an id, so it is one thing at most.
NAMED = {
    "automation": """
SELECT id FROM automations
 WHERE workspace_id = %(workspace_id)s AND ((slug = %(ref)s AND deleted_at IS NULL) OR id = %(id)s::uuid)
""",
    "agent": """
SELECT id FROM agents
 WHERE workspace_id = %(workspace_id)s AND ((slug = %(ref)s AND deleted_at IS NULL) OR id = %(id)s::uuid)
""",
}

OWN_RUN = """
SELECT FROM runs
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND (session_id = %(session_id)s OR automation_id = %(automation_id)s)
"""

OWN_APPROVAL = """
SELECT FROM approvals WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND session_id = %(session_id)s
"""

SEAT = """
-- The role is that of its task, else the one that a person gave its agent in the session; where none is declared, `agent`.
-- Those that an agent named, for tasks, are no seats: neither it nor a later turn of it becomes one of them.
SELECT r.session_id, r.source, r.budget IS NOT NULL AS budgeted,
       coalesce(r.automation_id, (SELECT s.automation_id FROM sessions s
                                   WHERE s.workspace_id = r.workspace_id AND s.id = r.session_id)) AS automation_id,
       coalesce((SELECT t.role FROM tasks t WHERE t.workspace_id = r.workspace_id AND t.run_id = r.id),
                (SELECT min(s.name) FROM session_roles s
                  WHERE s.workspace_id = r.workspace_id AND s.session_id = r.session_id AND s.agent_id = r.agent_id
                    AND NOT s.named_by_agent),
                'agent') AS role
  FROM runs r
 WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s
"""

STOPPING = "SELECT cancel_requested_at IS NOT NULL FROM runs WHERE workspace_id = %(workspace_id)s AND id = %(run_id)s"

COUNT_REFUSED_TASKS = """
-- By error code; whether these are the first.
   UPDATE runs
      SET refused_tasks = coalesce(refused_tasks, '{}') || jsonb_build_object(
              %(code)s::text, coalesce((refused_tasks ->> %(code)s)::bigint, 0) + %(count)s)
    WHERE workspace_id = %(workspace_id)s AND id = %(run_id)s
RETURNING (refused_tasks ->> %(code)s)::bigint = %(count)s
"""

GRANTED_LEVEL = """
SELECT m.level FROM runs r
       JOIN grants g ON g.workspace_id = r.workspace_id AND g.id = r.grant_id
        AND g.revoked_at IS NULL AND (g.expires_at IS NULL OR g.expires_at > now())
       JOIN members m ON m.workspace_id = g.workspace_id AND m.user_id = g.user_id AND m.removed_at IS NULL
 WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s
"""


async def renew(conn: Connection, attempts: Iterable[tuple[UUID, UUID, int]], lease: timedelta) -> dict[UUID, bool]:
    """Renew leases; the runs still ours, each with whether somebody asked to cancel it."""
    given = [{"workspace_id": w, "id": r, "attempt": a} for w, r, a in sorted(attempts)]  # locked in this order
    rows = await conn.execute(RENEW, {"attempts": orjson.dumps(given).decode(), "lease": lease})
    return dict(await rows.fetchall())


async def by_token(
    conn: Connection, workspace_id: UUID, run_id: UUID, attempt: int, token_hash: bytes
) -> dict[str, Any] | None:
    given = {"workspace_id": workspace_id, "id": run_id, "attempt": attempt, "hash": token_hash}
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(BY_TOKEN, given)
        return await cursor.fetchone()


async def find_named(conn: Connection, workspace_id: UUID, kind: str, ref: str) -> UUID | None:
    """The automation or agent that an id or slug names."""
    rows = await conn.execute(NAMED[kind], {"workspace_id": workspace_id, "ref": ref, "id": as_uuid(ref)})
    found = await rows.fetchone()
    return found[0] if found else None


async def has_run(
    conn: Connection, workspace_id: UUID, session_id: UUID, automation_id: UUID | None, run_id: UUID | None
) -> bool:
    """Whether a run belongs to this session or to this automation."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "automation_id": automation_id, "id": run_id}
    return (await conn.execute(OWN_RUN, given)).rowcount == 1


async def has_approval(conn: Connection, workspace_id: UUID, session_id: UUID, approval_id: UUID | None) -> bool:
    given = {"workspace_id": workspace_id, "session_id": session_id, "id": approval_id}
    return (await conn.execute(OWN_APPROVAL, given)).rowcount == 1


async def granted_level(conn: Connection, workspace_id: UUID, run_id: UUID) -> str | None:
    """The level of the person on whose grant a run works; None once the grant has ended or they have left."""
    rows = await conn.execute(GRANTED_LEVEL, {"workspace_id": workspace_id, "run_id": run_id})
    found = await rows.fetchone()
    return found[0] if found else None


async def seat(conn: Connection, workspace_id: UUID, run_id: UUID) -> dict[str, Any] | None:
    """Where a run's agent sits: its session, its automation and its role."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(SEAT, {"workspace_id": workspace_id, "run_id": run_id})
        return await cursor.fetchone()


async def count_refused_tasks(conn: Connection, workspace_id: UUID, run_id: UUID, *, code: str, count: int) -> bool:
    """Count tasks that the run's agent wanted to add; whether they are the first that were refused with this code."""
    given = {"workspace_id": workspace_id, "run_id": run_id, "code": code, "count": count}
    found = await (await conn.execute(COUNT_REFUSED_TASKS, given)).fetchone()
    return bool(found and found[0])


async def is_stopping(conn: Connection, workspace_id: UUID, run_id: UUID) -> bool:
    """Whether the run at work was asked to stop."""
    found = await (await conn.execute(STOPPING, {"workspace_id": workspace_id, "run_id": run_id})).fetchone()
    return bool(found and found[0])
