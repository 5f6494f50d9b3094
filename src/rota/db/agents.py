"""Agents, and the revisions of agents and automations."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rota.db.like import holding
from rota.db.paging import LARGEST_ID, LARGEST_REVISION, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import AgentId, UserId, WorkspaceId, as_uuid

COLUMNS = """id, slug, name, executor, config, instructions, credentials, pool, max_concurrent, status, revision,
created_by, created_at, updated_at, deleted_at"""

FIND = f"""
SELECT {COLUMNS} FROM agents
 WHERE workspace_id = %(workspace_id)s AND ((slug = %(ref)s AND deleted_at IS NULL) OR id = %(id)s)
"""  # noqa: S608

TAKEN = """
-- By the index agents_slug, which any collation of the database can be asked for equal words.
SELECT slug FROM agents WHERE workspace_id = %(workspace_id)s AND slug = ANY(%(slugs)s) AND deleted_at IS NULL
"""

PAGE = f"""
SELECT {COLUMNS} FROM agents
 WHERE workspace_id = %(workspace_id)s AND deleted_at IS NULL
   AND id < %(before)s
ORDER BY id DESC LIMIT %(limit)s
"""  # noqa: S608

INSERT = """
INSERT INTO agents (workspace_id, id, slug, name, executor, config, instructions, credentials, pool,
                    max_concurrent, status, created_by)
VALUES (%(workspace_id)s, %(id)s, %(slug)s, %(name)s, %(executor)s, %(config)s, %(instructions)s, %(credentials)s,
        %(pool)s, %(max_concurrent)s, %(status)s, %(created_by)s)
"""

UPDATE = """
UPDATE agents SET slug = %(slug)s, name = %(name)s, executor = %(executor)s, config = %(config)s,
       instructions = %(instructions)s, credentials = %(credentials)s, pool = %(pool)s, max_concurrent = %(max_concurrent)s, status = %(status)s,
       revision = %(revision)s, updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

DELETE = (
    "UPDATE agents SET deleted_at = now() WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND deleted_at IS NULL"
)

ADD_REVISION = """
INSERT INTO revisions (workspace_id, subject_id, revision, spec, created_by)
VALUES (%(workspace_id)s, %(subject_id)s, %(revision)s, %(spec)s, %(created_by)s)
"""

LOCK_AUTOMATIONS = """
-- In a statement of its own: CARRY_TO_AUTOMATIONS then sees what those who held them have written.
SELECT id FROM automations
 WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s AND deleted_at IS NULL
ORDER BY id
   FOR NO KEY UPDATE
"""

CARRY_TO_AUTOMATIONS = """
-- An automation's revision holds its agent's configuration, so a change of the agent is a new revision of each.
WITH raised AS (
    UPDATE automations SET revision = revision + 1, updated_at = now()
     WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s AND deleted_at IS NULL
 RETURNING id, revision)
INSERT INTO revisions (workspace_id, subject_id, revision, spec, created_by)
SELECT v.workspace_id, raised.id, raised.revision, v.spec || jsonb_build_object('agent', %(agent)s::jsonb), %(user_id)s
  FROM raised JOIN revisions v ON v.workspace_id = %(workspace_id)s AND v.subject_id = raised.id
                              AND v.revision = raised.revision - 1
"""

SHUT = "SELECT FROM agents WHERE workspace_id = %(workspace_id)s AND id = %(id)s FOR UPDATE"

REVISIONS = """
SELECT v.revision, v.spec, v.created_at, u.name AS created_by
  FROM revisions v JOIN users u ON u.id = v.created_by
 WHERE v.workspace_id = %(workspace_id)s AND v.subject_id = %(subject_id)s AND v.revision < %(before)s
ORDER BY v.revision DESC LIMIT %(limit)s
"""

MOST_COUNTED = 1000  # automations of one agent

USED_BY = """
-- Each counted by the index automations_of_agent, to which the range leads (see runs.OF_AGENT).
SELECT g.id, used.count
  FROM unnest(%(ids)s::uuid[]) AS g(id)
       CROSS JOIN LATERAL (
           SELECT count(*) AS count FROM (
               SELECT FROM automations a
                WHERE a.workspace_id = %(workspace_id)s AND a.agent_id BETWEEN g.id AND g.id AND a.deleted_at IS NULL
             ORDER BY a.agent_id, a.id LIMIT %(most)s) counted) used
 WHERE used.count > 0
"""

FOUND_NAMES = """
-- For a search as somebody types: names only, the newest first.
SELECT id, slug, name FROM agents
 WHERE workspace_id = %(workspace_id)s AND deleted_at IS NULL AND (name ILIKE %(like)s OR slug ILIKE %(like)s)
   AND (status = 'active' OR NOT %(active)s)
ORDER BY id DESC LIMIT %(limit)s
"""

CALLED = """
-- Those of this name, whatever its capitals.
SELECT id, slug, name FROM agents
 WHERE workspace_id = %(workspace_id)s AND deleted_at IS NULL AND lower(name) = lower(%(name)s)
ORDER BY id DESC LIMIT %(limit)s
"""


async def find(
    conn: Connection,
    workspace_id: WorkspaceId,
    ref: str,
    *,
    lock: bool = False,
    hold: bool = False,
    start: bool = False,
) -> dict[str, Any] | None:
    """One agent by id or slug. `lock` is for who changes it, `hold` for who needs it to stay as it is, and `start` for
    who starts a run of it, whom nobody waits for but `shut`."""
    query = FIND + (" FOR NO KEY UPDATE" if lock else " FOR SHARE" if hold else " FOR KEY SHARE" if start else "")
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), {"workspace_id": workspace_id, "ref": ref, "id": as_uuid(ref)})
        return await cursor.fetchone()


async def shut(conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId) -> None:
    """Wait for those who start a run of this agent, and let nobody else until this transaction ends."""
    await conn.execute(SHUT, {"workspace_id": workspace_id, "id": agent_id})


async def taken(conn: Connection, workspace_id: WorkspaceId, slugs: Sequence[str]) -> set[str]:
    """Those of these slugs that agents have."""
    rows = await conn.execute(TAKEN, {"workspace_id": workspace_id, "slugs": list(slugs)})
    return {slug for (slug,) in await rows.fetchall()}


async def page(conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(
            PAGE.encode(), {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit}
        )
        return await cursor.fetchall()


def _given(agent: dict[str, Any]) -> dict[str, Any]:
    return {**agent, "config": Jsonb(agent["config"]), "credentials": Jsonb(agent["credentials"])}


async def insert(conn: Connection, agent: dict[str, Any]) -> None:
    await conn.execute(INSERT, _given(agent))


async def update(conn: Connection, agent: dict[str, Any]) -> None:
    await conn.execute(UPDATE, _given(agent))


async def delete(conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId) -> None:
    await conn.execute(DELETE, {"workspace_id": workspace_id, "id": agent_id})


async def add_revision(
    conn: Connection, workspace_id: WorkspaceId, subject_id: UUID, revision: int, spec: Any, user_id: UserId
) -> None:
    given = {
        "workspace_id": workspace_id,
        "subject_id": subject_id,
        "revision": revision,
        "created_by": user_id,
    }
    await conn.execute(ADD_REVISION, {**given, "spec": Jsonb(spec)})


async def lock_automations(conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId) -> None:
    """Wait for those who are changing an automation of this agent, and hold them all until this transaction ends."""
    await conn.execute(LOCK_AUTOMATIONS, {"workspace_id": workspace_id, "agent_id": agent_id})


async def carry_to_automations(
    conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId, agent: dict[str, Any], user_id: UserId
) -> None:
    given = {"workspace_id": workspace_id, "agent_id": agent_id, "agent": Jsonb(agent), "user_id": user_id}
    await conn.execute(CARRY_TO_AUTOMATIONS, given)


async def revisions(
    conn: Connection, workspace_id: WorkspaceId, subject_id: UUID, *, before: int | None, limit: int
) -> list[dict[str, Any]]:
    given = {
        "workspace_id": workspace_id,
        "subject_id": subject_id,
        "before": or_end(before, LARGEST_REVISION),
        "limit": limit,
    }
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(REVISIONS, given)
        return await cursor.fetchall()


async def used_by(conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID]) -> dict[UUID, int]:
    """How many automations use each of them, counted up to `MOST_COUNTED`; nothing of those that none uses."""
    given = {"workspace_id": workspace_id, "ids": list(ids), "most": MOST_COUNTED}
    return dict(await (await conn.execute(USED_BY, given)).fetchall())


async def names(
    conn: Connection, workspace_id: WorkspaceId, search: str, *, limit: int, active: bool = False
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "like": holding(search), "limit": limit, "active": active}
    return await named_rows(conn, FOUND_NAMES, given)


async def called(conn: Connection, workspace_id: WorkspaceId, name: str, *, limit: int) -> list[dict[str, Any]]:
    return await named_rows(conn, CALLED, {"workspace_id": workspace_id, "name": name, "limit": limit})
