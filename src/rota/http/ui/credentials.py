"""The page of credentials: their names, who names them, and forms that take a value in and never give it out."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from rota.access import credentials
from rota.db import credentials as rows
from rota.errors import Invalid
from rota.http.api.paging import Cursor
from rota.http.bodies import clean_text
from rota.http.context import InUnit, Shared, Unit
from rota.http.shapes import LONGEST_NAME, cursor_of, read_cursor
from rota.http.ui.rendering import PageRoute, done, is_live, page, part
from rota.model.caller import Level

LISTED = 50

UsableBy = Annotated[Literal["admin", "member"], Form()]
Text = Annotated[str, Form()]

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/credentials", include_in_schema=False)


@router.get("")
async def list_page(unit: InUnit, request: Request, cursor: Cursor = None) -> Response:
    """Credentials, newest first. Never a value."""
    before = read_cursor(cursor)
    found = await rows.page(unit.conn, unit.caller.workspace_id, before=before, limit=LISTED + 1)
    older, found = len(found) > LISTED, found[:LISTED]
    facts: dict[str, Any] = {
        "credentials": await credentials.with_uses(unit.conn, unit.caller, found),
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "is_admin": unit.caller.level == Level.ADMIN,
    }
    if is_live(request):
        return part(unit, request, "settings/_credentials.html", **facts)
    return await page(unit, request, "settings/credentials.html", **facts)


def _described(description: str) -> str:
    told = " ".join(clean_text(description, "description").split())
    if len(told) > LONGEST_NAME:
        raise Invalid(f"Say it in at most {LONGEST_NAME} characters.", field="description")
    return told


def _home(unit: Unit) -> str:
    return f"/w/{unit.caller.workspace_slug}/settings/credentials"


@router.post("")
async def create(
    unit: InUnit,
    request: Request,
    shared: Shared,
    name: Text = "",
    value: Text = "",
    description: Text = "",
    usable_by: UsableBy = "admin",
) -> Response:
    given = {"name": name.strip(), "value": value, "description": _described(description), "usable_by": usable_by}
    saved = await credentials.create(unit.conn, shared.vault, unit.caller, given)
    unit.about(saved["id"])
    return done(request, _home(unit), f"{saved['name']} is saved. Its value is never shown again.")


@router.post("/{credential}/change")
async def change(
    unit: InUnit,
    request: Request,
    shared: Shared,
    credential: str,
    value: Text = "",
    description: Text = "",
    usable_by: UsableBy = "admin",
) -> Response:
    """Another value, which the next attempt gets; an empty one keeps that which is there."""
    given = {"value": value or None, "description": _described(description), "usable_by": usable_by}
    saved = await credentials.change(unit.conn, shared.vault, unit.caller, credential, given)
    told = f"{saved['name']} has its new value: the next attempt gets it." if value else f"{saved['name']} is changed."
    return done(request, _home(unit), told)


@router.post("/{credential}/delete")
async def delete(unit: InUnit, request: Request, credential: str) -> Response:
    """For good; refused while an agent or automation names it."""
    await credentials.delete(unit.conn, unit.caller, credential)
    return done(request, _home(unit), "The credential is deleted.")
