"""Usage: what runs have spent, by day and automation, and what the rest of the month will cost."""

import base64
from datetime import date, datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from rota.db import usage as rows
from rota.db.usage import Days
from rota.errors import Invalid
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Unit
from rota.http.routes import API
from rota.http.shapes.money import ForecastOut, UsageOut
from rota.http.shapes.pages import Page, read_day_cursor
from rota.model.cron import load_zone
from rota.roster.forecasting import forecast

USUAL_DAYS, MOST_DAYS = 30, 366
FIRST, LAST = date(1971, 1, 1), date(9000, 1, 1)

Since = Annotated[date | None, Query(ge=FIRST, le=LAST, description="First day; 30 days ago unless told")]
Until = Annotated[date | None, Query(ge=FIRST, le=LAST, description="Last day; today unless told")]

router = APIRouter(prefix=API + "/usage", tags=["accounts"])


@router.get("")
async def get_usage(
    unit: InUnit, since: Since = None, until: Until = None, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[UsageOut]:
    """What was spent in the workspace, by day and automation, the newest day first. A run counts on the day it was
    fired, in the workspace's zone; those of no automation stand together."""
    return await spent(unit, since, until, limit=limit, cursor=cursor)


@router.get("/forecast")
async def get_forecast(unit: InUnit) -> ForecastOut:
    """An estimate of what this month will cost: what is spent, and each schedule's remaining fires times the mean of
    its automation's newest runs, within what budgets allow. Webhooks, events and manual runs are not included."""
    found = await forecast(unit.conn, unit.caller)
    items = [each._asdict() for each in found.expected]
    return ForecastOut.model_validate({**found._asdict(), "items": items, "at_least": found.at_least})


def days(zone: str, since: date | None, until: date | None, account_id: UUID | None = None) -> Days:
    """These days of a zone, by default the last thirty."""
    last = until or datetime.now(load_zone(zone)).date()
    first = since or last - timedelta(days=USUAL_DAYS - 1)
    if first > last:
        raise Invalid(
            f"`since` is after {last}, the last day asked for; give an earlier one.", code="invalid_span", field="since"
        )
    if last - first >= timedelta(days=MOST_DAYS):
        told = f"These are {(last - first).days + 1:,} days, until {last}; ask for at most {MOST_DAYS} at a time."
        raise Invalid(told, code="invalid_span", field="since")
    return Days(first, last, zone, account_id)


async def spent(
    unit: Unit,
    since: date | None,
    until: date | None,
    *,
    limit: int,
    cursor: str | None,
    account_id: UUID | None = None,
) -> Page[UsageOut]:
    caller = unit.caller
    chosen = days(caller.timezone, since, until, account_id)
    found = await rows.by_day(
        unit.conn, caller.workspace_id, chosen, after=read_day_cursor(cursor), limit=limit + 1
    )  # fmt: skip
    items = [UsageOut.model_validate(each) for each in found[:limit]]
    return Page(items=items, next_cursor=_cursor(found[limit - 1]) if len(found) > limit else None)


def _cursor(row: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(f"{row['day']}/{row['subject']}".encode()).decode().rstrip("=")
