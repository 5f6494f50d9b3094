"""The pages of members: who belongs here with which level, and for admins the forms that change it."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import members as rows
from rota.errors import NotFound
from rota.http.api.members import apply, invite, link_for, seen_by, shut_out
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Shared, Unit
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.shapes.people import MemberIn, MemberPatch
from rota.http.ui import forms
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import PageRoute, done
from rota.model.caller import Level
from rota.model.ids import UserId, as_uuid
from rota.roster import members

LISTED = 50
LEVELS = (
    ("viewer", "Viewer", "reads everything"),
    ("member", "Member", "also chats, has automations of their own, and answers what those ask"),
    ("admin", "Admin", "does everything, looks after agents and members too"),
)

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/members", include_in_schema=False)


@router.get("")
async def list_page(unit: InUnit, request: Request, cursor: Cursor = None) -> Response:
    return await _list(unit, request, before=read_cursor(cursor))


async def _list(
    unit: Unit, request: Request, form: Form = UNTOUCHED, *, before: UUID | None = None, **facts: Any
) -> Response:
    found = await rows.page(unit.conn, unit.caller.workspace_id, before=before, limit=LISTED + 1)
    older, found = len(found) > LISTED, found[:LISTED]
    facts = {
        "made": None, **facts, **_told(unit),
        "members": [seen_by(unit, each) for each in found],
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
    }  # fmt: skip
    return await forms.shown(unit, request, "settings/members.html", form, **facts)


def _told(unit: Unit) -> dict[str, Any]:
    return {"levels": LEVELS, "me": unit.caller.user_id}


def _home(unit: Unit) -> str:
    return f"/w/{unit.caller.workspace_slug}/settings/members"


@router.post("")
async def create(unit: InUnit, request: Request, shared: Shared) -> Response:
    """Invite somebody; the link of a new account is shown this once."""
    unit.caller.must_be(Level.ADMIN, "invite somebody")
    typed = await forms.typed(request, "email", "name", "level")
    try:
        async with unit.conn.transaction():
            member, link = await invite(unit, shared, MemberIn.model_validate(typed))
    except forms.WRONG as wrong:
        return await _list(unit, request, forms.rejected(request, wrong, "new", typed))
    if not link:
        return done(request, _home(unit), f"{member['name']} is a member now, and signs in as before.")
    return await _list(unit, request, made={"name": member["name"], "link": link})


@router.get("/{member}")
async def member_page(unit: InUnit, request: Request, member: str) -> Response:
    return await _member(unit, request, _id(member))


async def _member(unit: Unit, request: Request, member_id: UUID, form: Form = UNTOUCHED, **facts: Any) -> Response:
    """One member, and for an admin what would end with their membership."""
    found = await members.find(unit.conn, unit.caller, member_id)
    held = await rows.holds(unit.conn, unit.caller.workspace_id, UserId(member_id)) if unit.caller.is_admin else None
    facts = {"made": None, **facts, **_told(unit), "member": seen_by(unit, found), "held": held}
    return await forms.shown(unit, request, "settings/member.html", form, **facts)


def _id(ref: str) -> UUID:
    found: UUID | None = as_uuid(ref)
    if found is None:
        raise NotFound("There is no such member.")
    return found


@router.post("/{member}/change")
async def change(unit: InUnit, request: Request, member: str) -> Response:
    """Raise or lower them, or switch their account off or on: one form each."""
    found = await members.find(unit.conn, unit.caller, _id(member))
    typed = {name: text for name, text in (await forms.typed(request, "level", "disabled")).items() if text}
    try:
        async with unit.conn.transaction():
            await apply(unit, found["id"], MemberPatch.model_validate(typed, strict=False))
    except forms.WRONG as wrong:
        of = "disabled" if "disabled" in typed else "level"
        return await _member(unit, request, found["id"], forms.rejected(request, wrong, of, typed))
    return done(request, f"{_home(unit)}/{member}", f"{found['name']} is changed.")


@router.post("/{member}/link")
async def make_link(unit: InUnit, request: Request, shared: Shared, member: str) -> Response:
    """A new one-time link, shown this once; an earlier one dies."""
    unit.caller.must_be(Level.ADMIN, "make somebody a sign-in link")
    found = await members.find(unit.conn, unit.caller, _id(member))
    try:
        async with unit.conn.transaction():
            link = await link_for(unit, shared, found["id"])
    except forms.WRONG as wrong:
        return await _member(unit, request, found["id"], forms.rejected(request, wrong, "link", {}))
    return await _member(unit, request, found["id"], made={"name": found["name"], "link": link})


@router.post("/{member}/delete")
async def delete(unit: InUnit, request: Request, member: str) -> Response:
    """Take them out, with all that the page has named."""
    found = await members.find(unit.conn, unit.caller, _id(member))
    try:
        async with unit.conn.transaction():
            await members.remove(unit.conn, unit.caller, found["id"])
            await shut_out(unit, found["id"])
    except forms.WRONG as wrong:
        return await _member(unit, request, found["id"], forms.rejected(request, wrong, "delete", {}))
    return forms.gone(request, _home(unit))
