"""The page of who reads it: their name, their password, and the browsers in which they are signed in."""

from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.access import oneself
from rota.access.passwords import SHORTEST
from rota.errors import Forbidden, NotFound
from rota.http.api.me import set_password
from rota.http.context import InUnit, Shared, Unit, looking_of
from rota.http.shapes.people import MePatch
from rota.http.ui import forms
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import PageRoute, done
from rota.model.ids import as_uuid

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/me", include_in_schema=False)


@router.get("")
async def own_page(unit: InUnit, request: Request) -> Response:
    return await _page(unit, request)


async def _page(unit: Unit, request: Request, form: Form = UNTOUCHED) -> Response:
    async with unit.beyond_workspace():
        facts = {
            "person": await oneself.person(unit.conn, unit.caller),
            "logins": await oneself.logins(unit.conn, unit.caller),
            "shortest": SHORTEST,
        }
    return await forms.shown(unit, request, "settings/me.html", form, **facts)


def _home(workspace: str) -> str:
    return f"/w/{workspace}/settings/me"


@router.post("/change")
async def change(unit: InUnit, request: Request) -> Response:
    """Another name, in every workspace."""
    typed = await forms.typed(request, "name")
    try:
        name = MePatch.model_validate(typed).name
    except forms.WRONG as wrong:
        return await _page(unit, request, forms.rejected(request, wrong, "name", typed))
    async with unit.beyond_workspace():
        await oneself.rename(unit.conn, unit.caller, name)
    return done(request, _home(unit.caller.workspace_slug), "Saved. Others see your new name.")


@router.post("/password")
async def change_password(request: Request, workspace: str, shared: Shared) -> Response:
    typed = await forms.typed(request, "current", "new")
    try:
        await set_password(request, workspace, shared, typed["current"], typed["new"])
    except (*forms.WRONG, Forbidden) as wrong:
        form = forms.rejected(request, wrong, "password", typed, *typed)
        async with looking_of(request, workspace) as unit:
            return await _page(unit, request, form)
    return done(request, _home(workspace), "Your password is set. You are signed out everywhere else.")


@router.post("/logins/delete")
async def end_others(unit: InUnit, request: Request) -> Response:
    """Sign out everywhere but here."""
    async with unit.beyond_workspace():
        ended = await oneself.end_other_logins(unit.conn, unit.caller)
    told = f"Signed out in {ended} other browser{'' if ended == 1 else 's'}."
    return done(request, _home(unit.caller.workspace_slug), told)


@router.post("/logins/{login}/delete")
async def end_login(unit: InUnit, request: Request, login: str) -> Response:
    login_id: UUID | None = as_uuid(login)
    if login_id is None:
        raise NotFound("There is no such login.")
    async with unit.beyond_workspace():
        await oneself.end_login(unit.conn, unit.caller, login_id)
    return done(request, _home(unit.caller.workspace_slug), "Signed out there.")
