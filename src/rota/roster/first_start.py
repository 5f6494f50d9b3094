"""The first start: a workspace, a local admin and an account, made once however many processes start together."""

from dataclasses import dataclass

from rota.db import grants, people
from rota.db.pool import Connection
from rota.model.caller import Caller, Level
from rota.model.ids import AccountId, UserId, WorkspaceId, new_id

ADMIN = "Local admin"


@dataclass(frozen=True, slots=True)
class Settled:
    caller: Caller
    first: bool


async def settle_in(conn: Connection, slug: str) -> Settled:
    """The workspace's first admin, made with the workspace if there is none yet.

    It is the first start until something was saved: whoever made a token before may have made the workspace.
    """
    await people.settle_one_by_one(conn)
    found = await people.find_workspace(conn, slug)
    if found is None:
        await _make(conn, slug)
        found = await people.find_workspace(conn, slug)
    assert found
    admin = await people.first_admin(conn, found["id"])
    assert admin, "a workspace is made with an admin"
    first = not await people.was_furnished(conn, found["id"])
    return Settled(Caller(found["id"], found["slug"], found["timezone"], admin, ADMIN, Level.ADMIN), first)


async def _make(conn: Connection, slug: str) -> None:
    workspace_id, user_id = WorkspaceId(new_id()), UserId(new_id())
    await people.add_workspace(conn, workspace_id, slug, slug.replace("-", " ").capitalize())
    await people.add_user(conn, user_id, ADMIN)
    await people.add_member(conn, workspace_id, user_id, Level.ADMIN)
    await grants.add_account(conn, workspace_id, AccountId(new_id()), "Default")
