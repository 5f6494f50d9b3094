"""What the rest of the month will cost, if the schedules fire as they say and runs cost what they did of late."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from rota.db import accounts, triggers, usage
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.caller import Caller
from rota.roster.triggers import timing

MOST_TRIGGERS = 1000
NEWEST = 20
WEEK = 7  # days

Amounts = dict[str, Decimal]
Days = Mapping[tuple[date, str], Decimal]  # by day and unit


class Expected(NamedTuple):
    """What one automation will still cost this month."""

    automation_id: UUID
    automation: str
    name: str
    fires: int
    runs_considered: int
    per_run: Amounts
    estimate: Amounts


class Forecast(NamedTuple):
    month: str
    until: datetime
    spent: Amounts
    expected: Sequence[Expected]
    estimate: Amounts
    complete: bool


async def forecast(
    conn: Connection, caller: Caller, *, most: int = MOST_TRIGGERS, days: Days | None = None, in_part: bool = True
) -> Forecast:
    """An estimate. The triggers due first are looked at, up to a bound; `complete` says whether that was all, and who
    has no use for a part of it gets none. `days` is what was spent since the month began, for who has it at hand.
    """
    month = await accounts.month(conn, caller.timezone)
    found = await triggers.due_until(conn, caller.workspace_id, month.end, limit=most + 1)
    complete = len(found) <= most
    fires: Counter[UUID] = Counter()
    names: dict[UUID, Mapping[str, Any]] = {}
    for row in found[:most] if complete or in_part else ():
        fires[row["automation_id"]] += fires_until(row, month.end)
        names[row["automation_id"]] = row
    costs = await usage.mean(conn, caller.workspace_id, list(fires), newest=NEWEST) if fires else {}
    expected = [_expected(names[each], fires[each], *costs[each]) for each in fires if each in costs and costs[each][1]]
    if days is None:
        days = await usage.days(conn, caller.workspace_id, month.start, month.end, caller.timezone)
    spent = _sum([{unit: amount} for (day, unit), amount in days.items() if day >= month.first_day])
    estimate = _sum([spent, *(each.estimate for each in expected)])
    return Forecast(f"{month.first_day:%Y-%m}", month.end, spent, expected, estimate, complete)


def at_pace(spent: Amounts, days: Days, now: datetime, end: datetime) -> Amounts:
    """Another estimate, for who has more schedules than can be counted while somebody waits: the rest of the month goes
    on as the last whole week did. `now` is on the clock that the days are of."""
    week = {now.date() - timedelta(days=ago) for ago in range(1, WEEK + 1)}
    left = Decimal((end - now).total_seconds()) / Decimal(86400)
    lately = _sum([{unit: amount * left / WEEK} for (day, unit), amount in days.items() if day in week])
    return _sum([spent, lately])


def fires_until(row: Mapping[str, Any], end: datetime) -> int:
    """How often this trigger will still fire before then, within its own limits."""
    last = end - timedelta(microseconds=1)
    try:
        slots = timing(row).schedule().count_slots(row["next_fire_at"], min(last, row["ends_at"] or last))
    except (Invalid, ValueError, OverflowError):  # it cannot be read, and will be parked
        return 0
    return slots if row["max_fires"] is None else min(slots, max(row["max_fires"] - row["fires"], 0))


def _expected(row: Mapping[str, Any], fires: int, runs: int, per_run: Amounts) -> Expected:
    estimate = {unit: amount * fires for unit, amount in per_run.items()}
    return Expected(
        row["automation_id"], row["automation_slug"], row["automation_name"], fires, runs, per_run, estimate
    )


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    total: Amounts = {}
    for each in amounts:
        for unit, amount in each.items():
            total[unit] = total.get(unit, Decimal()) + amount
    return total
