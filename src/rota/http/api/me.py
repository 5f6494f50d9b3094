"""Oneself: who one is here, one's name and password, and where one is signed in."""

from uuid import UUID

from fastapi import APIRouter, Request, Response

from rota.access import oneself
from rota.access.oneself import NewPassword
from rota.errors import RotaError
from rota.http.context import InUnit, Shared, Web, sign, unit_of
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.pages import Page
from rota.http.shapes.people import EndedOut, LoginOut, MeOut, MePatch, PasswordIn

router = APIRouter(prefix=API + "/me", tags=["me"], route_class=Repeatable)


@router.get("")
async def get_me(unit: InUnit) -> MeOut:
    """Who you are in this workspace, and which identity providers know you."""
    async with unit.beyond_workspace():
        return MeOut.model_validate(await oneself.person(unit.conn, unit.caller))


@router.patch("")
async def change_me(unit: InUnit, body: MePatch) -> MeOut:
    """Change your name, which is the same in every workspace."""
    async with unit.beyond_workspace():
        await oneself.rename(unit.conn, unit.caller, body.name)
        return MeOut.model_validate(await oneself.person(unit.conn, unit.caller))


@router.put("/password", status_code=204)
async def change_password(request: Request, workspace: str, shared: Shared, body: PasswordIn) -> None:
    """Set your password, or change it by giving the `current` one. All your other logins end. The first one is set at a
    browser."""
    await set_password(request, workspace, shared, body.current.get_secret_value(), body.new.get_secret_value())


async def set_password(request: Request, workspace: str, shared: Web, current: str, new: str) -> None:
    """It is judged before its transaction begins: that takes long, and nobody else's connection should."""
    caller = await sign(request, workspace)
    address = request.client.host if request.client else ""
    try:
        judged: NewPassword | RotaError = await oneself.check_password(shared.db, caller, current, new, address)
    except RotaError as refused:
        judged = refused
    async with unit_of(request, workspace) as unit:
        if isinstance(judged, RotaError):
            raise judged  # here, where the audit log is told of it
        async with unit.beyond_workspace():
            await oneself.set_password(unit.conn, unit.caller, judged)
        await unit.keep(Response(status_code=204))


@router.get("/logins")
async def list_logins(unit: InUnit) -> Page[LoginOut]:
    """The browsers in which you are signed in, the last used first."""
    async with unit.beyond_workspace():
        found = await oneself.logins(unit.conn, unit.caller)
    return Page(items=[LoginOut.model_validate(each) for each in found])


@router.delete("/logins")
async def end_other_logins(unit: InUnit) -> EndedOut:
    """Sign out everywhere but here."""
    async with unit.beyond_workspace():
        return EndedOut(ended=await oneself.end_other_logins(unit.conn, unit.caller))


@router.delete("/logins/{login_id}", status_code=204)
async def end_login(unit: InUnit, login_id: UUID) -> None:
    """Sign out in one browser."""
    async with unit.beyond_workspace():
        await oneself.end_login(unit.conn, unit.caller, login_id)
