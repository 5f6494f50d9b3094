"""The page of accounts: what the month may cost, what it has cost by day and automation, and what it will."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.datastructures import FormData
from starlette.responses import Response

from rota.db import accounts as rows
from rota.db import usage
from rota.errors import Invalid, NotFound
from rota.http.api.usage import USUAL_DAYS, span
from rota.http.bodies import clean_text
from rota.http.context import InUnit, Unit
from rota.http.errors import of_validation
from rota.http.shapes import AccountIn, AccountPatch
from rota.http.ui import charts, drafts
from rota.http.ui.rendering import PageRoute, done, is_live, page, part
from rota.model.budget import UNITS
from rota.model.caller import Level
from rota.model.cron import load_zone
from rota.model.ids import as_uuid
from rota.roster import accounts
from rota.roster.forecasting import forecast

LISTED, MOST_CHARTS = 100, 4

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/accounts", include_in_schema=False)


@router.get("")
async def accounts_page(unit: InUnit, request: Request) -> Response:
    """Accounts with their budgets; what was spent in the last thirty days, and the forecast of the month."""
    caller = unit.caller
    found = await rows.page(unit.conn, caller.workspace_id, before=None, limit=LISTED)
    today = datetime.now(load_zone(caller.timezone)).date()
    spent = await usage.days(unit.conn, caller.workspace_id, span(caller.timezone, None, today))
    facts: dict[str, Any] = {
        "accounts": await accounts.with_month(unit.conn, caller, found[::-1]),
        "charts": _drawn(spent, today),
        "forecast": await forecast(unit.conn, caller),
        "figure": _figure,
        "units": UNITS,
        "is_admin": caller.level == Level.ADMIN,
    }
    if is_live(request):
        return part(unit, request, "settings/_accounts.html", **facts)
    return await page(unit, request, "settings/accounts.html", **facts)


def _figure(amount: Any, unit: str) -> str:
    return charts.figure(float(amount), "s" if unit == "seconds" else "")


def _drawn(spent: Sequence[Mapping[str, Any]], today: date) -> list[tuple[str, str, charts.Chart]]:
    days = [today - timedelta(days=ago) for ago in range(USUAL_DAYS - 1, -1, -1)]
    units = sorted({row["unit"] for row in spent}, key=lambda unit: (unit not in UNITS, unit))
    drawn = []
    for unit in units[:MOST_CHARTS]:
        by_day = {row["day"]: row["amount"] for row in spent if row["unit"] == unit}
        total = _figure(sum(by_day.values()), unit)
        bars = [(day, by_day.get(day, 0.0)) for day in days]
        told = f"{unit} by day, {total} in {USUAL_DAYS} days"
        drawn.append((unit, total, charts.bars(bars, unit="s" if unit == "seconds" else "", told=told)))
    return drawn


async def _given(request: Request, shape: type[AccountIn | AccountPatch]) -> dict[str, Any]:
    form = await request.form()
    values = {
        "name": _text(form, "name"), "currency": _text(form, "currency").upper(),
        "budget": drafts.budget({name: _text(form, name) for name in drafts.CAPS}),
    }  # fmt: skip
    try:
        return shape.model_validate(values).given()
    except ValidationError as invalid:
        first = of_validation(invalid.errors())["errors"][0]
        raise Invalid(
            f"{first['field'].replace('budget.', '').replace('.', ', ')}: {first['message']}", field=first["field"]
        ) from None


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    return clean_text(value, name).strip() if isinstance(value, str) else ""


def _home(unit: Unit) -> str:
    return f"/w/{unit.caller.workspace_slug}/settings/accounts"


@router.post("")
async def create(unit: InUnit, request: Request) -> Response:
    account_id = await accounts.create(unit.conn, unit.caller, await _given(request, AccountIn))
    unit.about(account_id)
    return done(request, _home(unit), "The account is made.")


@router.post("/{account}/change")
async def change(unit: InUnit, request: Request, account: str) -> Response:
    """Another name or budget, which counts from the next run on."""
    found: UUID | None = as_uuid(account)
    if found is None:
        raise NotFound("There is no such account.")
    await accounts.find(unit.conn, unit.caller, found)  # first of all: another workspace's is missing, whatever is sent
    await accounts.change(unit.conn, unit.caller, found, await _given(request, AccountPatch))
    return done(request, _home(unit), "Saved. It counts from the next run on.")
