"""Accounts: who is charged, what a month may cost, and what was spent."""

from uuid import UUID

from fastapi import APIRouter

from rota.db import accounts as rows
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.api.repeats import Once
from rota.http.api.usage import Since, Until, spent
from rota.http.context import InUnit, Unit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.money import AccountIn, AccountOut, AccountPatch, UsageOut
from rota.http.shapes.pages import Page, cursor_of, read_cursor
from rota.roster import accounts

router = APIRouter(prefix=API + "/accounts", tags=["accounts"], route_class=Repeatable)


async def _shown(unit: Unit, account_id: UUID) -> AccountOut:
    found = await accounts.find(unit.conn, unit.caller, account_id)
    [told] = await accounts.with_month(unit.conn, unit.caller, [found])
    return AccountOut.model_validate(told)


@router.get("")
async def list_accounts(unit: InUnit, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[AccountOut]:
    """Accounts, newest first, each with how this month stands. The oldest is charged unless a grant names another."""
    found = await rows.page(unit.conn, unit.caller.workspace_id, before=read_cursor(cursor), limit=limit + 1)
    items = [
        AccountOut.model_validate(each) for each in await accounts.with_month(unit.conn, unit.caller, found[:limit])
    ]
    return Page(items=items, next_cursor=cursor_of(found[limit - 1]["id"]) if len(found) > limit else None)


@router.post("", status_code=201)
async def create_account(unit: InUnit, once: Once, body: AccountIn) -> AccountOut:
    """Make an account. `renew-grant` with its id lets an automation charge it. For admins."""
    values = {name: getattr(body, name) for name in type(body).model_fields}
    account_id = await once(body, lambda: accounts.create(unit.conn, unit.caller, values))
    return await _shown(unit, account_id)


@router.get("/{account_id}")
async def get_account(unit: InUnit, account_id: UUID) -> AccountOut:
    """One account: its budget, and what of it is spent and set aside this month."""
    return await _shown(unit, account_id)


@router.patch("/{account_id}")
async def change_account(unit: InUnit, account_id: UUID, body: AccountPatch) -> AccountOut:
    """Rename it, or change its budget, which counts from the next run on. For admins."""
    await accounts.change(unit.conn, unit.caller, account_id, body.given())
    return await _shown(unit, account_id)


@router.get("/{account_id}/usage")
async def usage_of_account(
    unit: InUnit,
    account_id: UUID,
    since: Since = None,
    until: Until = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[UsageOut]:
    """What was charged to it, by day and automation, the newest day first."""
    await accounts.find(unit.conn, unit.caller, account_id)
    return await spent(unit, since, until, limit=limit, cursor=cursor, account_id=account_id)
