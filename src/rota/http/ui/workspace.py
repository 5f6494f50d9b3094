"""The page of the workspace: its name, its time zone and its limits."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import workspaces
from rota.http.context import InUnit, Unit
from rota.http.shapes.people import WorkspacePatch
from rota.http.ui import forms
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import PageRoute, done
from rota.model.caller import Level
from rota.model.cron import zone_names
from rota.model.duration import format_duration
from rota.roster import workspace

LIMITS = ("minimum_interval", "max_concurrent", "max_schedules")
FIELDS = ("name", "timezone", *LIMITS)

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/workspace", include_in_schema=False)


@router.get("")
async def workspace_page(unit: InUnit, request: Request) -> Response:
    """The workspace and the form that changes it. For admins."""
    unit.caller.must_be(Level.ADMIN, "see the settings of the workspace")
    return await _page(unit, request)


async def _page(unit: Unit, request: Request, form: Form = UNTOUCHED) -> Response:
    found = await workspaces.find(unit.conn, unit.caller.workspace_id)
    minimum = found["minimum_interval"]
    facts = {
        "workspace": {**found, "minimum_interval": minimum and format_duration(minimum)},
        "zones": sorted(zone_names()),
    }
    return await forms.shown(unit, request, "settings/workspace.html", form, **facts)


def _read(typed: Mapping[str, str]) -> dict[str, Any]:
    """The form as the API takes it: an empty limit is none."""
    values = {name: typed[name].strip() for name in FIELDS}
    return WorkspacePatch.model_validate(
        {name: None if name in LIMITS and not value else value for name, value in values.items()}, strict=False
    ).given()


@router.post("/change")
async def change(unit: InUnit, request: Request) -> Response:
    unit.caller.must_be(Level.ADMIN, "change the workspace")
    typed = await forms.typed(request, *FIELDS)
    try:
        async with unit.conn.transaction():
            await workspace.change(unit.conn, unit.caller, _read(typed))
    except forms.WRONG as wrong:
        return await _page(unit, request, forms.rejected(request, wrong, "workspace", typed))
    return done(request, f"/w/{unit.caller.workspace_slug}/settings/workspace", "Saved.")
