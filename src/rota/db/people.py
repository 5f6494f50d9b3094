"""Workspaces, users, and the secrets with which they sign in at a browser. Only hashes of secrets are stored."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import UserId, WorkspaceId, as_uuid

FIND_WORKSPACE = "SELECT id, slug, name, timezone, minimum_interval FROM workspaces WHERE slug = %(ref)s OR id = %(id)s"

MEMBERSHIP = """
SELECT w.id, w.slug, w.timezone, m.level, u.name, u.disabled_at IS NOT NULL AS disabled
  FROM workspaces w JOIN members m ON m.workspace_id = w.id JOIN users u ON u.id = m.user_id
 WHERE (w.slug = %(ref)s OR w.id = %(id)s) AND m.user_id = %(user_id)s AND m.removed_at IS NULL
"""

# The same for who signs in, with what they sign in with: one statement, after which the transaction is told the workspace.
MEMBERS = """
SELECT w.id, w.slug, w.timezone, m.user_id, m.level, u.name, u.disabled_at IS NOT NULL AS disabled
  FROM workspaces w JOIN members m ON m.workspace_id = w.id JOIN users u ON u.id = m.user_id WHERE m.removed_at IS NULL
"""
MEMBER = "m.id, m.slug, m.timezone, m.level, m.name, m.disabled, set_config('rota.workspace', m.id::text, true)"

SETTLE_ONE_BY_ONE = "SELECT pg_advisory_xact_lock(x'526F7462'::bigint)"

WAS_FURNISHED = "SELECT EXISTS (SELECT FROM agents WHERE workspace_id = %(workspace_id)s)"

ADD_WORKSPACE = "INSERT INTO workspaces (id, slug, name) VALUES (%(id)s, %(slug)s, %(name)s)"

ADD_USER = """
INSERT INTO users (id, name, email, admitted_by) VALUES (%(id)s, %(name)s, %(email)s, %(admitted_by)s)
"""

FIND_USER = """
SELECT u.id, u.name, u.disabled_at, u.admitted_by,
       EXISTS (SELECT FROM identities i WHERE i.user_id = u.id) AS is_identified
  FROM users u WHERE u.email = %(email)s
"""

# Somebody's row, held: who admits them and who takes them into another workspace never miss each other.
ADMIT = "UPDATE users SET admitted_by = %(workspace_id)s WHERE id = %(user_id)s"

PROVE = """
-- Whatever an admin could have made or learnt ends: only what the person has from now on signs them in.
WITH proved AS (UPDATE users SET admitted_by = NULL, password_hash = NULL
                 WHERE id = %(user_id)s AND admitted_by IS NOT NULL RETURNING id),
     links AS (DELETE FROM sign_in_links l USING proved p WHERE l.user_id = p.id)
DELETE FROM logins l USING proved p WHERE l.user_id = p.id
"""

SWITCH = """
UPDATE users SET disabled_at = CASE WHEN %(off)s THEN now() END
 WHERE id = %(user_id)s AND (disabled_at IS NOT NULL) <> %(off)s
"""

EVERYBODY = """
SELECT u.id, u.name, u.email, u.disabled_at IS NOT NULL AS disabled,
       coalesce(array_agg(w.slug ORDER BY w.slug) FILTER (WHERE w.id IS NOT NULL), '{}') AS workspaces
  FROM users u LEFT JOIN members m ON m.user_id = u.id AND m.removed_at IS NULL LEFT JOIN workspaces w ON w.id = m.workspace_id
 GROUP BY u.id ORDER BY u.email NULLS FIRST, u.id
"""

ADD_MEMBER = """
-- Nothing for who is a member already; somebody who was removed comes back.
INSERT INTO members AS m (workspace_id, user_id, level) VALUES (%(workspace_id)s, %(user_id)s, %(level)s)
ON CONFLICT (workspace_id, user_id) DO UPDATE SET level = excluded.level, created_at = now(), removed_at = NULL
   WHERE m.removed_at IS NOT NULL
"""

FIRST_ADMIN = """
SELECT m.user_id FROM members m JOIN users u ON u.id = m.user_id
 WHERE m.workspace_id = %(workspace_id)s AND m.level = 'admin' AND m.removed_at IS NULL AND u.disabled_at IS NULL
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

ADD_LOGIN = """
INSERT INTO logins (secret_hash, user_id, expires_at, idle, ip, user_agent)
VALUES (%(hash)s, %(user_id)s, now() + %(lasts)s, %(idle)s, %(ip)s, %(user_agent)s)
"""

HOLDS = "l.expires_at > now() AND l.last_used_at + l.idle > now()"

FIND_LOGIN = f"""
SELECT l.id, l.user_id, l.last_used_at < now() - interval '1 minute' AS unnoted, u.disabled_at IS NOT NULL AS disabled
  FROM logins l JOIN users u ON u.id = l.user_id
 WHERE l.secret_hash = %(hash)s AND {HOLDS}
"""  # noqa: S608 — constants of this module

SIGN_IN = f"""
SELECT l.id, l.user_id, l.last_used_at < now() - interval '1 minute', u.disabled_at IS NOT NULL, {MEMBER}
  FROM logins l JOIN users u ON u.id = l.user_id
       LEFT JOIN ({MEMBERS}) m ON m.user_id = l.user_id AND (m.slug = %(ref)s OR m.id = %(id)s::uuid)
 WHERE l.secret_hash = %(hash)s AND {HOLDS}
"""  # noqa: S608

NOTE_LOGIN = """
-- Never waits for who does just that, or ends it.
UPDATE logins SET last_used_at = now()
 WHERE secret_hash = (SELECT secret_hash FROM logins WHERE id = %(id)s FOR NO KEY UPDATE SKIP LOCKED)
"""

LOGINS_OF = f"""
SELECT l.id, l.created_at, l.last_used_at, l.ip, l.user_agent,
       least(l.expires_at, l.last_used_at + l.idle) AS expires_at, l.id IS NOT DISTINCT FROM %(own)s AS own
  FROM logins l WHERE l.user_id = %(user_id)s AND {HOLDS} ORDER BY l.last_used_at DESC, l.id LIMIT 100
"""  # noqa: S608 — constants of this module

END_LOGIN_OF = "DELETE FROM logins WHERE user_id = %(user_id)s AND id = %(id)s"

END_OTHERS = "DELETE FROM logins WHERE user_id = %(user_id)s AND id IS DISTINCT FROM %(but)s"

PASSWORD = "SELECT id, password_hash, disabled_at IS NOT NULL AS disabled FROM users WHERE email = %(email)s"

STILL_RIGHT = """
-- Held until the login stands: who changes the password waits for it, and then ends it with the others.
SELECT FROM users WHERE id = %(id)s AND password_hash = %(hash)s AND disabled_at IS NULL FOR SHARE
"""

PERSON = "SELECT id, name, email, password_hash IS NOT NULL AS has_password, password_hash FROM users WHERE id = %(id)s"

SET_PASSWORD = "UPDATE users SET password_hash = %(hash)s WHERE id = %(id)s"

CHANGE_PASSWORD = f"{SET_PASSWORD} AND password_hash IS NOT DISTINCT FROM %(before)s"

RENAME = "UPDATE users SET name = %(name)s WHERE id = %(id)s"

END_LOGIN = "DELETE FROM logins WHERE secret_hash = %(hash)s"

SHUT_OUT = """
WITH links AS (DELETE FROM sign_in_links WHERE user_id = %(user_id)s)
DELETE FROM logins WHERE user_id = %(user_id)s
"""


async def _one(conn: Connection, query: str, given: dict[str, Any]) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), given)
        return await cursor.fetchone()


async def settle_one_by_one(conn: Connection) -> None:
    """Nobody else makes a first workspace before this transaction ends."""
    await conn.execute(SETTLE_ONE_BY_ONE)


async def was_furnished(conn: Connection, workspace_id: WorkspaceId) -> bool:
    """Whether an agent was ever saved here; deleted ones count."""
    found = await (await conn.execute(WAS_FURNISHED, {"workspace_id": workspace_id})).fetchone()
    return bool(found and found[0])


async def find_workspace(conn: Connection, ref: str) -> dict[str, Any] | None:
    return await _one(conn, FIND_WORKSPACE, {"ref": ref, "id": as_uuid(ref)})


async def find_membership(conn: Connection, ref: str, user_id: UserId) -> dict[str, Any] | None:
    """The workspace of this slug or id, and what this person is in it."""
    return await _one(conn, MEMBERSHIP, {"ref": ref, "id": as_uuid(ref), "user_id": user_id})


async def add_workspace(conn: Connection, workspace_id: WorkspaceId, slug: str, name: str) -> None:
    await conn.execute(ADD_WORKSPACE, {"id": workspace_id, "slug": slug, "name": name})


async def add_user(
    conn: Connection,
    user_id: UserId,
    name: str,
    email: str | None = None,
    *,
    admitted_by: WorkspaceId | None = None,
) -> None:
    """`admitted_by`: the workspace whose admins give it its way in."""
    await conn.execute(ADD_USER, {"id": user_id, "name": name, "email": email, "admitted_by": admitted_by})


async def find_user(conn: Connection, email: str, *, lock: bool = False) -> dict[str, Any] | None:
    return await _one(conn, FIND_USER + (" FOR NO KEY UPDATE OF u" if lock else ""), {"email": email})


async def admit(conn: Connection, user_id: UserId, workspace_id: WorkspaceId) -> None:
    """From now on admins of this workspace could sign in as them."""
    await conn.execute(ADMIT, {"user_id": user_id, "workspace_id": workspace_id})


async def prove(conn: Connection, user_id: UserId) -> None:
    """They are themself: an identity provider or who runs the server says so. Nothing for who was that before."""
    await conn.execute(PROVE, {"user_id": user_id})


async def switch(conn: Connection, user_id: UserId, *, off: bool) -> bool:
    """Whether that changed anything."""
    return (await conn.execute(SWITCH, {"user_id": user_id, "off": off})).rowcount == 1


async def everybody(conn: Connection) -> list[dict[str, Any]]:
    """All people of the server, with the workspaces they belong to. For its operator."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(EVERYBODY)
        return await cursor.fetchall()


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


async def add_login(
    conn: Connection,
    user_id: UserId,
    secret_hash: bytes,
    *,
    lasts: timedelta,
    idle: timedelta,
    ip: str | None,
    user_agent: str | None,
) -> None:
    given = {"user_id": user_id, "hash": secret_hash, "lasts": lasts, "idle": idle, "ip": ip}
    await conn.execute(ADD_LOGIN, {**given, "user_agent": user_agent})


async def find_login(conn: Connection, secret_hash: bytes) -> dict[str, Any] | None:
    return await _one(conn, FIND_LOGIN, {"hash": secret_hash})


async def note_login(conn: Connection, login_id: UUID) -> None:
    await conn.execute(NOTE_LOGIN, {"id": login_id})


async def logins_of(conn: Connection, user_id: UserId, own: UUID | None) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(LOGINS_OF.encode(), {"user_id": user_id, "own": own})
        return await cursor.fetchall()


async def end_login_of(conn: Connection, user_id: UserId, login_id: UUID) -> bool:
    return (await conn.execute(END_LOGIN_OF, {"user_id": user_id, "id": login_id})).rowcount == 1


async def end_other_logins(conn: Connection, user_id: UserId, but: UUID | None) -> int:
    return (await conn.execute(END_OTHERS, {"user_id": user_id, "but": but})).rowcount


async def find_password(conn: Connection, email: str) -> dict[str, Any] | None:
    return await _one(conn, PASSWORD, {"email": email})


async def still_has_password(conn: Connection, user_id: UserId, password_hash: str) -> bool:
    """Whether it was not changed meanwhile; from now on nobody does."""
    return (await conn.execute(STILL_RIGHT, {"id": user_id, "hash": password_hash})).rowcount == 1


async def find_person(conn: Connection, user_id: UserId) -> dict[str, Any] | None:
    return await _one(conn, PERSON, {"id": user_id})


async def set_password(conn: Connection, user_id: UserId, password_hash: str) -> None:
    await conn.execute(SET_PASSWORD, {"id": user_id, "hash": password_hash})


async def change_password(conn: Connection, user_id: UserId, before: str | None, password_hash: str) -> bool:
    """False: it is no longer the one it was."""
    given = {"id": user_id, "before": before, "hash": password_hash}
    return (await conn.execute(CHANGE_PASSWORD.encode(), given)).rowcount == 1


async def rename(conn: Connection, user_id: UserId, name: str) -> None:
    await conn.execute(RENAME, {"id": user_id, "name": name})


async def end_login(conn: Connection, secret_hash: bytes) -> None:
    await conn.execute(END_LOGIN, {"hash": secret_hash})


async def shut_out(conn: Connection, user_id: UserId) -> None:
    """End all logins and links of somebody. What they may still do elsewhere, they sign in for again."""
    await conn.execute(SHUT_OUT, {"user_id": user_id})
