"""The members of a workspace: who comes in, with which level, and what ends when they go."""

from typing import Any, NamedTuple
from uuid import UUID

from rota.access import signing_in
from rota.db import audit, identities, members, people, targets, tokens
from rota.db import grants as grant_rows
from rota.db.audit import Entry
from rota.db.pool import Connection
from rota.errors import Conflict, Invalid, NotFound
from rota.model.caller import Caller, Level
from rota.model.ids import UserId, WorkspaceId, as_uuid, new_id
from rota.roster import grants
from rota.runs import cancelling


class Person(NamedTuple):
    id: UserId
    is_new: bool


async def find(conn: Connection, caller: Caller, user_id: UUID) -> dict[str, Any]:
    found = await members.find(conn, caller.workspace_id, user_id)
    if not found:
        raise NotFound("There is no such member.")
    return found


async def find_owner(conn: Connection, caller: Caller, ref: str | None) -> UserId | None:
    """Whose things a list is limited to: `me`, or the id or e-mail address of a present or former member. Only admins
    find others by their e-mail address, because nobody else is shown it."""
    if ref is None or ref == "me":
        return caller.user_id if ref else None
    found = await members.find_owner(conn, caller.workspace_id, ref)
    hidden = as_uuid(ref) is None and not caller.is_admin and found != caller.user_id
    if found is None or hidden:
        raise Invalid(
            f"There is no member {ref[:64]!r}. Send `me`, the id of a member, or, as an admin, their e-mail address.",
            code="unknown_owner", field="owner",
        )  # fmt: skip
    return found


async def person(conn: Connection, caller: Caller, email: str, name: str) -> Person:
    """Whoever has this e-mail address on this server, or a new account. One that was there is left as it is: an admin
    here has no say over what somebody signs in with elsewhere. Looks beyond the workspace."""
    found = await people.find_user(conn, email, lock=True)
    if found:
        await _must_be_themself(conn, caller, found)
        return Person(UserId(found["id"]), False)
    user_id = UserId(new_id())
    await people.add_user(conn, user_id, name, email, admitted_by=caller.workspace_id)
    return Person(user_id, True)


async def _must_be_themself(conn: Connection, caller: Caller, found: dict[str, Any]) -> None:
    """Another workspace's admins gave this account its way in, and could use it: it comes in here only as whom an
    identity provider knows, or once who runs the server has given it a way in of its own."""
    if found["admitted_by"] in {None, caller.workspace_id}:
        return
    if not found["is_identified"]:
        raise Conflict(
            "Admins of another workspace made this account and could sign in as it. The person signs in with your"
            " identity provider first, or with a link that whoever runs the server makes: `rota sign-in --user`.",
            code="account_unproven", field="email",
        )  # fmt: skip
    await people.prove(conn, UserId(found["id"]))


async def join(conn: Connection, caller: Caller, user_id: UserId, level: Level) -> dict[str, Any]:
    caller.must_be(Level.ADMIN, "invite somebody")
    if not await people.add_member(conn, caller.workspace_id, user_id, level):
        raise Conflict("Somebody with this e-mail address is a member already.", code="already_member", field="email")
    return await find(conn, caller, user_id)


async def new_link(conn: Connection, caller: Caller, user_id: UserId) -> str:
    """A one-time sign-in link for a member of this workspace only: who opens it is that person everywhere. Looks beyond
    the workspace."""
    await people.admit(conn, user_id, caller.workspace_id)  # first: nobody else takes them in meanwhile
    await _must_be_ours(conn, caller, user_id, "give them a link")
    return await signing_in.create_link(conn, user_id)


async def _must_be_ours(conn: Connection, caller: Caller, user_id: UserId, to: str) -> None:
    if await members.is_elsewhere(conn, caller.workspace_id, user_id):
        raise Conflict(
            f"This person belongs to another workspace too; whoever runs the server can {to}.", code="member_elsewhere"
        )


async def set_level(conn: Connection, caller: Caller, user_id: UUID, level: Level) -> None:
    """Raise or lower somebody. Who may only read from now on lends no agent their authority: their grants end."""
    caller.must_be(Level.ADMIN, "change a member's level")
    before = await _hold(conn, caller, user_id, loses_admin=level != Level.ADMIN)
    await members.set_level(conn, caller.workspace_id, UserId(user_id), level)
    if level == Level.VIEWER and before != Level.VIEWER:
        await grants.revoke_all_of(conn, caller, UserId(user_id))


async def switch_off(conn: Connection, caller: Caller, user_id: UUID) -> None:
    """Let a member of this workspace only in no more, until they are switched on again: their logins and grants end,
    their tokens rest."""
    caller.must_be(Level.ADMIN, "switch somebody off")
    await _hold(conn, caller, user_id, loses_admin=True)
    await grants.revoke_all_of(conn, caller, UserId(user_id))


async def switch(conn: Connection, caller: Caller, user_id: UUID, *, off: bool) -> None:
    """The account itself. Looks beyond the workspace."""
    caller.must_be(Level.ADMIN, "switch somebody off or on")
    await people.switch(conn, UserId(user_id), off=off)  # first: nobody else takes them in meanwhile
    await _must_be_ours(conn, caller, UserId(user_id), "switch them off or on")
    if off:
        await people.shut_out(conn, UserId(user_id))


async def remove(conn: Connection, caller: Caller, user_id: UUID) -> None:
    """Take somebody out: their grants and tokens end, and what runs on them, and they are told nothing more. Their
    logins are ended by `people.shut_out`."""
    caller.must_be(Level.ADMIN, "remove a member")
    await _hold(conn, caller, user_id, loses_admin=True)
    await grants.revoke_all_of(conn, caller, UserId(user_id))
    await tokens.revoke_of_user(conn, caller.workspace_id, UserId(user_id))
    await targets.delete_of_user(conn, caller.workspace_id, UserId(user_id))
    await members.remove(conn, caller.workspace_id, UserId(user_id))


async def _hold(conn: Connection, caller: Caller, user_id: UUID, *, loses_admin: bool) -> Level:
    """Their level, locked; a workspace never loses its last admin."""
    admins = await members.lock_admins(conn, caller.workspace_id)
    level = await members.lock(conn, caller.workspace_id, UserId(user_id))
    if level is None:
        raise NotFound("There is no such member.")
    if loses_admin and admins == [user_id]:
        raise Conflict("This is the workspace's last admin. Make somebody else an admin first.", code="last_admin")
    return Level(level)


# For whoever can reach the database -----------------------------------------------------------------------------------


async def link_as_operator(conn: Connection, email: str) -> str:
    """A one-time link for anybody, by which they prove to be themself: what an admin could know of them ends."""
    user_id = await _somebody(conn, email)
    await people.prove(conn, user_id)
    for workspace in await people.workspaces_of(conn, user_id):
        await _tell(conn, workspace["id"], "member.link", user_id)
    return await signing_in.create_link(conn, user_id)


async def switch_as_operator(conn: Connection, email: str, *, off: bool) -> bool:
    """Let somebody in nowhere any more, or again. Whether that changed anything."""
    user_id = await _somebody(conn, email)
    if not await people.switch(conn, user_id, off=off):
        return False
    for workspace in await people.workspaces_of(conn, user_id):
        if off:
            await _end_grants(conn, workspace, user_id)
        facts = {"before": {"disabled": not off}, "after": {"disabled": off}}
        await _tell(conn, workspace["id"], "member.change", user_id, **facts)
    if off:
        await people.shut_out(conn, user_id)
    return True


async def unlink_as_operator(conn: Connection, email: str) -> bool:
    """Forget as whom identity providers know somebody; who comes from there with their address next is them. Whether
    that changed anything."""
    user_id = await _somebody(conn, email)
    issuers = await identities.forget(conn, user_id)
    if not issuers:
        return False
    for workspace in await people.workspaces_of(conn, user_id):
        facts = {"before": {"identities": issuers}, "after": {"identities": []}}
        await _tell(conn, workspace["id"], "member.change", user_id, **facts)
    return True


async def _somebody(conn: Connection, email: str) -> UserId:
    found = await people.find_user(conn, email.strip().lower(), lock=True)
    if not found:
        raise NotFound(f"Nobody on this server has the e-mail address {email!r}.", field="user")
    return UserId(found["id"])


async def _end_grants(conn: Connection, workspace: dict[str, Any], user_id: UserId) -> None:
    """Workers stop what runs on them at their next heartbeat."""
    if not await members.lock_admins(conn, workspace["id"]):  # they count no more
        raise Conflict(
            f"This is the last admin of the workspace {workspace['slug']!r}. Make somebody else an admin first.",
            code="last_admin",
        )
    ended = await grant_rows.revoke_of_user(conn, workspace["id"], user_id, None)
    await cancelling.stop_grants(conn, workspace["id"], ended)


async def _tell(conn: Connection, workspace_id: WorkspaceId, action: str, user_id: UserId, **facts: Any) -> None:
    await audit.add(conn, Entry(workspace_id, None, action, "member", str(user_id), 200, **facts))
