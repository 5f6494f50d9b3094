"""The pages of the bell: what a person should know, and what they choose to hear of."""

from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi import Form as Field
from starlette.responses import Response

from rota.db.listener import OUTWARD
from rota.db.pool import Connection
from rota.errors import Invalid, NotFound
from rota.http.api.notifications import save_target
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Looking, Shared, Unit
from rota.http.shapes.notifications import TargetIn
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import forms
from rota.http.ui import live as stream
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import Next, PageRoute, done, fingerprint, is_live, page, part
from rota.model.caller import Caller
from rota.model.ids import as_uuid
from rota.model.notification import WORDS, Kind
from rota.notify import reading, targets

LISTED = 50

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/notifications", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    unread: Annotated[bool, Query()] = False,
    cursor: Cursor = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    look = partial(_list, unread=unread, before=read_cursor(cursor))
    view = View("notifications/list.html", "notifications/_results.html", "notifications/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(conn: Connection, caller: Caller, *, unread: bool, before: UUID | None) -> dict[str, Any]:
    found = await reading.page(conn, caller, before=before, limit=LISTED + 1, unread=unread or None)
    older, found = len(found) > LISTED, found[:LISTED]
    return {
        "notifications": found,
        "older": cursor_of(found[-1]["latest_id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "chosen": unread,
        "seen": fingerprint(found, older),
    }


@router.post("/read")
async def read_all(unit: Looking, request: Request, to: Next = "") -> Response:
    await reading.read_all(unit.conn, unit.caller)
    return done(request, to or _address(unit.caller), "All are read.")


@router.post("/{notification}/read")
async def read(unit: Looking, request: Request, notification: str, to: Next = "") -> Response:
    found = as_uuid(notification)
    if found is None:
        raise NotFound("There is no such notification.")
    await reading.read(unit.conn, unit.caller, found)
    return done(request, to or _address(unit.caller), "Marked as read.")


@router.get("/choices")
async def choices_page(unit: InUnit, request: Request) -> Response:
    if is_live(request):
        found = await targets.all_of(unit.conn, unit.caller)
        return part(unit, request, "notifications/_targets.html", targets=found)
    return await _choices(unit, request)


async def _choices(unit: Unit, request: Request, form: Form = UNTOUCHED) -> Response:
    facts = {
        "choices": await reading.choices(unit.conn, unit.caller),
        "kinds": WORDS,
        "targets": await targets.all_of(unit.conn, unit.caller),
        "form": form,
    }
    response = await page(unit, request, "notifications/choices.html", **facts)
    response.status_code = form.status
    return response


@router.post("/choices")
async def choose(
    unit: InUnit,
    request: Request,
    bell: Annotated[list[Kind] | None, Field()] = None,
    outward: Annotated[list[Kind] | None, Field()] = None,
) -> Response:
    given = {each.value: {"bell": each in (bell or ()), "outward": each in (outward or ())} for each in Kind}
    await reading.choose(unit.conn, unit.caller, given)
    return done(request, f"{_address(unit.caller)}/choices", "Saved.")


@router.post("/targets")
async def create_target(unit: InUnit, request: Request, shared: Shared) -> Response:
    """Save it, or show the form again with its name. What was the address is never written back."""
    typed = await forms.typed(request, "name", "url")
    try:
        async with unit.conn.transaction():
            given = TargetIn.model_validate(typed)
            await save_target(unit, shared, given.name, given.url.get_secret_value())
    except forms.WRONG as wrong:
        form = forms.rejected(request, wrong, "new", typed, "url")
        if is_live(request):  # the page still shows what was typed
            raise Invalid(next(iter(form.errors.values()))) from None
        return await _choices(unit, request, form)
    return done(request, f"{_address(unit.caller)}/choices", "Saved. Send a test to see that it arrives.")


@router.post("/targets/{target}/test")
async def test_target(unit: InUnit, request: Request, target: str) -> Response:
    await targets.test(unit.conn, unit.caller, _target(target))
    unit.wake(OUTWARD)
    return done(request, f"{_address(unit.caller)}/choices", "A test is on its way.")


@router.post("/targets/{target}/delete")
async def delete_target(unit: InUnit, request: Request, target: str) -> Response:
    await targets.delete(unit.conn, unit.caller, _target(target))
    return done(request, f"{_address(unit.caller)}/choices", "Deleted.")


def _target(ref: str) -> UUID:
    found = as_uuid(ref)
    if found is None:
        raise NotFound("There is no such target.")
    return found


def _address(caller: Caller) -> str:
    return f"/w/{caller.workspace_slug}/notifications"
