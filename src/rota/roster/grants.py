"""Grants as people look after them: revoked at once with all that runs on them, and renewed."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from rota.access import grants
from rota.db import accounts, automations
from rota.db import grants as rows
from rota.db.pool import Connection
from rota.errors import Forbidden, Invalid, NotFound
from rota.model.caller import Caller, Level
from rota.model.ids import AccountId, AgentId, AutomationId, GrantId, UserId
from rota.runs import cancelling


async def find(conn: Connection, caller: Caller, grant_id: UUID) -> dict[str, Any]:
    found = await rows.find(conn, caller.workspace_id, GrantId(grant_id))
    if not found:
        raise NotFound("There is no such grant.")
    return found


async def revoke(conn: Connection, caller: Caller, grant_id: UUID) -> None:
    """End a grant of one's own, or any as an admin, and what waits or runs under it. A repeat changes nothing."""
    found = await find(conn, caller, grant_id)
    caller.must_own(found["user_id"], "revoke this grant")
    if await rows.revoke(conn, caller.workspace_id, GrantId(grant_id), caller.user_id):
        await cancelling.stop_grants(conn, caller.workspace_id, [GrantId(grant_id)])


async def revoke_all_of(conn: Connection, caller: Caller, user_id: UserId) -> None:
    """For a member who is removed, or may only read from now on: their grants end, and what runs on them."""
    caller.must_be(Level.ADMIN, "revoke all of somebody's grants")
    ended = await rows.revoke_of_user(conn, caller.workspace_id, user_id, caller.user_id)
    await cancelling.stop_grants(conn, caller.workspace_id, ended)


async def _account(conn: Connection, caller: Caller, account: UUID, before: GrantId) -> AccountId:
    """The account that an automation shall charge: admins decide who pays, others keep to what it charges."""
    if not await accounts.find(conn, caller.workspace_id, AccountId(account)):
        raise Invalid("There is no such account.", code="unknown_account", field="account")
    if not caller.is_admin and account != await rows.account_to_charge(conn, caller.workspace_id, before):
        raise Forbidden(
            "Only an admin may let it charge another account; leave `account` out to keep the one it charges.",
            field="account", needs=Level.ADMIN,
        )  # fmt: skip
    return AccountId(account)


async def renew(
    conn: Connection, caller: Caller, ref: str, *, lasts: timedelta | None = None, account: UUID | None = None
) -> AutomationId:
    """Give an automation a new grant of the caller, in place of the one it has, which stays in the history. It charges
    the same account unless an admin names another."""
    found = await automations.find(conn, caller.workspace_id, ref, lock=True)
    if not found or found["deleted_at"]:
        raise NotFound("There is no such automation.")
    caller.must_own(found["owner_id"], "renew this grant")
    automation_id = AutomationId(found["id"])
    account_id = await _account(conn, caller, account, found["grant_id"]) if account else None
    grant_id = await grants.make(
        conn, caller, AgentId(found["agent_id"]), scopes=found["scopes"], lasts=lasts, automation_id=automation_id,
        replaces=found["grant_id"], account_id=account_id,
    )  # fmt: skip
    await automations.set_grant(conn, caller.workspace_id, automation_id, grant_id)
    return automation_id
