"""What people look after themselves: their password, and the browsers in which they are signed in."""

from typing import Any
from uuid import UUID

from rota.access import passwords, throttling
from rota.db import people
from rota.db.pool import Connection, Database
from rota.errors import Conflict, Forbidden, NotFound
from rota.model.caller import Caller


def must_be_a_person(caller: Caller, to: str) -> None:
    if caller.agent_in_session:
        raise Forbidden(f"An agent at work cannot {to}.", needs="member")


async def change_password(db: Database, caller: Caller, current: str, new: str, address: str) -> None:
    """Set or change it, and end all other logins. Who has one must know it; who has none must have signed in at a
    browser: a token alone must not be worth an account."""
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
    hashed = await passwords.hashed(new)
    async with db.transaction() as conn:
        await people.set_password(conn, caller.user_id, hashed)
        await people.end_other_logins(conn, caller.user_id, caller.login_id)


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
