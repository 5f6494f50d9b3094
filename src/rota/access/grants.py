"""Durable, narrow, revocable authority to run an agent as a user and charge an account."""

from datetime import timedelta

from rota.db import grants
from rota.db.pool import Connection
from rota.errors import Forbidden
from rota.model.ids import AccountId, AgentId, AutomationId, GrantId, UserId, WorkspaceId, new_id

SHORT = timedelta(hours=24)


async def make(
    conn: Connection,
    workspace_id: WorkspaceId,
    user_id: UserId,
    agent_id: AgentId,
    *,
    lasts: timedelta | None = None,
    automation_id: AutomationId | None = None,
    replaces: GrantId | None = None,
    account_id: AccountId | None = None,
    charging: GrantId | None = None,
) -> GrantId:
    """A grant for this agent only. Made in the transaction of what needs it. It charges the account that is named, or
    that of the grant it replaces or is to charge as, or the workspace's first."""
    grant_id = GrantId(new_id())
    account_id = account_id or await grants.account_to_charge(conn, workspace_id, replaces or charging)
    made = await grants.add(
        conn,
        workspace_id,
        grant_id,
        user_id=user_id,
        account_id=account_id,
        scopes=[f"agent:run:{agent_id}"],
        lasts=lasts,
        automation_id=automation_id,
        replaces=replaces,
    )
    if not made:
        raise Forbidden("You were just removed from this workspace.")
    if replaces:
        await grants.retire(conn, workspace_id, replaces, SHORT)
    return grant_id
