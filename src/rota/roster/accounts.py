"""Accounts as admins look after them: their names, their budgets, and how the month stands."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from rota.db import accounts, spending
from rota.db.pool import Connection
from rota.errors import Conflict, NotFound
from rota.model import budget
from rota.model.budget import Purse
from rota.model.caller import Caller, Level
from rota.model.ids import AccountId, new_id
from rota.runs import budgeting


async def find(conn: Connection, caller: Caller, account_id: UUID, *, lock: bool = False) -> dict[str, Any]:
    found = await accounts.find(conn, caller.workspace_id, AccountId(account_id), lock=lock)
    if not found:
        raise NotFound("There is no such account.")
    return found


async def create(conn: Connection, caller: Caller, values: Mapping[str, Any]) -> AccountId:
    caller.must_be(Level.ADMIN, "make an account")
    account_id = AccountId(new_id())
    await _free(conn, caller, values["name"])
    checked = budget.checked(values["budget"])
    await accounts.insert(
        conn, {**values, "budget": checked, "workspace_id": caller.workspace_id, "id": account_id}
    )  # fmt: skip
    return account_id


async def change(conn: Connection, caller: Caller, account_id: UUID, values: Mapping[str, Any]) -> None:
    """What runs goes on as it was fired; from now on runs start within the new budget."""
    caller.must_be(Level.ADMIN, "change an account")
    found = await find(conn, caller, account_id, lock=True)
    account = {**found, **values, "workspace_id": caller.workspace_id}
    account["budget"] = budget.checked(account["budget"])
    if account["name"] != found["name"]:
        await _free(conn, caller, account["name"])
    await accounts.update(conn, account)
    if account["budget"] != found["budget"]:
        await budgeting.changed(conn, caller.workspace_id, account_id)


async def _free(conn: Connection, caller: Caller, name: str) -> None:
    if await accounts.named(conn, caller.workspace_id, name):
        raise Conflict(f"Another account has the name {name!r}.", code="name_taken", field="name")


async def with_month(conn: Connection, caller: Caller, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each account with how this month stands: by unit the cap, what is spent, and what is set aside for runs."""
    month = await accounts.month(conn, caller.timezone)
    told = []
    for account in found:
        caps = {
            Purse(caller.workspace_id, account["id"], month.first_day, unit): cap
            for unit, cap in budget.caps(account["budget"], "per_month").items()
        }
        standing = await spending.standing(conn, caps, month.start)
        told.append({**account, "month": f"{month.first_day:%Y-%m}", "spending": standing})
    return told
