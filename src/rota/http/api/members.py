"""Members: who belongs to the workspace, and what they may do."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter

from rota.access import passwords
from rota.db import members as rows
from rota.db import people
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.api.repeats import Once
from rota.http.context import InUnit, Shared, Unit, Web
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.http.shapes.people import LinkOut, MemberIn, MemberOut, MemberPatch, NewMemberOut  # fmt: skip
from rota.model.caller import Level
from rota.model.ids import UserId
from rota.roster import members

router = APIRouter(prefix=API + "/members", tags=["members"], route_class=Repeatable)


@router.get("")
async def list_members(unit: InUnit, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[MemberOut]:
    """Members, newest account first. E-mail addresses are shown to admins, and everybody's own to them."""
    found = await rows.page(unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1)
    return page_of([seen_by(unit, each) for each in found], limit, MemberOut)


@router.post("", status_code=201)
async def invite_member(unit: InUnit, shared: Shared, body: MemberIn) -> NewMemberOut:
    """Make somebody a member. A new account gets the `password` that is given, or a one-time `link`, shown in this
    answer only; who has an account on this server signs in as before. For admins."""
    unit.caller.must_be(Level.ADMIN, "invite somebody")
    member, link = await invite(unit, shared, body)
    return NewMemberOut.model_validate({**member, "link": link})


async def invite(unit: Unit, shared: Web, body: MemberIn) -> tuple[dict[str, Any], str | None]:
    """The member, and their sign-in link if they need one."""
    password = passwords.check(body.password.get_secret_value()) if body.password else None
    async with unit.beyond_workspace():
        person = await members.person(unit.conn, unit.caller, body.email, body.name or body.email.partition("@")[0])
        if person.is_new and password:
            await people.set_password(unit.conn, person.id, await passwords.hashed(password))
    member = await members.join(unit.conn, unit.caller, person.id, Level(body.level))
    unit.about(person.id)
    return member, await link_for(unit, shared, person.id) if person.is_new and not password else None


@router.get("/{member_id}")
async def get_member(unit: InUnit, member_id: UUID) -> MemberOut:
    """One member."""
    return MemberOut.model_validate(seen_by(unit, await members.find(unit.conn, unit.caller, member_id)))


@router.patch("/{member_id}")
async def change_member(unit: InUnit, member_id: UUID, body: MemberPatch) -> MemberOut:
    """Raise or lower a member, or switch their account off or on. The grants of who becomes a viewer or is switched off
    end, with what runs on them; who is switched off is signed out, and their tokens rest. Answers 409 for the last
    admin, and for switching who belongs to another workspace too. For admins."""
    await apply(unit, member_id, body)
    return MemberOut.model_validate(await members.find(unit.conn, unit.caller, member_id))


async def apply(unit: Unit, member_id: UUID, body: MemberPatch) -> None:
    unit.caller.must_be(Level.ADMIN, "change a member")
    given = body.given()
    if "level" in given:
        await members.set_level(unit.conn, unit.caller, member_id, Level(body.level))
    if "disabled" not in given:
        return
    if body.disabled:
        await members.switch_off(unit.conn, unit.caller, member_id)
    await members.find(unit.conn, unit.caller, member_id)
    async with unit.beyond_workspace():
        await members.switch(unit.conn, unit.caller, member_id, off=body.disabled)


@router.delete("/{member_id}", status_code=204)
async def remove_member(unit: InUnit, member_id: UUID) -> None:
    """Take somebody out: their grants, tokens and logins end at once, with what runs on them. Their automations stay
    and skip until somebody renews their grant. Answers 409 for the last admin. For admins."""
    await members.remove(unit.conn, unit.caller, member_id)
    await shut_out(unit, member_id)


async def shut_out(unit: Unit, member_id: UUID) -> None:
    async with unit.beyond_workspace():
        await people.shut_out(unit.conn, UserId(member_id))


@router.post("/{member_id}/link", status_code=201)
async def make_link(unit: InUnit, shared: Shared, once: Once, member_id: UUID) -> LinkOut:
    """A new one-time sign-in link for somebody who lost theirs; an earlier one dies. Answers 409 for who belongs to
    another workspace too. For admins."""
    unit.caller.must_be(Level.ADMIN, "make somebody a sign-in link")
    member = await members.find(unit.conn, unit.caller, member_id)
    link = ""

    async def make() -> UUID:
        nonlocal link
        link = await link_for(unit, shared, member["id"])
        return member_id

    await once.shown_once(None, make)
    return LinkOut(link=link)


async def link_for(unit: Unit, shared: Web, user_id: UserId) -> str:
    async with unit.beyond_workspace():
        secret = await members.new_link(unit.conn, unit.caller, user_id)
    link = f"{shared.url}/sign-in?token={secret}"
    unit.show_once(link)
    return link


def seen_by(unit: Unit, member: dict[str, Any]) -> dict[str, Any]:
    caller = unit.caller
    if caller.is_admin or (member["id"] == caller.user_id and not caller.agent_in_session):
        return member
    return {**member, "email": None}
