"""Workspaces, users, members, and the secrets with which they sign in. Only hashes of secrets are stored."""

from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import TokenId, UserId, WorkspaceId

FIND_WORKSPACE = (
    "SELECT id, slug, name, timezone, minimum_interval FROM workspaces WHERE slug = %(ref)s OR id::text = %(ref)s"
)

ADD_WORKSPACE = "INSERT INTO workspaces (id, slug, name) VALUES (%(id)s, %(slug)s, %(name)s)"

ADD_USER = "INSERT INTO users (id, name) VALUES (%(id)s, %(name)s)"

ADD_MEMBER = "INSERT INTO members (workspace_id, user_id, level) VALUES (%(workspace_id)s, %(user_id)s, %(level)s)"

FIRST_ADMIN = """
SELECT m.user_id FROM members m WHERE m.workspace_id = %(workspace_id)s AND m.level = 'admin' ORDER BY m.created_at LIMIT 1
"""

LEVEL = """
SELECT m.level, u.name FROM members m JOIN users u ON u.id = m.user_id
 WHERE m.workspace_id = %(workspace_id)s AND m.user_id = %(user_id)s AND u.disabled_at IS NULL
"""

WORKSPACES_OF = """
SELECT w.id, w.slug, w.name, w.timezone FROM members m JOIN workspaces w ON w.id = m.workspace_id
 WHERE m.user_id = %(user_id)s ORDER BY w.created_at
"""

ADD_TOKEN = """
INSERT INTO tokens (workspace_id, id, user_id, name, secret_hash, expires_at)
VALUES (%(workspace_id)s, %(id)s, %(user_id)s, %(name)s, %(hash)s, %(expires_at)s)
"""

USE_TOKEN = """
-- Writes at most once a minute, and never waits for who does just that: a busy script must not make its token's row
-- a hot spot, nor a slow request hold up all others with the same token.
WITH found AS (
    SELECT workspace_id, id, user_id FROM tokens
     WHERE secret_hash = %(hash)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())),
used AS (
    UPDATE tokens t SET last_used_at = now()
      FROM (SELECT k.workspace_id, k.id FROM tokens k JOIN found ON k.workspace_id = found.workspace_id AND k.id = found.id
             WHERE k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute'
               FOR NO KEY UPDATE OF k SKIP LOCKED) idle
     WHERE t.workspace_id = idle.workspace_id AND t.id = idle.id)
SELECT workspace_id, user_id, id FROM found
"""

REVOKE_TOKENS_OF = """
UPDATE tokens SET revoked_at = now()
 WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND revoked_at IS NULL
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


async def _one(conn: Connection, query: str, given: dict[str, Any]) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), given)
        return await cursor.fetchone()


async def find_workspace(conn: Connection, ref: str) -> dict[str, Any] | None:
    return await _one(conn, FIND_WORKSPACE, {"ref": ref})


async def add_workspace(conn: Connection, workspace_id: WorkspaceId, slug: str, name: str) -> None:
    await conn.execute(ADD_WORKSPACE, {"id": workspace_id, "slug": slug, "name": name})


async def add_user(conn: Connection, user_id: UserId, name: str) -> None:
    await conn.execute(ADD_USER, {"id": user_id, "name": name})


async def add_member(conn: Connection, workspace_id: WorkspaceId, user_id: UserId, level: str) -> None:
    await conn.execute(ADD_MEMBER, {"workspace_id": workspace_id, "user_id": user_id, "level": level})


async def first_admin(conn: Connection, workspace_id: WorkspaceId) -> UserId | None:
    found = await _one(conn, FIRST_ADMIN, {"workspace_id": workspace_id})
    return found["user_id"] if found else None


async def find_member(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> dict[str, Any] | None:
    return await _one(conn, LEVEL, {"workspace_id": workspace_id, "user_id": user_id})


async def workspaces_of(conn: Connection, user_id: UserId) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(WORKSPACES_OF, {"user_id": user_id})
        return await cursor.fetchall()


async def add_token(
    conn: Connection,
    workspace_id: WorkspaceId,
    token_id: TokenId,
    user_id: UserId,
    *,
    name: str,
    secret_hash: bytes,
    expires_at: datetime | None,
) -> None:
    given = {
        "workspace_id": workspace_id,
        "id": token_id,
        "user_id": user_id,
        "name": name,
        "hash": secret_hash,
    }
    await conn.execute(ADD_TOKEN, {**given, "expires_at": expires_at})


async def use_token(conn: Connection, secret_hash: bytes) -> tuple[WorkspaceId, UserId, TokenId] | None:
    found = await _one(conn, USE_TOKEN, {"hash": secret_hash})
    return (found["workspace_id"], found["user_id"], found["id"]) if found else None


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


async def revoke_tokens_of(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> None:
    await conn.execute(REVOKE_TOKENS_OF, {"workspace_id": workspace_id, "user_id": user_id})
