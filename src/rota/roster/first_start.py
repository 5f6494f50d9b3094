"""The first start: a workspace, a local admin and an account, made once however many processes start together; and
more workspaces, which somebody wants."""

from dataclasses import dataclass

from rota.db import audit, grants, people
from rota.db.audit import Entry
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid
from rota.model.caller import Caller, Level
from rota.model.ids import AccountId, UserId, WorkspaceId, new_id
from rota.model.text import named
from rota.roster import slugs

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
        await _make(conn, slug, _name(None, slug))
        found = await people.find_workspace(conn, slug)
    assert found
    admin = await people.first_admin(conn, found["id"])
    assert admin, "a workspace is made with an admin"
    first = not await people.was_furnished(conn, found["id"])
    return Settled(Caller(found["id"], found["slug"], found["timezone"], admin, ADMIN, Level.ADMIN), first)


async def make_another(conn: Connection, slug: str, name: str | None) -> UserId:
    """A workspace beside those that are there, as whoever can reach the database wants it; its local admin."""
    await people.settle_one_by_one(conn)
    if await people.find_workspace(conn, slugs.checked(slug)):
        raise Conflict(f"There is a workspace {slug!r} already.", code="slug_taken", field="slug")
    workspace_id, user_id = await _make(conn, slug, _name(name, slug))
    facts = {"slug": slug, "name": _name(name, slug)}
    await audit.add(
        conn, Entry(workspace_id, None, "workspace.create", "workspace", str(workspace_id), 200, after=facts)
    )
    return user_id


def _name(given: str | None, slug: str) -> str:
    try:
        return slug.replace("-", " ").capitalize() if given is None else named(given)
    except ValueError as wrong:
        raise Invalid(str(wrong), field="name") from None


async def _make(conn: Connection, slug: str, name: str) -> tuple[WorkspaceId, UserId]:
    workspace_id, user_id = WorkspaceId(new_id()), UserId(new_id())
    await people.add_workspace(conn, workspace_id, slug, name)
    await people.add_user(conn, user_id, ADMIN)
    await people.add_member(conn, workspace_id, user_id, Level.ADMIN)
    await grants.add_account(conn, workspace_id, AccountId(new_id()), "Default")
    return workspace_id, user_id
