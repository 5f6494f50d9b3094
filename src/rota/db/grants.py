"""Grants and the accounts they charge."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import AccountId, AutomationId, GrantId, UserId, WorkspaceId, id_at

ADD_ACCOUNT = "INSERT INTO accounts (workspace_id, id, name) VALUES (%(workspace_id)s, %(id)s, %(name)s)"

ACCOUNT_TO_CHARGE = """
SELECT coalesce((SELECT account_id FROM grants WHERE workspace_id = %(workspace_id)s AND id = %(replaces)s),
                (SELECT id FROM accounts WHERE workspace_id = %(workspace_id)s ORDER BY created_at, id LIMIT 1))
"""

ADD = """
-- Waits for who is just removing the member, and then makes none.
INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, expires_at, automation_id, replaces)
SELECT m.workspace_id, %(id)s, m.user_id, %(account_id)s, %(scopes)s, now() + %(lasts)s, %(automation_id)s, %(replaces)s
  FROM members m
 WHERE m.workspace_id = %(workspace_id)s AND m.user_id = %(user_id)s AND m.removed_at IS NULL FOR KEY SHARE OF m
"""

REVOKE = """
UPDATE grants SET revoked_at = clock_timestamp(), revoked_by = %(revoked_by)s
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND revoked_at IS NULL
"""

REVOKE_OF_USER = """
UPDATE grants SET revoked_at = clock_timestamp(), revoked_by = %(revoked_by)s
 WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND revoked_at IS NULL
RETURNING id
"""

RETIRE = """
-- One that was replaced lasts as long as what was fired under it may need.
UPDATE grants g
   SET expires_at = least(g.expires_at, now() + greatest(%(lasts)s, (
           SELECT greatest(a.start_within + a.timeout * a.max_attempts, a.approval_expires)
             FROM automations a WHERE a.workspace_id = g.workspace_id AND a.id = g.automation_id)))
 WHERE g.workspace_id = %(workspace_id)s AND g.id = %(id)s AND g.revoked_at IS NULL
"""

STATE = """
CASE WHEN g.revoked_at IS NOT NULL THEN 'revoked' WHEN g.expires_at <= now() THEN 'expired' ELSE 'valid' END
"""

SHOWN = f"""
SELECT g.id, g.user_id, u.name AS user, g.account_id, g.scopes, {STATE} AS status, g.automation_id, g.replaces, g.created_at,
       g.expires_at, g.revoked_at, g.revoked_by
  FROM grants g JOIN users u ON u.id = g.user_id
 WHERE g.workspace_id = %(workspace_id)s
"""  # noqa: S608 — constants of this module

# How each status is told by the columns, those that were revoked by the index grants_revoked.
STANDING = {
    "revoked": "g.revoked_at IS NOT NULL",
    "expired": "g.revoked_at IS NULL AND g.expires_at <= now()",
    "valid": "g.revoked_at IS NULL AND (g.expires_at IS NULL OR g.expires_at > now())",
}

PAGE = f"""
{SHOWN}
   AND g.id < %(before)s
"""

# Only what was chosen is in the query, so that each filter can have its index.
CHOSEN = {"user_id": "g.user_id = %(user_id)s", "automation_id": "g.automation_id = %(automation_id)s"}

OF_AUTOMATIONS = f"""
-- What automations run on now, those saved last first.
SELECT shown.* FROM (
    SELECT a.id, a.grant_id FROM automations a
     WHERE a.workspace_id = %(workspace_id)s AND a.deleted_at IS NULL
       AND a.id < %(before)s
  ORDER BY a.id DESC LIMIT %(limit)s) a
       CROSS JOIN LATERAL ({SHOWN} AND g.id = a.grant_id) shown
ORDER BY a.id DESC
"""  # noqa: S608

NAMES = """
SELECT id, name, NULL::uuid AS owner_id FROM agents WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)
 UNION ALL
SELECT id, name, owner_id FROM automations WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)
"""

FIND = f"{SHOWN} AND g.id = %(id)s"

USED_BY = """
SELECT id, slug, name FROM automations
 WHERE workspace_id = %(workspace_id)s AND grant_id = %(id)s AND deleted_at IS NULL ORDER BY id
"""

# An automation's runs are found by their index. Others were made with the grant or before its end, and ids are in the
# order of time.
RUNS = """
-- Nobody needs to know whether it were more than a thousand.
SELECT count(*) AS runs, max(queued_at) AS last_run_at FROM (
    SELECT queued_at FROM runs
     WHERE workspace_id = %(workspace_id)s AND grant_id = %(id)s AND automation_id = %(automation_id)s
  ORDER BY id DESC LIMIT 1000) newest
"""
RUNS_WITHOUT_AUTOMATION = """
SELECT count(*) AS runs, max(queued_at) AS last_run_at FROM runs
 WHERE workspace_id = %(workspace_id)s AND grant_id = %(id)s AND id > %(first)s AND id < %(last)s
"""


LIVE_RUNS = """
-- What waits or runs on a grant, found among the workspace's live runs, as by those who end it: no index has the grant.
SELECT r.id, r.status, r.session_id, r.queued_at, r.started_at, coalesce(a.name, g.name) AS name
  FROM live_runs l
       JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
       JOIN agents g ON g.workspace_id = r.workspace_id AND g.id = r.agent_id
       LEFT JOIN automations a ON a.workspace_id = r.workspace_id AND a.id = r.automation_id
 WHERE l.workspace_id = %(workspace_id)s AND r.grant_id = %(id)s
ORDER BY r.id LIMIT %(limit)s
"""


async def add_account(conn: Connection, workspace_id: WorkspaceId, account_id: AccountId, name: str) -> None:
    await conn.execute(ADD_ACCOUNT, {"workspace_id": workspace_id, "id": account_id, "name": name})


async def account_to_charge(conn: Connection, workspace_id: WorkspaceId, replaces: GrantId | None) -> AccountId:
    """That of the grant which is replaced, else the workspace's first."""
    given = {"workspace_id": workspace_id, "replaces": replaces}
    row = await (await conn.execute(ACCOUNT_TO_CHARGE, given)).fetchone()
    assert row, "a workspace is made with an account"
    return AccountId(row[0])


async def add(
    conn: Connection,
    workspace_id: WorkspaceId,
    grant_id: GrantId,
    *,
    user_id: UserId,
    account_id: AccountId,
    scopes: Sequence[str],
    lasts: timedelta | None,
    automation_id: AutomationId | None = None,
    replaces: GrantId | None = None,
) -> bool:
    """False if the user is no member any more."""
    given = {"workspace_id": workspace_id, "id": grant_id, "user_id": user_id, "account_id": account_id}
    made_for = {"automation_id": automation_id, "replaces": replaces}
    added = await conn.execute(ADD, {**given, **made_for, "scopes": list(scopes), "lasts": lasts})
    return added.rowcount == 1


async def live_runs(
    conn: Connection, workspace_id: WorkspaceId, grant_id: GrantId, *, limit: int
) -> list[dict[str, Any]]:
    """The runs that end when this grant is revoked, oldest first."""
    return await named_rows(conn, LIVE_RUNS, {"workspace_id": workspace_id, "id": grant_id, "limit": limit})


async def revoke(
    conn: Connection, workspace_id: WorkspaceId, grant_id: GrantId, revoked_by: UserId | None = None
) -> bool:
    """Whether it was not revoked before."""
    given = {"workspace_id": workspace_id, "id": grant_id, "revoked_by": revoked_by}
    return (await conn.execute(REVOKE, given)).rowcount == 1


async def revoke_of_user(
    conn: Connection, workspace_id: WorkspaceId, user_id: UserId, revoked_by: UserId | None
) -> list[GrantId]:
    given = {"workspace_id": workspace_id, "user_id": user_id, "revoked_by": revoked_by}
    return [grant_id for (grant_id,) in await (await conn.execute(REVOKE_OF_USER, given)).fetchall()]


async def retire(conn: Connection, workspace_id: WorkspaceId, grant_id: GrantId, lasts: timedelta) -> None:
    await conn.execute(RETIRE, {"workspace_id": workspace_id, "id": grant_id, "lasts": lasts})


async def page(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    limit: int,
    user_id: UUID | None = None,
    automation_id: UUID | None = None,
    status: str | None = None,
) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"user_id": user_id, "automation_id": automation_id}
    conditions = [CHOSEN[name] for name, value in given.items() if value] + ([STANDING[status]] if status else [])
    query = " AND ".join([PAGE, *conditions]) + " ORDER BY g.id DESC LIMIT %(limit)s"
    given |= {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit}
    return await named_rows(conn, query, given)


async def of_automations(
    conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int
) -> list[dict[str, Any]]:
    """The grant of each automation; `before` is an automation's id."""
    return await named_rows(
        conn, OF_AUTOMATIONS, {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit}
    )


async def names(conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID]) -> dict[UUID | None, dict[str, Any]]:
    """What the agents and automations among these are called, and whose an automation is."""
    found = await named_rows(conn, NAMES, {"workspace_id": workspace_id, "ids": list(ids)})
    return {each["id"]: each for each in found}


async def find(conn: Connection, workspace_id: WorkspaceId, grant_id: GrantId) -> dict[str, Any] | None:
    found = await named_rows(conn, FIND, {"workspace_id": workspace_id, "id": grant_id})
    return found[0] if found else None


async def uses(conn: Connection, workspace_id: WorkspaceId, grant: dict[str, Any]) -> dict[str, Any]:
    """The automations that run on it now, and how often it was used."""
    given = {"workspace_id": workspace_id, "id": grant["id"], "automation_id": grant["automation_id"]}
    given["first"] = id_at(grant["created_at"] - timedelta(minutes=1))
    given["last"] = id_at(grant["expires_at"]) if grant["expires_at"] else UUID(int=2**128 - 1)
    [counted] = await named_rows(conn, RUNS if grant["automation_id"] else RUNS_WITHOUT_AUTOMATION, given)
    return {**counted, "automations": await named_rows(conn, USED_BY, given)}
