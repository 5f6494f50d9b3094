"""What an automation remembers, mended by hand: on the page of the automation."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from rota.errors import Invalid, NotFound, Refused
from rota.http.bodies import check, clean_text
from rota.http.context import InUnit, Shared, Unit
from rota.http.ui import forms
from rota.http.ui.automations import ref_of
from rota.http.ui.detail import shown_again
from rota.http.ui.rendering import PageRoute, done, is_live
from rota.model.ids import AutomationId
from rota.model.memory import Remembered
from rota.roster import automations
from rota.sessions import memory

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/automations", include_in_schema=False)


async def _owned(unit: Unit, ref: str) -> tuple[AutomationId, str]:
    """The automation, and its page."""
    found = await automations.find(unit.conn, unit.caller, ref)
    unit.caller.must_own(found["owner_id"], "change what this automation remembers")
    return AutomationId(found["id"]), f"/w/{unit.caller.workspace_slug}/automations/{ref_of(found)}"


@router.post("/{automation}/memory/{key}/set")
async def change(
    unit: InUnit, request: Request, shared: Shared, automation: str, key: str, value: Annotated[str, Form()] = ""
) -> Response:
    """Another value under the same key, as sure and for as long as the one before."""
    automation_id, address = await _owned(unit, automation)
    kept = await memory.recall(unit.conn, unit.caller.workspace_id, automation_id, key)
    if not kept:
        raise NotFound("Nothing is remembered under this key.")
    ttl = kept["expires_at"] - datetime.now(UTC) if kept["expires_at"] else None
    try:
        async with unit.conn.transaction():
            given = Remembered(key, _read(value), ttl, kept["confidence"])
            await memory.remember(unit.conn, unit.caller.workspace_id, automation_id, given)
    except forms.WRONG as wrong:
        if is_live(request):  # the page still shows what was typed
            raise
        form = forms.rejected(request, wrong, key, {"value": value.replace("\x00", "")})
        return await shown_again(unit, request, shared, str(automation_id), form)
    return done(request, address, f"{key} is changed.")


def _read(text: str) -> Any:
    try:
        return check(clean_text(text, "value").encode())
    except Refused as refused:
        if refused.code != "not_json":
            raise
        raise Invalid(
            'Write it as JSON: a text in quotes, a number, true, false, null, [ … ] or { … }. Example: {"seen": 3}',
            field="value",
        ) from None


@router.post("/{automation}/memory/{key}/delete")
async def forget(unit: InUnit, request: Request, automation: str, key: str) -> Response:
    automation_id, address = await _owned(unit, automation)
    await memory.forget(unit.conn, unit.caller.workspace_id, automation_id, key)
    return done(request, address, f"{key} is forgotten.")
