"""API tokens. Only hashes of their secrets are stored."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from rota.db.paging import LARGEST_ID, or_end
from rota.db.people import MEMBER, MEMBERS
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import TokenId, UserId, WorkspaceId

ADD = """
-- Waits for who is just removing the member, and then makes none: it would be good again once they come back.
INSERT INTO tokens (workspace_id, id, user_id, name, secret_hash, scopes, expires_at)
SELECT m.workspace_id, %(id)s, m.user_id, %(name)s, %(hash)s, %(scopes)s, now() + %(lasts)s
  FROM members m
 WHERE m.workspace_id = %(workspace_id)s AND m.user_id = %(user_id)s AND m.removed_at IS NULL FOR KEY SHARE OF m
"""

SIGN_IN = f"""
-- The token, and what its person is in its workspace, if that is the one that was named, or none was.
SELECT t.user_id, t.id, t.scopes, coalesce(t.last_used_at < now() - interval '1 minute', true), {MEMBER}
  FROM tokens t LEFT JOIN ({MEMBERS}) m ON m.id = t.workspace_id AND m.user_id = t.user_id
       AND (%(ref)s::text IS NULL OR m.slug = %(ref)s OR m.id = %(id)s::uuid)
 WHERE t.secret_hash = %(hash)s AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())
"""  # noqa: S608 — constants

NOTE_USE = """
-- Never waits for who does just that: a busy script must not make its token's row a hot spot.
UPDATE tokens t SET last_used_at = now()
  FROM (SELECT k.workspace_id, k.id FROM tokens k
         WHERE k.workspace_id = %(workspace_id)s AND k.id = %(id)s FOR NO KEY UPDATE SKIP LOCKED) free
 WHERE t.workspace_id = free.workspace_id AND t.id = free.id
"""

REVOKE = """
UPDATE tokens SET revoked_at = now() WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND revoked_at IS NULL
"""

REVOKE_OF_USER = """
UPDATE tokens SET revoked_at = now()
 WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND revoked_at IS NULL
"""

SHOWN = """
SELECT t.id, t.name, t.user_id, u.name AS user, t.scopes, t.created_at, t.last_used_at, t.expires_at, t.revoked_at,
       CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked' WHEN t.expires_at <= now() THEN 'expired' ELSE 'valid' END AS status,
       t.expires_at - now() AS lasts
  FROM tokens t JOIN users u ON u.id = t.user_id
 WHERE t.workspace_id = %(workspace_id)s
"""

PAGE = f"""
{SHOWN}
   AND t.id < %(before)s
"""

OF_USER = "t.user_id = %(user_id)s"
VALID = "t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())"

FIND = f"{SHOWN} AND t.id = %(id)s"


async def add(
    conn: Connection,
    workspace_id: WorkspaceId,
    token_id: TokenId,
    user_id: UserId,
    *,
    name: str,
    secret_hash: bytes,
    scopes: Sequence[str],
    lasts: timedelta | None,
) -> bool:
    """Whether it was made: only for a member."""
    given = {"workspace_id": workspace_id, "id": token_id, "user_id": user_id, "name": name, "hash": secret_hash}
    return (await conn.execute(ADD, {**given, "scopes": list(scopes), "lasts": lasts})).rowcount == 1


async def note_use(conn: Connection, workspace_id: WorkspaceId, token_id: TokenId) -> None:
    await conn.execute(NOTE_USE, {"workspace_id": workspace_id, "id": token_id})


async def page(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    limit: int,
    user_id: UserId | None,
    valid_only: bool = False,
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit, "user_id": user_id}
    query = " AND ".join([PAGE, *([OF_USER] if user_id else []), *([VALID] if valid_only else [])])
    return await named_rows(conn, f"{query} ORDER BY t.id DESC LIMIT %(limit)s", given)


async def find(conn: Connection, workspace_id: WorkspaceId, token_id: UUID) -> dict[str, Any] | None:
    found = await named_rows(conn, FIND, {"workspace_id": workspace_id, "id": token_id})
    return found[0] if found else None


async def revoke(conn: Connection, workspace_id: WorkspaceId, token_id: UUID) -> None:
    await conn.execute(REVOKE, {"workspace_id": workspace_id, "id": token_id})


async def revoke_of_user(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> None:
    await conn.execute(REVOKE_OF_USER, {"workspace_id": workspace_id, "user_id": user_id})
