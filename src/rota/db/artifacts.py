"""Artifacts and the contents they refer to; the contents themselves are kept outside the database."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from rota.db import imports
from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.model.ids import SessionId, WorkspaceId

CLAIM = """
-- Before content is put in its place: from now on nobody dooms it for a while. Nothing back: it is being deleted.
INSERT INTO contents (workspace_id, sha256, size) VALUES (%(workspace_id)s, %(sha256)s, %(size)s)
    ON CONFLICT (workspace_id, sha256) DO UPDATE SET touched_at = now() WHERE contents.doomed_at IS NULL
RETURNING size
"""

ADD = """
INSERT INTO artifacts (workspace_id, id, session_id, run_id, attempt, name, media_type, uri, sha256, size)
VALUES (%(workspace_id)s, %(id)s, %(session_id)s, %(run_id)s, %(attempt)s, %(name)s, %(media_type)s, %(uri)s, %(sha256)s,
        %(size)s)
RETURNING id, session_id, run_id, attempt, name, media_type, uri, encode(sha256, 'hex') AS sha256, size, created_at
"""

SHOWN = """
SELECT id, session_id, run_id, attempt, name, media_type, uri, encode(sha256, 'hex') AS sha256, size, created_at
  FROM artifacts WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
"""

OLD = """
DELETE FROM artifacts WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM artifacts WHERE created_at < now() - %(kept)s LIMIT %(limit)s))
"""

DOOM = """
-- What no artifact refers to and nobody has touched for a while, and what an earlier pass doomed but did not finish.
WITH unneeded AS MATERIALIZED (
    SELECT c.workspace_id, c.sha256 FROM contents c
     WHERE (c.touched_at < now() - %(untouched)s OR c.doomed_at IS NOT NULL)
       AND NOT EXISTS (SELECT FROM artifacts a WHERE a.workspace_id = c.workspace_id AND a.sha256 = c.sha256)
     LIMIT %(limit)s
       FOR UPDATE OF c SKIP LOCKED)
   UPDATE contents c SET doomed_at = now()
     FROM unneeded u
    WHERE c.workspace_id = u.workspace_id AND c.sha256 = u.sha256
RETURNING c.workspace_id, c.sha256
"""

FORGET = """
DELETE FROM contents c USING unnest(%(workspaces)s::uuid[], %(hashes)s::bytea[]) AS gone(workspace_id, sha256)
 WHERE c.workspace_id = gone.workspace_id AND c.sha256 = gone.sha256 AND c.doomed_at IS NOT NULL
"""


async def claim(conn: Connection, workspace_id: WorkspaceId, sha256: bytes, size: int) -> bool:
    rows = await conn.execute(CLAIM, {"workspace_id": workspace_id, "sha256": sha256, "size": size})
    return await rows.fetchone() is not None


async def add(conn: Connection, **values: Any) -> dict[str, Any]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(ADD, values)
        added = await cursor.fetchone()
    assert added
    return added


async def page(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, *, before: UUID | None, limit: int
) -> list[dict[str, Any]]:
    """Newest first; of an imported session, those that its log tells of."""
    query = f"{SHOWN} AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s"
    given = {
        "workspace_id": workspace_id,
        "session_id": session_id,
        "before": or_end(before, LARGEST_ID),
        "limit": limit,
    }
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), given)
        found = await cursor.fetchall()
    return found or await imports.artifacts(conn, (workspace_id, session_id), before=before, limit=limit)


async def find(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, artifact_id: UUID
) -> dict[str, Any] | None:
    given = {"workspace_id": workspace_id, "session_id": session_id, "id": artifact_id}
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(f"{SHOWN} AND id = %(id)s".encode(), given)
        if found := await cursor.fetchone():
            return found
    return next(iter(await imports.artifacts(conn, (workspace_id, session_id), only=artifact_id)), None)


async def doom(conn: Connection, *, untouched: timedelta, limit: int) -> list[tuple[WorkspaceId, bytes]]:
    """Contents that may be deleted now; nobody refers to them before they are forgotten."""
    rows = await conn.execute(DOOM, {"untouched": untouched, "limit": limit})
    return [(w, bytes(sha256)) for w, sha256 in await rows.fetchall()]


async def forget(conn: Connection, gone: Sequence[tuple[WorkspaceId, bytes]]) -> None:
    await conn.execute(FORGET, {"workspaces": [w for w, _ in gone], "hashes": [h for _, h in gone]})
