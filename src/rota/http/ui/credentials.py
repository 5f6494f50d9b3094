"""The page of credentials: their names, who names them, and forms that take a value in and never give it out."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.access import credentials
from rota.db import credentials as rows
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Shared, Unit
from rota.http.shapes.credentials import CredentialIn, CredentialPatch
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import forms
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import PageRoute, done
from rota.model.caller import Level

LISTED = 50
NAMED_BY = (("admin", "Admins only"), ("member", "Every member"))

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/credentials", include_in_schema=False)


@router.get("")
async def list_page(unit: InUnit, request: Request, cursor: Cursor = None) -> Response:
    """Credentials, newest first. Never a value."""
    return await _list(unit, request, before=read_cursor(cursor))


async def _list(unit: Unit, request: Request, form: Form = UNTOUCHED, *, before: UUID | None = None) -> Response:
    found = await rows.page(unit.conn, unit.caller.workspace_id, before=before, limit=LISTED + 1)
    older, found = len(found) > LISTED, found[:LISTED]
    facts: dict[str, Any] = {
        "credentials": await credentials.with_uses(unit.conn, unit.caller, found),
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "named_by": NAMED_BY,
    }
    return await forms.shown(unit, request, "settings/credentials.html", form, **facts)


def _home(unit: Unit) -> str:
    return f"/w/{unit.caller.workspace_slug}/settings/credentials"


async def _typed(request: Request, *names: str) -> dict[str, str]:
    typed = await forms.typed(request, *names)
    tidy = {name: " ".join(typed[name].split()) for name in typed if name != "value"}
    return {**typed, **tidy, "usable_by": typed["usable_by"] or "admin"}


@router.post("")
async def create(unit: InUnit, request: Request, shared: Shared) -> Response:
    unit.caller.must_be(Level.ADMIN, "save a credential")
    typed = await _typed(request, "name", "value", "description", "usable_by")
    try:
        async with unit.conn.transaction():
            body = CredentialIn.model_validate(typed)
            given = {**typed, "value": body.value.get_secret_value()}
            saved = await credentials.create(unit.conn, shared.vault, unit.caller, given)
    except forms.WRONG as wrong:
        return await _list(unit, request, forms.rejected(request, wrong, "new", typed, "value"))
    unit.about(saved["id"])
    return done(request, _home(unit), f"{saved['name']} is saved. Its value is never shown again.")


@router.post("/{credential}/change")
async def change(unit: InUnit, request: Request, shared: Shared, credential: str) -> Response:
    """Another value, which the next attempt gets; an empty one keeps that which is there."""
    found = await credentials.find(unit.conn, unit.caller, credential)
    typed = await _typed(request, "value", "description", "usable_by")
    try:
        async with unit.conn.transaction():
            CredentialPatch.model_validate(typed)
            given = {name: text for name, text in typed.items() if name != "value" or text}
            saved = await credentials.change(unit.conn, shared.vault, unit.caller, str(found["id"]), given)
    except forms.WRONG as wrong:
        return await _list(unit, request, forms.rejected(request, wrong, found["id"], typed, "value"))
    told = "has its new value: the next attempt gets it." if typed["value"] else "is changed."
    return done(request, _home(unit), f"{saved['name']} {told}")


@router.post("/{credential}/delete")
async def delete(unit: InUnit, request: Request, credential: str) -> Response:
    """For good; refused while an agent or automation names it."""
    await credentials.delete(unit.conn, unit.caller, credential)
    return done(request, _home(unit), "The credential is deleted.")
