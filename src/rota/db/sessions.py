"""Sessions: made, read, and changed under the lock of their row."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rota.db import imports
from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.model.ids import AutomationId, SessionId, WorkspaceId
from rota.model.session import SessionStatus

SHOWN = """
SELECT s.id, s.kind, s.status, s.origin, s.automation_id, s.agent_id, s.owner_id, s.last_seq, s.created_at, s.updated_at,
       s.goal, s.has_tasks, s.imported, coalesce(s.title, a.name, g.name, 'Session') AS title, g.name AS agent_name,
       g.slug AS agent_slug, CASE WHEN g.deleted_at IS NULL THEN g.id END AS agent_ref
  FROM sessions s
       LEFT JOIN agents g ON g.workspace_id = s.workspace_id AND g.id = s.agent_id
       LEFT JOIN automations a ON a.workspace_id = s.workspace_id AND a.id = s.automation_id
 WHERE s.workspace_id = %(workspace_id)s
"""

ORIGIN = """
-- Its first run, if an automation started it.
SELECT a.id AS automation_id, a.name AS automation_name, a.slug AS automation_slug, a.owner_id,
       a.deleted_at, r.id AS run_id, r.source, r.slot,
       r.started_at, r.queued_at
  FROM sessions s
       JOIN automations a ON a.workspace_id = s.workspace_id AND a.id = s.automation_id
       JOIN LATERAL (
           SELECT * FROM runs r WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id ORDER BY r.id LIMIT 1) r ON true
 WHERE s.workspace_id = %(workspace_id)s AND s.id = %(id)s
"""

INSERT = """
INSERT INTO sessions (workspace_id, id, kind, status, origin, title, goal, agent_id, owner_id, has_tasks, imported)
VALUES (%(workspace_id)s, %(id)s, %(kind)s, %(status)s, %(origin)s, %(title)s, %(goal)s, %(agent_id)s, %(owner_id)s,
        %(has_tasks)s, %(imported)s)
"""

LOCK = """
SELECT s.id, s.kind, s.status, s.goal, s.automation_id, s.agent_id, s.owner_id, s.has_tasks, s.imported, s.last_seq
  FROM sessions s WHERE s.workspace_id = %(workspace_id)s AND s.id = %(id)s FOR NO KEY UPDATE
"""

HAS_LIVE_RUN = """
SELECT EXISTS (SELECT FROM runs
                WHERE workspace_id = %(workspace_id)s AND session_id = %(id)s AND finished_at IS NULL)
"""

GOES_ON = """
SELECT EXISTS (SELECT FROM automations
                WHERE workspace_id = %(workspace_id)s AND id = %(automation_id)s AND session_id = %(id)s
                  AND session = 'same' AND deleted_at IS NULL)
"""

MOVE = """
UPDATE sessions SET status = %(to)s, updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = %(was)s
"""

IMPORTED = """
UPDATE sessions
   SET imported = %(imported)s, last_seq = %(last_seq)s, has_tasks = has_tasks OR %(has_tasks)s, updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND imported IS NOT NULL AND status = 'archived'
"""

GO_ON = """
   UPDATE sessions s SET status = 'active', updated_at = now()
     FROM json_to_recordset(%(sessions)s::json) AS g(workspace_id uuid, id uuid)
    WHERE s.workspace_id = g.workspace_id AND s.id = g.id AND s.status IN ('done', 'failed')
RETURNING s.workspace_id, s.id
"""

KEEP_TASKS = """
UPDATE sessions SET has_tasks = true WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND NOT has_tasks
"""

SETTLE = """
-- Sessions in which something ended: each is over when no task of it is open and no run of it lives. Failed if a task or the
-- automation's run failed; without tasks, if what just ended did. Chats, and the one session of an automation, go on.
-- The live runs are looked for only when no task is open, and it is no automation's one session: either may have thousands.
-- fence: LIMIT 1, because EXISTS may be planned as a hash of all open tasks of the workspace.
   UPDATE sessions s
      SET updated_at = now(),
          status = CASE WHEN CASE WHEN s.has_tasks THEN EXISTS (
                                       SELECT FROM tasks t WHERE t.workspace_id = s.workspace_id AND t.session_id = s.id
                                          AND t.status = 'failed')
                                    OR EXISTS (
                                       SELECT FROM runs r WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id
                                          AND r.automation_id IS NOT NULL AND r.status IN ('failed', 'cancelled'))
                                  ELSE g.failed END
                        THEN 'failed' ELSE 'done' END
     FROM json_to_recordset(%(sessions)s::json) AS g(workspace_id uuid, id uuid, failed boolean)
    WHERE s.workspace_id = g.workspace_id AND s.id = g.id AND s.status IN ('active', 'paused')
      AND s.kind <> 'interactive' AND (s.has_tasks OR s.kind = 'automation')
      AND CASE WHEN (
                        SELECT true FROM tasks t WHERE t.workspace_id = s.workspace_id AND t.session_id = s.id
                           AND t.status IN ('pending', 'ready') LIMIT 1) THEN false
               WHEN EXISTS (
                        SELECT FROM automations a WHERE a.workspace_id = s.workspace_id AND a.id = s.automation_id
                           AND a.session_id = s.id) THEN false
               ELSE NOT EXISTS (
                        SELECT FROM runs r WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id
                           AND r.status IN ('queued', 'running', 'awaiting_approval')) END
RETURNING s.workspace_id, s.id, s.status
"""

ROLES = """
SELECT r.name, r.agent_id, r.created_at, a.slug AS agent, a.name AS agent_name
  FROM session_roles r JOIN agents a ON a.workspace_id = r.workspace_id AND a.id = r.agent_id
 WHERE r.workspace_id = %(workspace_id)s AND r.session_id = %(session_id)s
ORDER BY r.created_at, r.name
"""

ADD_ROLE = """
INSERT INTO session_roles (workspace_id, session_id, name, agent_id, grant_id)
VALUES (%(workspace_id)s, %(session_id)s, %(name)s, %(agent_id)s, %(grant_id)s)
    ON CONFLICT (workspace_id, session_id, name) DO NOTHING
RETURNING name
"""

TAKE_SEAT = """
-- A role that an agent names for its tasks is on the grant of the run in which it does so, also when it named it in an earlier
-- one, whose grant may have ended. What a person gave stays as it is.
INSERT INTO session_roles AS s (workspace_id, session_id, name, agent_id, grant_id, named_by_agent)
VALUES (%(workspace_id)s, %(session_id)s, %(name)s, %(agent_id)s, %(grant_id)s, true)
    ON CONFLICT (workspace_id, session_id, name) DO UPDATE SET grant_id = excluded.grant_id
 WHERE s.named_by_agent AND s.agent_id = excluded.agent_id AND s.grant_id <> excluded.grant_id
"""

FILTERS = ("kind", "automation_id", "agent_id", "owner_id", "status", "origin")
# Ranges in these orders lead PostgreSQL to sessions_of_owner and sessions_of_agent, also for one with few (automations.OF_OWNER).
OF_OWNER, BY_OWNER = "s.owner_id BETWEEN %(owner_id)s AND %(owner_id)s", "s.owner_id DESC, s.id"
OF_AGENT, BY_AGENT = "s.agent_id BETWEEN %(agent_id)s AND %(agent_id)s", "s.agent_id DESC, s.id"
BY_SCHEDULE = "schedule"  # as most are


async def find(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(f"{SHOWN} AND s.id = %(id)s".encode(), {"workspace_id": workspace_id, "id": session_id})
        return await cursor.fetchone()


async def page(
    conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int, **filters: Any
) -> list[dict[str, Any]]:
    chosen = {name: value for name, value in filters.items() if value is not None and name in FILTERS}
    of, in_order = {name: f"s.{name} = %({name})s" for name in chosen}, "s.id"
    if "owner_id" in chosen:
        of["owner_id"], in_order = OF_OWNER, BY_OWNER
    elif "agent_id" in chosen:
        of["agent_id"], in_order = OF_AGENT, BY_AGENT
    conditions = "".join(f" AND {each}" for each in of.values()) + _implied(**chosen)
    query = f"{SHOWN}{conditions} AND s.id < %(before)s"
    async with conn.cursor(row_factory=dict_row) as cursor:
        given = {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit, **chosen}
        await cursor.execute(f"{query} ORDER BY {in_order} DESC LIMIT %(limit)s".encode(), given)
        return await cursor.fetchall()


def _implied(*, kind: str | None = None, status: str | None = None, origin: str | None = None, **_: Any) -> str:
    """What is true of the chosen anyway, said so that any plan may use an index of the few: sessions_of_rare_origin, and
    sessions_of_people, because nothing but goals is drafted. No index has a status: it changes when a run ends."""
    rare = f" AND s.origin <> '{BY_SCHEDULE}'" if origin not in (None, BY_SCHEDULE) else ""
    of_people = " AND s.kind <> 'automation'" if kind not in (None, "automation") else ""
    return rare + of_people + (" AND s.kind = 'background'" if status == SessionStatus.DRAFT else "")


async def origin(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(ORIGIN, {"workspace_id": workspace_id, "id": session_id})
        return await cursor.fetchone()


async def insert(
    conn: Connection,
    workspace_id: WorkspaceId,
    session_id: SessionId,
    *,
    kind: str,
    status: str,
    owner_id: UUID,
    agent_id: UUID | None,
    title: str | None,
    goal: str | None = None,
    origin: str = "user",
    has_tasks: bool = False,
    imported: Mapping[str, Any] | None = None,
) -> None:
    given = {
        "workspace_id": workspace_id, "id": session_id, "kind": kind, "status": status, "owner_id": owner_id,
        "agent_id": agent_id, "title": title, "goal": goal, "origin": origin, "has_tasks": has_tasks,
        "imported": None if imported is None else Jsonb(dict(imported)),
    }  # fmt: skip
    await conn.execute(INSERT, given)


async def lock(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> dict[str, Any] | None:
    """The session, which nobody else changes before this transaction ends."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(LOCK, {"workspace_id": workspace_id, "id": session_id})
        return await cursor.fetchone()


async def has_live_run(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> bool:
    row = await (await conn.execute(HAS_LIVE_RUN, {"workspace_id": workspace_id, "id": session_id})).fetchone()
    return bool(row and row[0])


async def goes_on(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, automation_id: AutomationId
) -> bool:
    """Whether the next run of this automation works in this session too."""
    given = {"workspace_id": workspace_id, "id": session_id, "automation_id": automation_id}
    row = await (await conn.execute(GOES_ON, given)).fetchone()
    return bool(row and row[0])


async def move(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, *, was: str, to: str) -> None:
    """Change the status of a locked session."""
    moved = await conn.execute(MOVE, {"workspace_id": workspace_id, "id": session_id, "was": was, "to": to})
    assert moved.rowcount == 1, "the caller holds its lock and has seen its status"


async def go_on(
    conn: Connection, where: Iterable[tuple[WorkspaceId, SessionId]]
) -> list[tuple[WorkspaceId, SessionId]]:
    """Make locked sessions active again; those that had ended."""
    given = [{"workspace_id": workspace_id, "id": session_id} for workspace_id, session_id in where]
    rows = await conn.execute(GO_ON, {"sessions": orjson.dumps(given).decode()})
    return [(workspace_id, session_id) for workspace_id, session_id in await rows.fetchall()]


async def keep_tasks(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """From now on it ends with its tasks."""
    await conn.execute(KEEP_TASKS, {"workspace_id": workspace_id, "id": session_id})


async def imported(
    conn: Connection,
    workspace_id: WorkspaceId,
    session_id: SessionId,
    facts: Mapping[str, Any],
    *,
    last_seq: int,
    has_tasks: bool,
) -> None:
    """How far the import of a locked session has come."""
    given = {"workspace_id": workspace_id, "id": session_id, "last_seq": last_seq, "has_tasks": has_tasks}
    await conn.execute(IMPORTED, {**given, "imported": Jsonb(dict(facts))})


async def settle(
    conn: Connection, failed: Mapping[tuple[WorkspaceId, SessionId], bool]
) -> list[tuple[WorkspaceId, SessionId, str]]:
    """End locked sessions in which nothing is left to do; those that ended, and how."""
    rows = [{"workspace_id": w, "id": s, "failed": each} for (w, s), each in failed.items()]
    found = await conn.execute(SETTLE, {"sessions": orjson.dumps(rows).decode()})
    return [(workspace_id, session_id, status) for workspace_id, session_id, status in await found.fetchall()]


async def roles(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(ROLES, {"workspace_id": workspace_id, "session_id": session_id})
        found = await cursor.fetchall()
    return found or await imports.roles(conn, (workspace_id, session_id))


async def add_role(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, name: str, agent_id: UUID, grant_id: UUID
) -> bool:
    """False if the session has such a role already."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "name": name}
    rows = await conn.execute(ADD_ROLE, {**given, "agent_id": agent_id, "grant_id": grant_id})
    return await rows.fetchone() is not None


async def take_seat(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, name: str, agent_id: UUID, grant_id: UUID
) -> None:
    """A role that an agent names itself."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "name": name}
    await conn.execute(TAKE_SEAT, {**given, "agent_id": agent_id, "grant_id": grant_id})
