"""An estimate of the month's cost: schedules fire as planned, runs cost what they did lately, and budgets hold."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from rota.db import accounts, spending, triggers, usage
from rota.db.accounts import Month
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model import budget
from rota.model.budget import Purse
from rota.model.caller import Caller
from rota.roster.triggers import timing

MOST_TRIGGERS = 1000
NEWEST = 20
WEEK = timedelta(days=7)
HOUR = timedelta(hours=1)
ALL = Decimal(1)

Amounts = dict[str, Decimal]
Days = Mapping[tuple[date, str], Decimal]  # by day and unit
Left = Mapping[tuple[UUID, str], Decimal]  # by account or automation, and unit


class Expected(NamedTuple):
    """What one automation will still cost this month. `limited_by` names the budget that reduces it, if one does."""

    automation_id: UUID
    automation: str
    name: str
    account_id: UUID
    fires: int
    runs_considered: int
    per_run: Amounts
    estimate: Amounts
    limited_by: str | None = None

    def reduced(self, share: Decimal, limited_by: str) -> "Expected":
        if share >= ALL:
            return self
        estimate = {unit: amount * share for unit, amount in self.estimate.items()}
        return self._replace(estimate=estimate, limited_by=limited_by)


class Forecast(NamedTuple):
    """`without_runs` counts the automations that will run this month and have no finished run to learn from."""

    month: str
    until: datetime
    spent: Amounts
    expected: Sequence[Expected]
    estimate: Amounts
    complete: bool
    without_runs: int

    @property
    def at_least(self) -> bool:
        """Part of the month's cost is unknown, so it will be higher than the estimate."""
        return not self.complete or self.without_runs > 0


async def forecast(
    conn: Connection, caller: Caller, *, most: int = MOST_TRIGGERS, days: Days | None = None, in_part: bool = True
) -> Forecast:
    """Look at the `most` triggers that are due first. `complete` tells whether that was all; without `in_part` an
    incomplete forecast expects nothing. `days` is what was spent since the month began, if the caller has it."""
    month = await accounts.month(conn, caller.timezone)
    found = await triggers.due_until(conn, caller.workspace_id, month.end, limit=most + 1)
    complete = len(found) <= most
    fires: Counter[UUID] = Counter()
    automations: dict[UUID, Mapping[str, Any]] = {}
    for row in found[:most] if complete or in_part else ():
        fires[row["automation_id"]] += fires_until(row, month.end)
        automations[row["automation_id"]] = row
    fires = +fires  # those that fire
    costs = await usage.mean(conn, caller.workspace_id, list(fires), newest=NEWEST) if fires else {}
    unlimited = [_expected(automations[each], fires[each], *costs[each]) for each in fires if each in costs]
    left = await _left(conn, caller, month, [automations[each] for each in fires])
    expected = [each for each in within_budgets(unlimited, left) if each.per_run]
    if days is None:
        days = await usage.days(conn, caller.workspace_id, month.start, month.end, caller.timezone)
    spent = _sum([{unit: amount} for (day, unit), amount in days.items() if day >= month.first_day])
    estimate = _sum([spent, *(each.estimate for each in expected)])
    without_runs = len(fires) - len(unlimited)
    return Forecast(f"{month.first_day:%Y-%m}", month.end, spent, expected, estimate, complete, without_runs)


async def _left(
    conn: Connection, caller: Caller, month: Month, automations: Sequence[Mapping[str, Any]]
) -> dict[tuple[UUID, str], Decimal]:
    """What the month's budgets of these automations and of their accounts still allow."""
    budgets = {row["automation_id"]: row["budget"] for row in automations}
    budgets |= {row["account_id"]: row["account_budget"] for row in automations}
    caps = {
        Purse(caller.workspace_id, holder_id, month.first_day, unit): cap
        for holder_id, each in budgets.items()
        for unit, cap in budget.caps(each, "per_month").items()
    }
    found = await spending.standings(conn, caps, month.start)
    return {(purse.holder_id, purse.unit): _free(each) for purse, each in found.items()}


def within_budgets(expected: Sequence[Expected], left: Left) -> list[Expected]:
    """Reduce each to what its automation's budget allows, then those of an account evenly to what that one allows. An
    automation whose budget of one unit is spent runs no more, so all its units are reduced alike."""
    own = [each.reduced(_share(each.estimate, each.automation_id, left), "automation") for each in expected]
    totals = {
        account_id: _sum([each.estimate for each in own if each.account_id == account_id])
        for account_id in {each.account_id for each in own}
    }
    shares = {account_id: _share(total, account_id, left) for account_id, total in totals.items()}
    return [each.reduced(shares[each.account_id], "account") for each in own]


def _share(amounts: Amounts, holder_id: UUID, left: Left) -> Decimal:
    """How much of these amounts the holder's budget allows: 1 is all of them, 0 is none."""
    allowed = ((amount, left.get((holder_id, _budgeted(unit)))) for unit, amount in amounts.items() if amount > 0)
    return min([ALL, *(most / amount for amount, most in allowed if most is not None)])


def _free(standing: Mapping[str, Decimal]) -> Decimal:
    """What a new run may still spend of a month's cap."""
    return max(standing["cap"] - standing["spent"] - standing["reserved"], Decimal())


def _budgeted(unit: str) -> str:
    """The unit by which a budget calls it: `money EUR` is the money of an account in euros."""
    return "money" if unit.startswith("money ") else unit


def at_pace(
    spent: Amounts, days: Days, now: datetime, end: datetime, span: timedelta = WEEK, left: Amounts | None = None
) -> Amounts:
    """Another estimate, for a workspace with too many schedules to count while somebody waits: the rest of the month
    goes on as the last `span` did, within what is `left` of budgets. `now` is on the clock that the days are of."""
    # A week is seven whole days. In a shorter span nothing was spent before it, and today counts too.
    counted = {now.date() - timedelta(days=ago) for ago in range(1 if span >= WEEK else 0, WEEK.days + 1)}
    lately = _sum([{unit: amount} for (day, unit), amount in days.items() if day in counted])
    seconds, rest = (Decimal(each.total_seconds()) for each in (span, end - now))
    expected = {unit: amount * rest / seconds for unit, amount in lately.items()}
    return _sum([spent, {unit: min(amount, (left or {}).get(unit, amount)) for unit, amount in expected.items()}])


def pace_span(now: datetime, first_at: datetime | None) -> timedelta:
    """The span that `at_pace` goes by: a week, or in the first week the hours since something was spent."""
    return WEEK if first_at is None else min(max(now - first_at, HOUR), WEEK)


def left_of(accounts: Sequence[Mapping[str, Any]]) -> Amounts:
    """What the month's budgets of all accounts still allow together, by the units of the ledger. A unit that one of
    them does not limit is left out."""
    left: Amounts = {}
    unlimited = set()
    for account in accounts:
        for unit in budget.UNITS:
            other = unit == "money" and account["currency"] != accounts[0]["currency"]
            name = f"money {account['currency']}" if other else unit
            if standing := account["spending"].get(unit):
                left[name] = left.get(name, Decimal()) + _free(standing)
            else:
                unlimited.add(name)
    return {unit: amount for unit, amount in left.items() if unit not in unlimited}


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
        row["automation_id"], row["automation_slug"], row["automation_name"], row["account_id"], fires, runs, per_run,
        estimate,
    )  # fmt: skip


def _sum(amounts: Sequence[Amounts]) -> Amounts:
    total: Amounts = {}
    for each in amounts:
        for unit, amount in each.items():
            total[unit] = total.get(unit, Decimal()) + amount
    return total
