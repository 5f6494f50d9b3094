"""Automations: what people saved, and what each last did."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from rota.db import at_once
from rota.db.at_once import Step
from rota.db.like import holding
from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.db.triggers import FLIGHT, POLICY_COLUMNS, STANDING
from rota.model.firing import Flight, Policy
from rota.model.ids import AgentId, AutomationId, UserId, WorkspaceId, as_uuid

COLUMNS = """
a.workspace_id, a.id, a.slug, a.name, a.agent_id, a.owner_id, a.grant_id, a.revision, a.status, a.paused_reason, a.prompt,
a.input, a.credentials, a.session, a.session_id, a.overlap, a.catch_up, a.catch_up_limit, a.late_after, a.max_attempts, a.max_rescues,
a.max_task_depth, a.max_tasks, a.timeout, a.start_within, a.approval_expires, a.pre_approvals, a.pause_after_failures, a.budget, a.failures, a.created_at, a.updated_at, a.deleted_at
"""

# One look-up for each automation on the page, by the index runs_of_automation.
SHOWN = f"""
SELECT {COLUMNS}, g.slug AS agent_slug, g.name AS agent_name, u.name AS owner_name, to_jsonb(last) AS last_run,
       (SELECT CASE WHEN h.revoked_at IS NOT NULL THEN 'grant_revoked' WHEN h.expires_at <= now() THEN 'grant_expired'
                    WHEN NOT h.scopes && ARRAY['agent:run:*', 'agent:run:' || a.agent_id] THEN 'grant_scope' END
          FROM grants h WHERE h.workspace_id = a.workspace_id AND h.id = a.grant_id) AS grant_problem,
       ARRAY(SELECT each FROM grants h, unnest(h.scopes) AS each
              WHERE h.workspace_id = a.workspace_id AND h.id = a.grant_id AND each NOT LIKE 'agent:run:%%') AS scopes
  FROM automations a
       JOIN agents g ON g.workspace_id = a.workspace_id AND g.id = a.agent_id
       JOIN users u ON u.id = a.owner_id
       LEFT JOIN LATERAL (
           SELECT r.id, r.status, r.source, r.slot, r.queued_at, r.started_at, r.finished_at, r.session_id, r.skip_reason,
                  r.error_class, left(r.error_detail, 500) AS error_detail, r.summary
             FROM runs r WHERE r.workspace_id = a.workspace_id AND r.automation_id = a.id
         ORDER BY r.id DESC LIMIT 1) last ON true
 WHERE a.workspace_id = %(workspace_id)s
"""  # noqa: S608

TAKEN = """
-- By the index automations_slug, which any collation of the database can be asked for equal words.
-- fence: one look-up for each slug, because without statistics all automations of the workspace would be read.
SELECT g.slug
  FROM unnest(%(slugs)s::text[]) AS g(slug)
       CROSS JOIN LATERAL (
           SELECT FROM automations a
            WHERE a.workspace_id = %(workspace_id)s AND a.slug = g.slug AND a.deleted_at IS NULL LIMIT 1) taken
"""

INSERT = """
INSERT INTO automations (workspace_id, id, slug, name, agent_id, owner_id, grant_id, prompt, input, credentials, session, session_id,
                         overlap, catch_up, catch_up_limit, late_after, max_attempts, max_rescues, max_task_depth, max_tasks,
                         timeout, start_within, approval_expires, pre_approvals, pause_after_failures, budget, status)
VALUES (%(workspace_id)s, %(id)s, %(slug)s, %(name)s, %(agent_id)s, %(owner_id)s, %(grant_id)s, %(prompt)s, %(input)s,
        %(credentials)s, %(session)s, %(session_id)s, %(overlap)s, %(catch_up)s, %(catch_up_limit)s, %(late_after)s, %(max_attempts)s,
        %(max_rescues)s, %(max_task_depth)s, %(max_tasks)s, %(timeout)s, %(start_within)s, %(approval_expires)s, %(pre_approvals)s,
        %(pause_after_failures)s, %(budget)s, %(status)s)
"""

UPDATE = """
UPDATE automations
   SET slug = %(slug)s, name = %(name)s, agent_id = %(agent_id)s, grant_id = %(grant_id)s, prompt = %(prompt)s,
       input = %(input)s, credentials = %(credentials)s, session = %(session)s, session_id = %(session_id)s, overlap = %(overlap)s,
       catch_up = %(catch_up)s, catch_up_limit = %(catch_up_limit)s, late_after = %(late_after)s,
       max_attempts = %(max_attempts)s, max_rescues = %(max_rescues)s, max_task_depth = %(max_task_depth)s,
       max_tasks = %(max_tasks)s, timeout = %(timeout)s,
       start_within = %(start_within)s, approval_expires = %(approval_expires)s,
       pre_approvals = %(pre_approvals)s,
       pause_after_failures = %(pause_after_failures)s, budget = %(budget)s, revision = revision + 1, updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

SET_STATUS = """
UPDATE automations SET status = %(status)s, paused_reason = %(reason)s, failures = 0, updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

DELETE = "UPDATE automations SET deleted_at = now(), updated_at = now() WHERE workspace_id = %(workspace_id)s AND id = %(id)s"

RESTORE = """
UPDATE automations
   SET deleted_at = NULL, grant_id = %(grant_id)s, owner_id = %(owner_id)s, session_id = %(session_id)s, updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

SET_GRANT = """
UPDATE automations SET grant_id = %(grant_id)s, updated_at = now() WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

NAMED_SO = """
 WHERE a.workspace_id = %(workspace_id)s AND (a.slug = %(ref)s OR a.id = %(id)s::uuid) AND a.deleted_at IS NULL
"""

HOLD = f"""
-- In a statement of its own: what is read next must be newer than the lock.
SELECT a.id, a.owner_id FROM automations a {NAMED_SO} FOR NO KEY UPDATE
"""  # noqa: S608

POLICY = f"""
SELECT {POLICY_COLUMNS} {FLIGHT}
  FROM automations a {STANDING} {NAMED_SO}
"""  # noqa: S608

HOLD_SESSION = """
SELECT status FROM sessions WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s FOR SHARE
"""

BY_REF = "((a.slug = %(ref)s AND a.deleted_at IS NULL) OR a.id = %(id)s::uuid)"

LOCK_ALL = """
-- Also those that are paused or deleted: whoever resumes or restores one now has looked whether the workspace is paused.
SELECT FROM automations WHERE workspace_id = %(workspace_id)s ORDER BY id FOR NO KEY UPDATE
"""

LOCK = f"""
-- In a statement of its own, as HOLD: joined to the agent it had before, one that was just given another would not be found.
SELECT FROM automations a WHERE a.workspace_id = %(workspace_id)s AND {BY_REF} FOR NO KEY UPDATE
"""

OPEN_SESSION = """
INSERT INTO sessions (workspace_id, id, kind, origin, automation_id, agent_id, owner_id)
VALUES (%(workspace_id)s, %(session_id)s, 'automation', 'schedule', %(id)s, %(agent_id)s, %(owner_id)s)
"""


async def find(conn: Connection, workspace_id: WorkspaceId, ref: str, *, lock: bool = False) -> dict[str, Any] | None:
    """One automation by id or slug. A deleted one is found by its id only."""
    given = {"workspace_id": workspace_id, "ref": ref, "id": as_uuid(ref)}
    if lock:
        await conn.execute(LOCK.encode(), given)
    found = await named_rows(conn, f"{SHOWN} AND {BY_REF}", given)
    return found[0] if found else None


async def lock_all(conn: Connection, workspace_id: WorkspaceId) -> None:
    """Wait for those who change or fire an automation of the workspace, and hold them all."""
    await conn.execute(LOCK_ALL, {"workspace_id": workspace_id})


async def taken(conn: Connection, workspace_id: WorkspaceId, slugs: Sequence[str]) -> set[str]:
    """Those of these slugs that automations have."""
    rows = await conn.execute(TAKEN, {"workspace_id": workspace_id, "slugs": list(slugs)})
    return {slug for (slug,) in await rows.fetchall()}


# What needs attention is gathered once, by indexes of the few: automations_failing_or_deleted, triggers_parked,
# grants_revoked and grants_ending. An array of ids is an index condition also under row-level security.
STANDINGS = {
    "active": "a.deleted_at IS NULL AND a.status = 'active'",
    "paused": "a.deleted_at IS NULL AND a.status = 'paused'",
    "attention": """a.deleted_at IS NULL AND a.id = ANY(ARRAY(
        SELECT f.id FROM automations f WHERE f.workspace_id = %(workspace_id)s AND f.failures > 0
         UNION
        SELECT t.automation_id FROM triggers t WHERE t.workspace_id = %(workspace_id)s AND t.parked_error IS NOT NULL
         UNION
        SELECT f.id FROM automations f
         WHERE f.workspace_id = %(workspace_id)s AND f.deleted_at IS NULL AND f.status = 'active' AND f.grant_id = ANY(ARRAY(
               SELECT h.id FROM grants h
                WHERE h.workspace_id = %(workspace_id)s AND h.automation_id IS NOT NULL AND h.revoked_at IS NOT NULL
                UNION ALL
               SELECT h.id FROM grants h
                WHERE h.workspace_id = %(workspace_id)s AND h.automation_id IS NOT NULL AND h.revoked_at IS NULL
                  AND h.expires_at <= now()))))""",
    "deleted": "a.deleted_at IS NOT NULL",
}

# The search reads the index automations_by_name before anything is joined: most automations are dismissed.
NAMED = """a.id = ANY(ARRAY(
    SELECT n.id FROM automations n
     WHERE n.workspace_id = %(workspace_id)s AND n.id < %(before)s {among}
       AND (n.name ILIKE %(like)s OR n.slug ILIKE %(like)s OR n.agent_id = ANY(ARRAY(
            SELECT o.id FROM agents o WHERE o.workspace_id = %(workspace_id)s AND o.name ILIKE %(like)s)))
  ORDER BY n.id DESC {few}))"""
# A range in this order leads PostgreSQL to automations_of_owner. It takes the few owners of a workspace for equally busy, and
# would look for one who has few automations among those of everybody.
OF_OWNER, BY_OWNER = "a.owner_id BETWEEN %(owner_id)s AND %(owner_id)s", "a.owner_id DESC, a.id"


async def page(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    limit: int,
    deleted: bool = False,
    standing: str | None = None,
    owner_id: UserId | None = None,
    search: str = "",
) -> list[dict[str, Any]]:
    """Newest first; those that stand so (`STANDINGS`), have this owner, or whose name, slug or agent holds these words."""
    shown = [STANDINGS[standing]] if standing else [] if deleted else ["a.deleted_at IS NULL"]
    if owner_id:
        shown.append(OF_OWNER)
    if search:
        among = "" if deleted or standing == "deleted" else "AND n.deleted_at IS NULL"
        few = "" if standing or owner_id else "LIMIT %(limit)s"
        shown.append(NAMED.format(among=among, few=few))
    conditions = "".join(f" AND {each}" for each in shown)
    in_order = BY_OWNER if owner_id else "a.id"
    query = f"{SHOWN}{conditions} AND a.id < %(before)s ORDER BY {in_order} DESC LIMIT %(limit)s"
    given = {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit, "owner_id": owner_id}
    return await named_rows(conn, query, {**given, "like": holding(search)})


FOUND_NAMES = """
-- For a search as somebody types: names only, the newest first.
SELECT a.id, a.slug, a.name FROM automations a
 WHERE a.workspace_id = %(workspace_id)s AND a.deleted_at IS NULL AND (a.name ILIKE %(like)s OR a.slug ILIKE %(like)s)
ORDER BY a.id DESC LIMIT %(limit)s
"""

CALLED = """
-- Those of this name, whatever its capitals.
SELECT a.id, a.slug, a.name FROM automations a
 WHERE a.workspace_id = %(workspace_id)s AND a.deleted_at IS NULL AND lower(a.name) = lower(%(name)s)
ORDER BY a.id DESC LIMIT %(limit)s
"""


async def names(conn: Connection, workspace_id: WorkspaceId, search: str, *, limit: int) -> list[dict[str, Any]]:
    like = holding(search)
    return await named_rows(conn, FOUND_NAMES, {"workspace_id": workspace_id, "like": like, "limit": limit})


async def called(conn: Connection, workspace_id: WorkspaceId, name: str, *, limit: int) -> list[dict[str, Any]]:
    return await named_rows(conn, CALLED, {"workspace_id": workspace_id, "name": name, "limit": limit})


OF_AGENT = """
-- By the index automations_of_agent, to which the range leads (see runs.OF_AGENT).
SELECT a.id, a.slug, a.name, a.status, a.deleted_at FROM automations a
 WHERE a.workspace_id = %(workspace_id)s AND a.agent_id BETWEEN %(agent_id)s AND %(agent_id)s AND a.deleted_at IS NULL
ORDER BY a.agent_id DESC, a.id DESC LIMIT %(limit)s
"""


async def of_agent(
    conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId, *, limit: int
) -> list[dict[str, Any]]:
    """Those that give this agent its work, the newest first."""
    return await named_rows(conn, OF_AGENT, {"workspace_id": workspace_id, "agent_id": agent_id, "limit": limit})


def _given(automation: dict[str, Any]) -> dict[str, Any]:
    asked = None if automation["input"] is None else Jsonb(automation["input"])
    budget = None if automation["budget"] is None else Jsonb(automation["budget"])
    return {**automation, "input": asked, "credentials": Jsonb(automation["credentials"]), "budget": budget}


async def insert(conn: Connection, automation: dict[str, Any]) -> None:
    await conn.execute(INSERT, _given(automation))


async def update(conn: Connection, automation: dict[str, Any]) -> None:
    await conn.execute(UPDATE, _given(automation))


async def can_go_on(conn: Connection, automation: dict[str, Any]) -> bool:
    """Whether it has a session of its own that nobody has archived, nor does before this transaction ends."""
    row = await (await conn.execute(HOLD_SESSION, automation)).fetchone()
    return bool(row and row[0] != "archived")


async def open_session(conn: Connection, automation: dict[str, Any]) -> None:
    """The one session in which an automation with `session: same` goes on."""
    await conn.execute(OPEN_SESSION, automation)


async def set_status(
    conn: Connection,
    workspace_id: WorkspaceId,
    automation_id: AutomationId,
    status: str,
    reason: str | None = None,
) -> None:
    await conn.execute(
        SET_STATUS, {"workspace_id": workspace_id, "id": automation_id, "status": status, "reason": reason}
    )


async def delete(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> None:
    await conn.execute(DELETE, {"workspace_id": workspace_id, "id": automation_id})


async def restore(
    conn: Connection,
    workspace_id: WorkspaceId,
    automation_id: AutomationId,
    *,
    grant_id: UUID,
    owner_id: UUID,
    session_id: UUID | None,
) -> None:
    given = {"grant_id": grant_id, "owner_id": owner_id, "session_id": session_id}
    await conn.execute(RESTORE, {"workspace_id": workspace_id, "id": automation_id, **given})


async def set_grant(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, grant_id: UUID) -> None:
    await conn.execute(SET_GRANT, {"workspace_id": workspace_id, "id": automation_id, "grant_id": grant_id})


class Held(NamedTuple):
    """An automation that is locked, with what its runs are to be like and which of them are there."""

    id: AutomationId
    owner_id: UserId
    policy: Policy
    flight: Flight


async def hold(
    conn: Connection, workspace_id: WorkspaceId, ref: str, *before: Step
) -> tuple[Held | None, list[list[TupleRow]]]:
    """One that is not deleted, by id or slug, and the rows of the steps that are to be taken before it is locked: one
    round trip."""
    given = {"workspace_id": workspace_id, "ref": ref, "id": as_uuid(ref)}
    *found, locked, policies = await at_once.run(conn, *before, (HOLD, given), (POLICY, given))
    if not locked:
        return None, found
    [(automation_id, owner_id)], [row] = locked, policies
    flight = Flight(bool(row[22]), bool(row[23]), bool(row[24]))
    return Held(automation_id, owner_id, Policy(*row[:22]), flight), found


PROMPT_THEN = """
SELECT spec ->> 'prompt' FROM revisions
 WHERE workspace_id = %(workspace_id)s AND subject_id = %(id)s AND revision = %(revision)s
"""


async def prompt_then(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, revision: int
) -> str | None:
    """The prompt of an earlier revision."""
    given = {"workspace_id": workspace_id, "id": automation_id, "revision": revision}
    row = await (await conn.execute(PROMPT_THEN, given)).fetchone()
    return row[0] if row else None


OUTCOMES = """
-- The newest runs of every automation on a page, each by the index runs_of_automation.
SELECT a.id, ARRAY(SELECT r.status FROM runs r
                    WHERE r.workspace_id = %(workspace_id)s AND r.automation_id = a.id
                 ORDER BY r.id DESC LIMIT %(limit)s)
  FROM unnest(%(ids)s::uuid[]) AS a(id)
"""


async def outcomes(
    conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID], *, limit: int
) -> dict[UUID, list[str]]:
    """How the last runs of each automation stand, newest first."""
    given = {"workspace_id": workspace_id, "ids": list(ids), "limit": limit}
    return dict(await (await conn.execute(OUTCOMES, given)).fetchall())
