"""Roles, tasks and artifacts of imported sessions: as they stood when they were exported, for reading only."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import dict_row

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.model.export import ImportedPart
from rota.model.ids import SessionId, WorkspaceId

ADD = """
INSERT INTO imported_parts (workspace_id, session_id, what, name, line, data)
SELECT %(workspace_id)s, %(session_id)s, what, name, line, data
  FROM json_to_recordset(%(parts)s::json) AS g(what text, name text, line integer, data jsonb)
    ON CONFLICT DO NOTHING
RETURNING line
"""

ROLES = """
SELECT name, NULL::uuid AS agent_id, s.created_at, data ->> 'agent' AS agent, data ->> 'agent' AS agent_name
  FROM imported_parts p JOIN sessions s ON s.workspace_id = p.workspace_id AND s.id = p.session_id
 WHERE p.workspace_id = %(workspace_id)s AND p.session_id = %(session_id)s AND what = 'role'
ORDER BY line
"""

TASKS = """
-- A task that waits for one whose line has not come yet is shown without it.
SELECT p.name::uuid AS id, t.key, t.role, t.status, t.prompt, p.data -> 'input' AS input, t.run_id, t.reason, t.summary,
       t.error_class, t.error_detail, make_interval(secs => t.timeout) AS timeout, t.max_attempts, t.added_by_run,
       t.created_at, t.started_at, t.finished_at,
       ARRAY(SELECT needed.name::uuid
               FROM jsonb_array_elements_text(p.data -> 'depends_on') AS given(id)
                    JOIN imported_parts needed ON needed.workspace_id = p.workspace_id
                         AND needed.session_id = p.session_id AND needed.what = 'task' AND needed.name = given.id
           ORDER BY 1) AS depends_on
  FROM imported_parts p, jsonb_to_record(p.data) AS t(
       key text, role text, status text, prompt text, run_id uuid, reason text, summary text, error_class text,
       error_detail text, timeout double precision, max_attempts integer, added_by_run uuid, created_at timestamptz,
       started_at timestamptz, finished_at timestamptz)
 WHERE p.workspace_id = %(workspace_id)s AND p.session_id = %(session_id)s AND p.what = 'task'
   AND p.name::uuid > coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY p.name::uuid LIMIT %(limit)s
"""

COUNTS = """
SELECT data ->> 'status', count(*) FROM imported_parts
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND what = 'task'
GROUP BY 1
"""

ARTIFACTS = """
-- As the log tells of them; it is read for sessions that were imported only. OFFSET 0: what other events hold under the
-- same names is never taken for an id or a number.
SELECT DISTINCT ON (told.id) told.*
  FROM (SELECT FROM sessions
         WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s AND imported IS NOT NULL LIMIT 1) imported
       CROSS JOIN LATERAL (
           SELECT (data ->> 'artifact_id')::uuid AS id, session_id, run_id, attempt, data ->> 'name' AS name,
                  data ->> 'media_type' AS media_type, data ->> 'uri' AS uri, data ->> 'sha256' AS sha256,
                  (data ->> 'size')::bigint AS size, created_at
             FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND kind = 'artifact'
           OFFSET 0) told
 WHERE told.id < %(before)s
   AND told.id = coalesce(%(only)s::uuid, told.id)
ORDER BY told.id DESC LIMIT %(limit)s
"""

NEEDS = """
SELECT name, data -> 'depends_on' FROM imported_parts
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND what = 'task'
"""

Where = tuple[WorkspaceId, SessionId]


async def add(conn: Connection, where: Where, parts: Sequence[ImportedPart]) -> set[int]:
    """Keep roles and tasks; the lines of those that were not there before."""
    rows = await conn.execute(ADD, {**_given(where), "parts": orjson.dumps(parts).decode()})
    return {line for (line,) in await rows.fetchall()}


async def roles(conn: Connection, where: Where) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(ROLES, _given(where))
        return await cursor.fetchall()


async def tasks(conn: Connection, where: Where, *, after: UUID | None, limit: int | None) -> list[dict[str, Any]]:
    """In the order in which they were added."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(TASKS, {**_given(where), "after": after, "limit": limit})
        return await cursor.fetchall()


async def counts(conn: Connection, where: Where) -> dict[str, int]:
    return dict(await (await conn.execute(COUNTS, _given(where))).fetchall())


async def artifacts(
    conn: Connection, where: Where, *, only: UUID | None = None, before: UUID | None = None, limit: int = 1
) -> list[dict[str, Any]]:
    """Newest first, or the one with this id."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(
            ARTIFACTS, {**_given(where), "only": only, "before": or_end(before, LARGEST_ID), "limit": limit}
        )
        return await cursor.fetchall()


async def needs(conn: Connection, where: Where) -> dict[str, list[str]]:
    """What each task waits for."""
    return dict(await (await conn.execute(NEEDS, _given(where))).fetchall())


def _given(where: Where) -> dict[str, Any]:
    return {"workspace_id": where[0], "session_id": where[1]}
