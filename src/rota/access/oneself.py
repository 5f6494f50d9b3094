"""What people look after themselves: their name and password, and the browsers in which they are signed in."""

from typing import Any, NamedTuple
from uuid import UUID

from rota.access import passwords, throttling
from rota.db import identities, people
from rota.db.pool import Connection, Database
from rota.errors import Conflict, Forbidden, NotFound
from rota.model.caller import Caller


def must_be_a_person(caller: Caller, to: str) -> None:
    if caller.agent_in_session:
        raise Forbidden(f"An agent at work cannot {to}.", needs="member")


class NewPassword(NamedTuple):
    """One that was judged and hashed, and the one that was found right before it."""

    before: str | None
    hashed: str


async def check_password(db: Database, caller: Caller, current: str, new: str, address: str) -> NewPassword:
    """Judge a change of password. Who has one must know it; who has none must have signed in at a browser: a token
    alone must not be worth an account. Takes its time, and holds no connection meanwhile."""
    must_be_a_person(caller, "change a password")
    passwords.check(new, "new")
    async with db.connection() as conn:
        person = await people.find_person(conn, caller.user_id)
    assert person
    if not person["email"]:
        raise Conflict("Your account has no e-mail address to sign in with. An admin can invite you.", code="no_email")
    if not person["has_password"] and not caller.login_id:
        raise Forbidden("Set your first password at a browser, where you are signed in.", code="login_needed")
    if person["has_password"]:
        await throttling.begin(db, person["email"], address)
        if not await passwords.is_right(person["password_hash"], current):
            raise Forbidden("This is not your present password.", code="wrong_password", field="current")
        await throttling.succeed(db, person["email"], address)
    return NewPassword(person["password_hash"], await passwords.hashed(new))


async def set_password(conn: Connection, caller: Caller, new: NewPassword) -> None:
    """In place of the one that was found right; all other logins end."""
    if not await people.change_password(conn, caller.user_id, new.before, new.hashed):
        raise Conflict("Your password was changed at this very moment. Look again, then try again.", code="conflict")
    await people.end_other_logins(conn, caller.user_id, caller.login_id)


async def person(conn: Connection, caller: Caller) -> dict[str, Any]:
    """What Rota knows about who asks, and how their identity provider calls them."""
    must_be_a_person(caller, "read about its person")
    found = await people.find_person(conn, caller.user_id)
    assert found
    return {**found, "level": caller.level, "identities": await identities.of_user(conn, caller.user_id)}


async def rename(conn: Connection, caller: Caller, name: str) -> None:
    must_be_a_person(caller, "rename its person")
    await people.rename(conn, caller.user_id, name)


async def logins(conn: Connection, caller: Caller) -> list[dict[str, Any]]:
    must_be_a_person(caller, "see where somebody is signed in")
    return await people.logins_of(conn, caller.user_id, caller.login_id)


async def end_login(conn: Connection, caller: Caller, login_id: UUID) -> None:
    must_be_a_person(caller, "sign somebody out")
    if not await people.end_login_of(conn, caller.user_id, login_id):
        raise NotFound("There is no such login.")


async def end_other_logins(conn: Connection, caller: Caller) -> int:
    must_be_a_person(caller, "sign somebody out")
    return await people.end_other_logins(conn, caller.user_id, caller.login_id)
