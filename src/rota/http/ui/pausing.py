"""The form that pauses all automations of a workspace, and the button of the bar that resumes them."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import pauses
from rota.errors import Invalid
from rota.http.context import InUnit, Unit
from rota.http.shapes.people import PauseIn
from rota.http.ui import forms
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import Next, PageRoute, done, zone_of
from rota.model.caller import Level
from rota.model.cron import load_zone
from rota.roster import pausing

SPANS = (
    ("", "When an admin resumes them"),
    ("30m", "In 30 minutes"),
    ("2h", "In 2 hours"),
    ("8h", "In 8 hours"),
    ("1d", "In a day"),
    ("7d", "In 7 days"),
)

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}", include_in_schema=False)


@router.get("/pause")
async def pause_page(unit: InUnit, request: Request) -> Response:
    unit.caller.must_be(Level.ADMIN, "pause the workspace")
    return await _page(unit, request)


async def _page(unit: Unit, request: Request, form: Form = UNTOUCHED) -> Response:
    pause = await pauses.find(unit.conn, unit.caller.workspace_id)
    until = pause and pause["until"]
    local = until.astimezone(load_zone(zone_of(request, unit.caller))).strftime("%Y-%m-%dT%H:%M") if until else ""
    facts = {"pause": pause, "until": local, "spans": SPANS}
    return await forms.shown(unit, request, "settings/pause.html", form, **facts)


@router.post("/pause")
async def pause(unit: InUnit, request: Request) -> Response:
    unit.caller.must_be(Level.ADMIN, "pause the workspace")
    typed = await forms.typed(request, "reason", "lasts", "until")
    try:
        body = PauseIn.model_validate(_read(typed, zone_of(request, unit.caller)))
        async with unit.conn.transaction():
            await pausing.pause(unit.conn, unit.caller, reason=body.reason, until=body.until, lasts=body.lasts)
    except forms.WRONG as wrong:
        return await _page(unit, request, forms.rejected(request, wrong, "pause", typed))
    return forms.gone(request, f"/w/{unit.caller.workspace_slug}/automations")


def _read(typed: dict[str, str], zone: str) -> dict[str, Any]:
    """The form as the API takes it: an end on the reader's clock gets their zone."""
    given: dict[str, Any] = {name: value for name, value in typed.items() if value}
    if "until" in given:
        try:
            end = datetime.fromisoformat(given["until"])
        except ValueError:
            raise Invalid("Give a date and a time, such as 2026-11-15T09:00.", field="until") from None
        given["until"] = end if end.tzinfo else end.replace(tzinfo=load_zone(zone))
    return given


@router.post("/resume")
async def resume(unit: InUnit, request: Request, to: Next = "/") -> Response:
    await pausing.resume(unit.conn, unit.caller)
    return done(request, to, "All automations fire again, counting from now.")
