"""Notifications: what its person should know, and what they choose to hear of."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Looking
from rota.http.shapes import ChoicesIn, ChoicesOut, NotificationOut, NotificationPage, cursor_of, read_cursor
from rota.notify import reading

router = APIRouter(prefix="/notifications", tags=["notifications"])


@router.get("")
async def list_notifications(
    unit: InUnit,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    unread: Annotated[bool | None, Query(description="Only those that are unread, or only those that are not")] = None,
) -> NotificationPage:
    """Your own notifications, newest first, and how many are unread. Failures of one automation are one until it is
    read."""
    found = await reading.page(unit.conn, unit.caller, before=read_cursor(cursor), limit=limit + 1, unread=unread)
    return NotificationPage(
        items=[NotificationOut.model_validate(each) for each in found[:limit]],
        next_cursor=cursor_of(found[limit - 1]["latest_id"]) if len(found) > limit else None,
        unread=await reading.unread(unit.conn, unit.caller),
    )


@router.post("/read", status_code=204)
async def read_notifications(unit: Looking) -> None:
    """Mark all of yours as read."""
    await reading.read_all(unit.conn, unit.caller)


@router.get("/choices")
async def get_choices(unit: InUnit) -> ChoicesOut:
    """What you hear of: for each kind, in the bell and outward."""
    return ChoicesOut.model_validate(await reading.choices(unit.conn, unit.caller))


@router.put("/choices")
async def set_choices(unit: InUnit, body: ChoicesIn) -> ChoicesOut:
    """Choose what you hear of. Kinds that are not given stay as they are."""
    given = {kind: choice.model_dump() for kind, choice in body.given().items()}
    return ChoicesOut.model_validate(await reading.choose(unit.conn, unit.caller, given))


@router.post("/{notification_id}/read")
async def read_notification(unit: Looking, notification_id: UUID) -> NotificationOut:
    """Mark one as read; a repeat changes nothing."""
    return NotificationOut.model_validate(await reading.read(unit.conn, unit.caller, notification_id))
