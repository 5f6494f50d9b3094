"""Grants and the accounts they charge."""

from collections.abc import Sequence
from datetime import timedelta

from rota.db.pool import Connection
from rota.model.ids import AccountId, GrantId, UserId, WorkspaceId

ADD_ACCOUNT = "INSERT INTO accounts (workspace_id, id, name) VALUES (%(workspace_id)s, %(id)s, %(name)s)"

DEFAULT_ACCOUNT = "SELECT id FROM accounts WHERE workspace_id = %(workspace_id)s ORDER BY created_at, id LIMIT 1"

ADD = """
INSERT INTO grants (workspace_id, id, user_id, account_id, scopes, expires_at)
VALUES (%(workspace_id)s, %(id)s, %(user_id)s, %(account_id)s, %(scopes)s, now() + %(lasts)s)
"""

REVOKE = (
    "UPDATE grants SET revoked_at = now() WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND revoked_at IS NULL"
)


HOLDER = """
SELECT user_id FROM grants
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
   AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""


async def add_account(conn: Connection, workspace_id: WorkspaceId, account_id: AccountId, name: str) -> None:
    await conn.execute(ADD_ACCOUNT, {"workspace_id": workspace_id, "id": account_id, "name": name})


async def default_account(conn: Connection, workspace_id: WorkspaceId) -> AccountId:
    row = await (await conn.execute(DEFAULT_ACCOUNT, {"workspace_id": workspace_id})).fetchone()
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
) -> None:
    given = {"workspace_id": workspace_id, "id": grant_id, "user_id": user_id, "account_id": account_id}
    await conn.execute(ADD, {**given, "scopes": list(scopes), "lasts": lasts})


async def holder(conn: Connection, workspace_id: WorkspaceId, grant_id: GrantId) -> UserId | None:
    row = await (await conn.execute(HOLDER, {"workspace_id": workspace_id, "id": grant_id})).fetchone()
    return UserId(row[0]) if row else None


async def revoke(conn: Connection, workspace_id: WorkspaceId, grant_id: GrantId) -> None:
    await conn.execute(REVOKE, {"workspace_id": workspace_id, "id": grant_id})
