"""Notifications: what its person should know, and what they choose to hear of."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query

from rota.db.listener import OUTWARD
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Looking, Shared, Unit, Web
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.notifications import (
    ChoicesIn,
    ChoicesOut,
    NotificationOut,
    NotificationPage,
    TargetIn,
    TargetList,
    TargetOut,
)
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.notify import reading, targets

router = APIRouter(prefix=API + "/notifications", tags=["notifications"], route_class=Repeatable)


def _shown(unit: Unit, told: dict[str, Any]) -> NotificationOut:
    """With its page as a browser asks for it."""
    page = f"/w/{unit.caller.workspace_slug}{told['path']}" if told["path"] else None
    return NotificationOut.model_validate({**told, "path": page})


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
        items=[_shown(unit, each) for each in found[:limit]],
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


@router.get("/targets")
async def list_targets(unit: InUnit) -> TargetList:
    """Where you are told outside, newest first, and how that goes. Never a URL."""
    return TargetList.model_validate({"items": await targets.all_of(unit.conn, unit.caller)})


@router.post("/targets", status_code=201)
async def create_target(unit: InUnit, shared: Shared, body: TargetIn) -> TargetOut:
    """Save an Apprise URL under a name. It is sealed and never shown again."""
    target_id = await save_target(unit, shared, body.name, body.url.get_secret_value())
    return TargetOut.model_validate(await targets.find(unit.conn, unit.caller, target_id))


async def save_target(unit: Unit, shared: Web, name: str, url: str) -> UUID:
    settings = shared.settings
    saved = await targets.create(
        unit.conn, shared.vault, unit.caller, name=name, url=url, allow=settings.notify_allow,
        schemes=settings.notify_schemes,
    )  # fmt: skip
    target_id: UUID = saved["id"]
    unit.about(target_id)
    return target_id


@router.delete("/targets/{target_id}", status_code=204)
async def delete_target(unit: InUnit, target_id: UUID) -> None:
    """Forget it, with what waits for it."""
    await targets.delete(unit.conn, unit.caller, target_id)


@router.post("/targets/{target_id}/test", status_code=202)
async def test_target(unit: InUnit, target_id: UUID) -> TargetOut:
    """Send a test; `sent_at` or `error` tells soon what came of it."""
    unit.wake(OUTWARD)
    return TargetOut.model_validate(await targets.test(unit.conn, unit.caller, target_id))


@router.post("/{notification_id}/read")
async def read_notification(unit: Looking, notification_id: UUID) -> NotificationOut:
    """Mark one as read; a repeat changes nothing."""
    return _shown(unit, await reading.read(unit.conn, unit.caller, notification_id))
