"""Workspaces, users, and the secrets with which they sign in at a browser. Only hashes of secrets are stored."""

from datetime import timedelta
from typing import Any

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import UserId, WorkspaceId

FIND_WORKSPACE = (
    "SELECT id, slug, name, timezone, minimum_interval FROM workspaces WHERE slug = %(ref)s OR id::text = %(ref)s"
)

WAS_FURNISHED = "SELECT EXISTS (SELECT FROM agents WHERE workspace_id = %(workspace_id)s)"

ADD_WORKSPACE = "INSERT INTO workspaces (id, slug, name) VALUES (%(id)s, %(slug)s, %(name)s)"

ADD_USER = "INSERT INTO users (id, name, email) VALUES (%(id)s, %(name)s, %(email)s)"

FIND_USER = "SELECT id, name, disabled_at FROM users WHERE email = %(email)s"

ADD_MEMBER = """
-- Nothing for who is a member already; somebody who was removed comes back.
INSERT INTO members AS m (workspace_id, user_id, level) VALUES (%(workspace_id)s, %(user_id)s, %(level)s)
ON CONFLICT (workspace_id, user_id) DO UPDATE SET level = excluded.level, created_at = now(), removed_at = NULL
   WHERE m.removed_at IS NOT NULL
"""

FIRST_ADMIN = """
SELECT m.user_id FROM members m WHERE m.workspace_id = %(workspace_id)s AND m.level = 'admin' AND m.removed_at IS NULL
ORDER BY m.created_at LIMIT 1
"""

LEVEL = """
SELECT m.level, u.name, u.disabled_at IS NOT NULL AS disabled FROM members m JOIN users u ON u.id = m.user_id
 WHERE m.workspace_id = %(workspace_id)s AND m.user_id = %(user_id)s AND m.removed_at IS NULL
"""

WORKSPACES_OF = """
SELECT w.id, w.slug, w.name, w.timezone FROM members m JOIN workspaces w ON w.id = m.workspace_id
 WHERE m.user_id = %(user_id)s AND m.removed_at IS NULL ORDER BY w.created_at
"""

ADD_LINK = """
WITH earlier AS (DELETE FROM sign_in_links WHERE user_id = %(user_id)s)
INSERT INTO sign_in_links (secret_hash, user_id, expires_at) VALUES (%(hash)s, %(user_id)s, now() + %(lasts)s)
"""

USE_LINK = "DELETE FROM sign_in_links WHERE secret_hash = %(hash)s AND expires_at > now() RETURNING user_id"

ADD_LOGIN = "INSERT INTO logins (secret_hash, user_id, expires_at) VALUES (%(hash)s, %(user_id)s, now() + %(lasts)s)"

FIND_LOGIN = """
SELECT l.user_id FROM logins l JOIN users u ON u.id = l.user_id
 WHERE l.secret_hash = %(hash)s AND l.expires_at > now() AND u.disabled_at IS NULL
"""

END_LOGIN = "DELETE FROM logins WHERE secret_hash = %(hash)s"

SHUT_OUT = """
WITH links AS (DELETE FROM sign_in_links WHERE user_id = %(user_id)s)
DELETE FROM logins WHERE user_id = %(user_id)s
"""


async def _one(conn: Connection, query: str, given: dict[str, Any]) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), given)
        return await cursor.fetchone()


async def was_furnished(conn: Connection, workspace_id: WorkspaceId) -> bool:
    """Whether an agent was ever saved here; deleted ones count."""
    found = await (await conn.execute(WAS_FURNISHED, {"workspace_id": workspace_id})).fetchone()
    return bool(found and found[0])


async def find_workspace(conn: Connection, ref: str) -> dict[str, Any] | None:
    return await _one(conn, FIND_WORKSPACE, {"ref": ref})


async def add_workspace(conn: Connection, workspace_id: WorkspaceId, slug: str, name: str) -> None:
    await conn.execute(ADD_WORKSPACE, {"id": workspace_id, "slug": slug, "name": name})


async def add_user(conn: Connection, user_id: UserId, name: str, email: str | None = None) -> None:
    await conn.execute(ADD_USER, {"id": user_id, "name": name, "email": email})


async def find_user(conn: Connection, email: str) -> dict[str, Any] | None:
    return await _one(conn, FIND_USER, {"email": email})


async def add_member(conn: Connection, workspace_id: WorkspaceId, user_id: UserId, level: str) -> bool:
    """Whether they were no member before."""
    given = {"workspace_id": workspace_id, "user_id": user_id, "level": level}
    return (await conn.execute(ADD_MEMBER, given)).rowcount == 1


async def first_admin(conn: Connection, workspace_id: WorkspaceId) -> UserId | None:
    found = await _one(conn, FIRST_ADMIN, {"workspace_id": workspace_id})
    return found["user_id"] if found else None


async def find_member(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> dict[str, Any] | None:
    return await _one(conn, LEVEL, {"workspace_id": workspace_id, "user_id": user_id})


async def workspaces_of(conn: Connection, user_id: UserId) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(WORKSPACES_OF, {"user_id": user_id})
        return await cursor.fetchall()


async def add_link(conn: Connection, user_id: UserId, secret_hash: bytes, lasts: timedelta) -> None:
    await conn.execute(ADD_LINK, {"user_id": user_id, "hash": secret_hash, "lasts": lasts})


async def use_link(conn: Connection, secret_hash: bytes) -> UserId | None:
    """The link's user, once: whoever comes second finds nothing."""
    found = await _one(conn, USE_LINK, {"hash": secret_hash})
    return found["user_id"] if found else None


async def add_login(conn: Connection, user_id: UserId, secret_hash: bytes, lasts: timedelta) -> None:
    await conn.execute(ADD_LOGIN, {"user_id": user_id, "hash": secret_hash, "lasts": lasts})


async def find_login(conn: Connection, secret_hash: bytes) -> UserId | None:
    found = await _one(conn, FIND_LOGIN, {"hash": secret_hash})
    return found["user_id"] if found else None


async def end_login(conn: Connection, secret_hash: bytes) -> None:
    await conn.execute(END_LOGIN, {"hash": secret_hash})


async def shut_out(conn: Connection, user_id: UserId) -> None:
    """End all logins and links of somebody. What they may still do elsewhere, they sign in for again."""
    await conn.execute(SHUT_OUT, {"user_id": user_id})
