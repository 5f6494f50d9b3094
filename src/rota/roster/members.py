"""The members of a workspace: who comes in, with which level, and what ends when they go."""

from typing import Any, NamedTuple
from uuid import UUID

from rota.access import signing_in
from rota.db import members, people, tokens
from rota.db.pool import Connection
from rota.errors import Conflict, NotFound
from rota.model.caller import Caller, Level
from rota.model.ids import UserId, new_id
from rota.roster import grants


class Person(NamedTuple):
    id: UserId
    is_new: bool


async def find(conn: Connection, caller: Caller, user_id: UUID) -> dict[str, Any]:
    found = await members.find(conn, caller.workspace_id, user_id)
    if not found:
        raise NotFound("There is no such member.")
    return found


async def person(conn: Connection, email: str, name: str) -> Person:
    """Whoever has this e-mail address on this server, or a new account. One that was there is left as it is: an admin
    here has no say over what somebody signs in with elsewhere. Looks beyond the workspace."""
    found = await people.find_user(conn, email)
    if found:
        return Person(UserId(found["id"]), False)
    user_id = UserId(new_id())
    await people.add_user(conn, user_id, name, email)
    return Person(user_id, True)


async def join(conn: Connection, caller: Caller, user_id: UserId, level: Level) -> dict[str, Any]:
    caller.must_be(Level.ADMIN, "invite somebody")
    if not await people.add_member(conn, caller.workspace_id, user_id, level):
        raise Conflict("Somebody with this e-mail address is a member already.", code="already_member", field="email")
    return await find(conn, caller, user_id)


async def new_link(conn: Connection, caller: Caller, user_id: UserId) -> str:
    """A one-time sign-in link for a member of this workspace only: who opens it is that person everywhere. Looks beyond
    the workspace."""
    if await members.is_elsewhere(conn, caller.workspace_id, user_id):
        raise Conflict(
            "This person belongs to another workspace too; whoever runs the server can give them a link.",
            code="member_elsewhere",
        )
    return await signing_in.create_link(conn, user_id)


async def set_level(conn: Connection, caller: Caller, user_id: UUID, level: Level) -> list[UUID]:
    """Raise or lower somebody. Who may only read from now on lends no agent their authority: their grants end. The ids
    of the runs that a worker must stop."""
    caller.must_be(Level.ADMIN, "change a member's level")
    before = await _hold(conn, caller, user_id, loses_admin=level != Level.ADMIN)
    await members.set_level(conn, caller.workspace_id, UserId(user_id), level)
    if level == Level.VIEWER and before != Level.VIEWER:
        return await grants.revoke_all_of(conn, caller, UserId(user_id))
    return []


async def remove(conn: Connection, caller: Caller, user_id: UUID) -> list[UUID]:
    """Take somebody out: their grants and tokens end, and what runs on them. The ids of the runs that a worker must
    stop. Their logins are ended by `people.shut_out`."""
    caller.must_be(Level.ADMIN, "remove a member")
    await _hold(conn, caller, user_id, loses_admin=True)
    stopped = await grants.revoke_all_of(conn, caller, UserId(user_id))
    await tokens.revoke_of_user(conn, caller.workspace_id, UserId(user_id))
    await members.remove(conn, caller.workspace_id, UserId(user_id))
    return stopped


async def _hold(conn: Connection, caller: Caller, user_id: UUID, *, loses_admin: bool) -> Level:
    """Their level, locked; a workspace never loses its last admin."""
    admins = await members.lock_admins(conn, caller.workspace_id)
    level = await members.lock(conn, caller.workspace_id, UserId(user_id))
    if level is None:
        raise NotFound("There is no such member.")
    if loses_admin and admins == [user_id]:
        raise Conflict("This is the workspace's last admin. Make somebody else an admin first.", code="last_admin")
    return Level(level)
