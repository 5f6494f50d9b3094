"""The pages of the bell: what a person should know, and what they choose to hear of."""

from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from rota.db.pool import Connection
from rota.errors import NotFound
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Looking, Shared
from rota.http.shapes import cursor_of, read_cursor
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import Next, PageRoute, done, fingerprint, page
from rota.model.caller import Caller
from rota.model.ids import as_uuid
from rota.model.notification import WORDS, Kind
from rota.notify import reading

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
    choices = await reading.choices(unit.conn, unit.caller)
    return await page(unit, request, "notifications/choices.html", choices=choices, kinds=WORDS)


@router.post("/choices")
async def choose(
    unit: InUnit,
    request: Request,
    bell: Annotated[list[Kind] | None, Form()] = None,
    outward: Annotated[list[Kind] | None, Form()] = None,
) -> Response:
    given = {each.value: {"bell": each in (bell or ()), "outward": each in (outward or ())} for each in Kind}
    await reading.choose(unit.conn, unit.caller, given)
    return done(request, f"{_address(unit.caller)}/choices", "Saved.")


def _address(caller: Caller) -> str:
    return f"/w/{caller.workspace_slug}/notifications"
