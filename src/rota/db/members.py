"""Who belongs to a workspace, and with which level. Who was removed stays, for the history."""

from typing import Any
from uuid import UUID

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import UserId, WorkspaceId, as_uuid

SHOWN = """
SELECT m.user_id AS id, u.name, u.email, m.level, m.created_at, u.disabled_at IS NOT NULL AS disabled
  FROM members m JOIN users u ON u.id = m.user_id
 WHERE m.workspace_id = %(workspace_id)s AND m.removed_at IS NULL
"""

PAGE = f"""
{SHOWN}
   AND m.user_id < %(before)s
ORDER BY m.user_id DESC LIMIT %(limit)s
"""

FIND = f"{SHOWN} AND m.user_id = %(user_id)s"

FIND_OWNER = """
-- Also somebody who was removed: what they own stays.
SELECT m.user_id FROM members m JOIN users u ON u.id = m.user_id
 WHERE m.workspace_id = %(workspace_id)s AND (m.user_id = %(user_id)s::uuid OR u.email = %(email)s)
"""

# Locked in the order of their ids: of two admins who lower each other at the same time, one waits and sees the other gone.
LOCK_ADMINS = """
SELECT m.user_id FROM members m JOIN users u ON u.id = m.user_id
 WHERE m.workspace_id = %(workspace_id)s AND m.level = 'admin' AND m.removed_at IS NULL AND u.disabled_at IS NULL
ORDER BY m.user_id FOR UPDATE OF m
"""

SET_LEVEL = """
UPDATE members SET level = %(level)s
 WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND removed_at IS NULL
"""

# FOR UPDATE, which a plain UPDATE would not take: it waits for a grant that is being made (grants.ADD), to revoke it too.
LOCK = """
SELECT level FROM members WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND removed_at IS NULL FOR UPDATE
"""

REMOVE = """
UPDATE members SET removed_at = now()
 WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND removed_at IS NULL
"""

# What ends with a membership: automations that run on the person's grant, what of theirs is at work, their tokens.
# Each is counted up to `MOST_COUNTED`.
LENT = "g.user_id = %(user_id)s AND g.revoked_at IS NULL AND (g.expires_at IS NULL OR g.expires_at > now())"
MOST_COUNTED = 1000

HOLDS = f"""
SELECT (SELECT count(*) FROM (
           SELECT FROM automations a JOIN grants g ON g.workspace_id = a.workspace_id AND g.id = a.grant_id
            WHERE a.workspace_id = %(workspace_id)s AND a.deleted_at IS NULL AND {LENT} LIMIT %(most)s) held) AS automations,
       (SELECT count(*) FROM (
           SELECT FROM live_runs l
                  JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
                  JOIN grants g ON g.workspace_id = r.workspace_id AND g.id = r.grant_id
            WHERE l.workspace_id = %(workspace_id)s AND {LENT} LIMIT %(most)s) held) AS runs,
       (SELECT count(*) FROM (
           SELECT FROM tokens t
            WHERE t.workspace_id = %(workspace_id)s AND t.user_id = %(user_id)s AND t.revoked_at IS NULL
              AND (t.expires_at IS NULL OR t.expires_at > now()) LIMIT %(most)s) held) AS tokens
"""  # noqa: S608 — constants of this module

ELSEWHERE = """
SELECT count(*) FROM members WHERE user_id = %(user_id)s AND workspace_id <> %(workspace_id)s AND removed_at IS NULL
"""


async def page(conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int) -> list[dict[str, Any]]:
    return await named_rows(
        conn, PAGE, {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit}
    )


async def find(conn: Connection, workspace_id: WorkspaceId, user_id: UUID) -> dict[str, Any] | None:
    found = await named_rows(conn, FIND, {"workspace_id": workspace_id, "user_id": user_id})
    return found[0] if found else None


async def find_owner(conn: Connection, workspace_id: WorkspaceId, ref: str) -> UserId | None:
    """The present or former member with this id or e-mail address."""
    given = {"workspace_id": workspace_id, "user_id": as_uuid(ref), "email": ref.lower()}
    found = await named_rows(conn, FIND_OWNER, given)
    return UserId(found[0]["user_id"]) if found else None


async def lock(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> str | None:
    """Their level, held until the end of the transaction; None for who is no member."""
    found = await named_rows(conn, LOCK, {"workspace_id": workspace_id, "user_id": user_id})
    return str(found[0]["level"]) if found else None


async def lock_admins(conn: Connection, workspace_id: WorkspaceId) -> list[UserId]:
    """Who waited for the lock looks again: whose account was switched off meanwhile, the first look does not see."""
    await named_rows(conn, LOCK_ADMINS, {"workspace_id": workspace_id})
    return [row["user_id"] for row in await named_rows(conn, LOCK_ADMINS, {"workspace_id": workspace_id})]


async def set_level(conn: Connection, workspace_id: WorkspaceId, user_id: UserId, level: str) -> None:
    await conn.execute(SET_LEVEL, {"workspace_id": workspace_id, "user_id": user_id, "level": level})


async def remove(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> None:
    await conn.execute(REMOVE, {"workspace_id": workspace_id, "user_id": user_id})


async def holds(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> dict[str, int]:
    """How much would end if they left: `automations` on their grants, `runs` at work or waiting, `tokens`."""
    given = {"workspace_id": workspace_id, "user_id": user_id, "most": MOST_COUNTED}
    [row] = await named_rows(conn, HOLDS, given)
    return row


async def is_elsewhere(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> bool:
    """Whether somebody belongs to another workspace too. Looks beyond this one."""
    [row] = await named_rows(conn, ELSEWHERE, {"workspace_id": workspace_id, "user_id": user_id})
    return bool(row["count"])
