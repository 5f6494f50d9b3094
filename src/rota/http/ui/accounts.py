"""The page of accounts: what the month may cost, what it has cost by day and automation, and what it will."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db import accounts as rows
from rota.db import runs, usage
from rota.errors import NotFound
from rota.http.api.usage import USUAL_DAYS
from rota.http.context import InUnit, Unit
from rota.http.shapes.money import AccountIn, AccountPatch
from rota.http.ui import charts, drafts, forms, words
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.rendering import PageRoute, done
from rota.model.budget import SECONDS, UNITS
from rota.model.caller import Level
from rota.model.cron import load_zone
from rota.model.ids import as_uuid, id_at
from rota.roster import accounts
from rota.roster.forecasting import Forecast, at_pace, forecast, left_of, pace_span

LISTED, MOST_CHARTS = 100, 4
RUN_TIME, TIMED = "run time", 20_000  # its chart is drawn of so many runs at most
FIELDS = ("name", "currency", *drafts.CAPS)
FORESEEN = 50  # schedules whose fires are counted while somebody waits

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/settings/accounts", include_in_schema=False)


@router.get("")
async def accounts_page(unit: InUnit, request: Request) -> Response:
    """Accounts with their budgets; what was spent in the last thirty days, and the forecast of the month."""
    return await _page(unit, request)


async def _page(unit: Unit, request: Request, form: Form = UNTOUCHED) -> Response:
    caller = unit.caller
    found = await rows.page(unit.conn, caller.workspace_id, before=None, limit=LISTED)
    now = datetime.now(load_zone(caller.timezone))
    first, end = now.date() - timedelta(days=USUAL_DAYS - 1), now.date() + timedelta(days=1)
    start, stop = (datetime.combine(day, time(), now.tzinfo) for day in (min(first, now.date().replace(day=1)), end))
    days = await usage.days(unit.conn, caller.workspace_id, start, stop, caller.timezone)
    spent = {(day, each): amount for (day, each), amount in days.items() if day >= first}
    took, all_timed = await _run_time(unit, first, now)
    expected = await forecast(unit.conn, caller, most=FORESEEN, days=days, in_part=False)
    shown = await accounts.with_month(unit.conn, caller, found[::-1])
    facts: dict[str, Any] = {
        "accounts": shown,
        "charts": _drawn({each: spent[each] for each in spent if each[1] != SECONDS} | took, now.date()),
        "timed": None if all_timed else TIMED,
        "forecast": expected,
        **await _estimate(unit, expected, spent, now, shown),
        "figure": charts.spent,
        "units": UNITS,
    }
    return await forms.shown(unit, request, "settings/accounts.html", form, **facts)


async def _run_time(unit: Unit, first: date, now: datetime) -> tuple[dict[tuple[date, str], Decimal], bool]:
    """How long the runs of each day took, and whether those are all."""
    caller = unit.caller
    since = id_at(datetime.combine(first, time(), now.tzinfo))
    found = await runs.run_time_by_day(
        unit.conn, caller.workspace_id, since=since, zone=caller.timezone, limit=TIMED
    )  # fmt: skip
    took = {(each["day"], RUN_TIME): each["seconds"] for each in found if each["seconds"]}
    return took, sum(each["runs"] for each in found) < TIMED


async def _estimate(
    unit: Unit,
    expected: Forecast,
    days: Mapping[tuple[date, str], Decimal],
    now: datetime,
    accounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The month's estimate; `pace` is the span it goes by if there are too many schedules to count their runs."""
    if expected.complete:
        return {"estimate": expected.estimate, "pace": ""}
    span = pace_span(now, await usage.first_at(unit.conn, unit.caller.workspace_id))
    left = left_of(accounts) if len(accounts) < LISTED else {}
    return {"estimate": at_pace(expected.spent, days, now, expected.until, span, left), "pace": words.span(span)}


def _drawn(spent: Mapping[tuple[date, str], Decimal], today: date) -> list[tuple[str, str, charts.Chart]]:
    days = [today - timedelta(days=ago) for ago in range(USUAL_DAYS - 1, -1, -1)]
    units = sorted({unit for _, unit in spent}, key=lambda unit: (unit not in (*UNITS, RUN_TIME), unit))
    drawn = []
    for unit in units[:MOST_CHARTS]:
        total = charts.spent(sum(amount for (_, each), amount in spent.items() if each == unit), unit)
        bars = [(day, float(spent.get((day, unit), 0))) for day in days]
        told = f"{unit} by day, {total} in {USUAL_DAYS} days"
        drawn.append((unit, total, charts.bars(bars, unit=charts.told_in(unit), told=told)))
    return drawn


def _read(typed: Mapping[str, str], shape: type[AccountIn | AccountPatch]) -> dict[str, Any]:
    given = {
        "name": typed["name"].strip(), "currency": typed["currency"].strip().upper(),
        "budget": drafts.budget({name: typed[name].strip() for name in drafts.CAPS}),
    }  # fmt: skip
    return shape.model_validate(given, strict=False).given()


def _home(unit: Unit) -> str:
    return f"/w/{unit.caller.workspace_slug}/settings/accounts"


@router.post("")
async def create(unit: InUnit, request: Request) -> Response:
    unit.caller.must_be(Level.ADMIN, "make an account")
    typed = await forms.typed(request, *FIELDS)
    try:
        async with unit.conn.transaction():
            account_id = await accounts.create(unit.conn, unit.caller, _read(typed, AccountIn))
    except forms.WRONG as wrong:
        return await _page(unit, request, forms.rejected(request, wrong, "new", typed))
    unit.about(account_id)
    return done(request, _home(unit), "The account is made.")


@router.post("/{account}/change")
async def change(unit: InUnit, request: Request, account: str) -> Response:
    """Another name or budget, which counts from the next run on."""
    found: UUID | None = as_uuid(account)
    if found is None:
        raise NotFound("There is no such account.")
    await accounts.find(unit.conn, unit.caller, found)  # first of all: another workspace's is missing, whatever is sent
    typed = await forms.typed(request, *FIELDS)
    try:
        async with unit.conn.transaction():
            await accounts.change(unit.conn, unit.caller, found, _read(typed, AccountPatch))
    except forms.WRONG as wrong:
        return await _page(unit, request, forms.rejected(request, wrong, found, typed))
    return done(request, _home(unit), "Saved. It counts from the next run on.")
