"""API tokens: made for some scopes and some time, shown once, revoked at once."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

from rota.access.signing_in import add_token
from rota.db import audit, people
from rota.db import tokens as rows
from rota.db.audit import Entry
from rota.db.pool import Connection
from rota.errors import Forbidden, Invalid, NotFound
from rota.model.caller import Caller
from rota.model.ids import TokenId, UserId, WorkspaceId
from rota.model.scope import Scope
from rota.model.text import named


async def create_for_caller(
    conn: Connection, caller: Caller, name: str, *, scopes: Collection[Scope], lasts: timedelta | None
) -> tuple[TokenId, str]:
    """A token of the caller's own. One that is made with a token can do no more than that one, and lasts no longer."""
    if caller.agent_in_session:
        raise Forbidden("An agent at work has the token of its attempt, and makes no other.", needs="member")
    if caller.token_id and caller.scopes is not None:
        if excess := [scope for scope in scopes if scope not in caller.scopes]:
            raise Forbidden(
                f"Your own token has no scope `{excess[0]}`, so it cannot give it.",
                code="scope_missing", field="scopes", needs_scope=excess[0],
            )  # fmt: skip
        lasts = await _no_longer(conn, caller, lasts)
    return await add_token(conn, caller.workspace_id, caller.user_id, name, scopes=scopes, lasts=lasts)


async def _no_longer(conn: Connection, caller: Caller, lasts: timedelta | None) -> timedelta | None:
    assert caller.token_id
    own = await rows.find(conn, caller.workspace_id, caller.token_id)
    left: timedelta | None = own["lasts"] if own else timedelta()
    return lasts if left is None else left if lasts is None else min(lasts, left)


async def revoke(conn: Connection, caller: Caller, token_id: UUID) -> None:
    """End a token of one's own, or any as an admin. Others are not there for who may not see them."""
    found = await rows.find(conn, caller.workspace_id, token_id)
    if not found or not (caller.is_admin or found["user_id"] == caller.user_id):
        raise NotFound("There is no such token.")
    if caller.agent_in_session:
        raise Forbidden("An agent at work reads only.", needs="member")
    await rows.revoke(conn, caller.workspace_id, token_id)


# For whoever can reach the database -----------------------------------------------------------------------------------


async def create_as_operator(
    conn: Connection, workspace: str, name: str, *, email: str | None = None, **options: Any
) -> str:
    """A token of the workspace's first admin, or of the member with this e-mail."""
    workspace_id = await _workspace(conn, workspace)
    user_id = await _member(conn, workspace_id, email) if email else await people.first_admin(conn, workspace_id)
    if not user_id:
        raise NotFound(f"The workspace {workspace!r} has no {f'member {email!r}' if email else 'admin'}.", field="user")
    try:
        name = named(name)
    except ValueError as wrong:
        raise Invalid(str(wrong), field="name") from None
    token_id, secret = await add_token(conn, workspace_id, user_id, name, **options)
    await audit.add(conn, Entry(workspace_id, None, "token.create", "token", str(token_id), 200, after={"name": name}))
    return secret


async def all_of(conn: Connection, workspace: str) -> list[dict[str, Any]]:
    return await rows.page(conn, await _workspace(conn, workspace), before=None, limit=10_000, user_id=None)


async def revoke_as_operator(conn: Connection, workspace: str, token_id: UUID) -> None:
    workspace_id = await _workspace(conn, workspace)
    if not await rows.find(conn, workspace_id, token_id):
        raise NotFound(f"The workspace {workspace!r} has no such token.", field="token")
    await rows.revoke(conn, workspace_id, token_id)
    await audit.add(conn, Entry(workspace_id, None, "token.delete", "token", str(token_id), 200))


async def _workspace(conn: Connection, ref: str) -> WorkspaceId:
    found = await people.find_workspace(conn, ref)
    if not found:
        raise NotFound(f"There is no workspace {ref!r}.", field="workspace")
    return WorkspaceId(found["id"])


async def _member(conn: Connection, workspace_id: WorkspaceId, email: str) -> UserId | None:
    user = await people.find_user(conn, email.lower())
    return UserId(user["id"]) if user and await people.find_member(conn, workspace_id, user["id"]) else None
