"""Oneself: who one is here, one's password, and where one is signed in."""

from uuid import UUID

from fastapi import APIRouter, Request

from rota.access import oneself
from rota.db import people
from rota.db.pool import Database
from rota.http.context import InUnit, Shared, Unit
from rota.http.shapes import EndedOut, LoginOut, MeOut, Page, PasswordIn

router = APIRouter(prefix="/me", tags=["me"])


@router.get("")
async def get_me(unit: InUnit) -> MeOut:
    """Who you are in this workspace."""
    oneself.must_be_a_person(unit.caller, "read about its person")
    async with unit.beyond_workspace():
        person = await people.find_person(unit.conn, unit.caller.user_id)
    return MeOut.model_validate({**(person or {}), "level": unit.caller.level})


@router.put("/password", status_code=204)
async def change_password(unit: InUnit, request: Request, shared: Shared, body: PasswordIn) -> None:
    """Set your password, or change it by giving the `current` one. All your other logins end. The first one is set at a
    browser."""
    await set_password(unit, request, shared.db, body.current.get_secret_value(), body.new.get_secret_value())


async def set_password(unit: Unit, request: Request, db: Database, current: str, new: str) -> None:
    address = request.client.host if request.client else ""
    await oneself.change_password(db, unit.caller, current, new, address)


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
