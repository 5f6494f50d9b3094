"""Durable, narrow, revocable authority to run an agent as a user and charge an account."""

from collections.abc import Sequence
from datetime import timedelta

from rota.db import grants
from rota.db.pool import Connection
from rota.errors import Forbidden
from rota.model import scope
from rota.model.caller import Caller
from rota.model.grant_scope import AGENT_RUN, WORKSPACE_READ, check_optional
from rota.model.ids import AccountId, AgentId, AutomationId, GrantId, new_id
from rota.model.scope import Scope

SHORT = timedelta(hours=24)


async def make(
    conn: Connection,
    caller: Caller,
    agent_id: AgentId,
    *,
    scopes: Sequence[str] = (),
    lasts: timedelta | None = None,
    automation_id: AutomationId | None = None,
    replaces: GrantId | None = None,
    account_id: AccountId | None = None,
    charging: GrantId | None = None,
) -> GrantId:
    """A grant of the caller for this agent only, and for the optional `scopes`. Made in the transaction of what needs
    it. It charges the account that is named, or that of the grant it replaces or is to charge as, or the workspace's
    first."""
    chosen = check_optional(scopes)
    if WORKSPACE_READ in chosen:  # a token must not let an agent read what the token itself cannot
        scope.check(caller.scopes, Scope.READ, field="scopes")
    grant_id = GrantId(new_id())
    workspace_id = caller.workspace_id
    account_id = account_id or await grants.account_to_charge(conn, workspace_id, replaces or charging)
    made = await grants.add(
        conn,
        workspace_id,
        grant_id,
        user_id=caller.user_id,
        account_id=account_id,
        scopes=[f"{AGENT_RUN}{agent_id}", *chosen],
        lasts=lasts,
        automation_id=automation_id,
        replaces=replaces,
    )
    if not made:
        raise Forbidden("You were just removed from this workspace.")
    if replaces:
        await grants.retire(conn, workspace_id, replaces, SHORT)
    return grant_id
