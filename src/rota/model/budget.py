"""What a run, an automation and an account may spend, and which runs still fit into what is left. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from rota.errors import Invalid
from rota.model.ids import AccountId, AutomationId, RunId, WorkspaceId

UNITS = ("tokens", "money", "seconds")
SECONDS = "seconds"  # measured by Rota itself
MOST_UNITS = 100  # that one attempt may report beside those of budgets: each is a row of the ledger, and of every sum
LOW = Decimal("0.8")  # of a month's cap: then somebody is told
ASK = "ask"  # of a run that is about to be written: a budget may concern it

Caps = Mapping[str, Decimal]
Stored = Mapping[str, Any]


class Purse(NamedTuple):
    """What an account or an automation may spend of one unit in one month."""

    workspace_id: WorkspaceId
    holder_id: UUID
    month: date
    unit: str


class Demand(NamedTuple):
    """What one run sets aside of a purse."""

    purse: Purse
    amount: Decimal
    cap: Decimal


class Concern(NamedTuple):
    """A run that is about to start, and the budgets that concern it."""

    workspace_id: WorkspaceId
    run_id: RunId
    month: date
    month_start: datetime
    account_id: AccountId
    of_account: Stored | None
    automation_id: AutomationId | None
    of_automation: Stored | None

    @property
    def caps(self) -> dict[str, Decimal]:
        """What the run itself may spend: the tighter of what its automation and its account say."""
        found: dict[str, Decimal] = {}
        for budget in (self.of_account, self.of_automation):
            for unit, cap in caps(budget, "per_run").items():
                found[unit] = min(cap, found.get(unit, cap))
        return found

    def demands(self) -> list[Demand]:
        holders = ((self.account_id, self.of_account), (self.automation_id, self.of_automation))
        own = self.caps
        return [
            Demand(Purse(self.workspace_id, holder_id, self.month, unit), own[unit], cap)
            for holder_id, budget in holders
            if holder_id is not None
            for unit, cap in caps(budget, "per_month").items()
        ]


def caps(budget: Stored | None, span: str) -> dict[str, Decimal]:
    return {unit: Decimal(str(cap)) for unit, cap in ((budget or {}).get(span) or {}).items()}


def checked(budget: Stored | None) -> dict[str, Any] | None:
    """A budget as it is stored. What a month allows can only be kept if it is known what each run may take of it."""
    per_run, per_month = caps(budget, "per_run"), caps(budget, "per_month")
    for unit, cap in per_month.items():
        if unit not in per_run:
            raise Invalid(
                f"Say also how much of its {unit} one run may spend: that much is set aside when it starts.",
                code="budget_needs_per_run", field=f"budget.per_run.{unit}",
            )  # fmt: skip
        if per_run[unit] > cap:
            raise Invalid(
                f"One run may spend {plain(per_run[unit])} {unit}, which is more than the month's {plain(cap)}: "
                "none could ever start.",
                code="budget_too_small", field=f"budget.per_month.{unit}",
            )  # fmt: skip
    stored = {"per_run": _stored(per_run), "per_month": _stored(per_month)}
    return {span: given for span, given in stored.items() if given} or None


def _stored(given: Caps) -> dict[str, int | str]:
    return {unit: plain(cap) if unit == "money" else int(cap) for unit, cap in given.items()}


def plain(amount: Decimal) -> str:
    return f"{amount:f}"


def admit(concerns: Iterable[Concern], taken: Mapping[Purse, Decimal]) -> set[RunId]:
    """In their order, those for which enough is left in every purse. `taken`: what is spent or set aside already."""
    taken = dict(taken)
    admitted = set()
    for each in concerns:
        demands = each.demands()
        if all(taken[demand.purse] + demand.amount <= demand.cap for demand in demands):
            for demand in demands:
                taken[demand.purse] += demand.amount
            admitted.add(each.run_id)
    return admitted


class Exceeded(NamedTuple):
    """A cap that was reached: a run's own or, with a `holder`, that of its account or automation for a month."""

    unit: str
    spent: Decimal
    cap: Decimal
    holder: str = ""

    def told(self) -> str:
        spent, cap = (self._amount(each) for each in (self.spent.normalize(), self.cap))
        if self.holder:
            return f"Its {self.holder} spent {spent} of its limit of {cap} for the month."
        return f"Spent {spent} of its limit of {cap}."

    def _amount(self, value: Decimal) -> str:
        """Money as people write it, to the cent unless it is smaller; its currency is that of the account."""
        if self.unit != "money":
            return f"{plain(value)} {self.unit}"
        return f"{value:.2f}" if value == round(value, 2) else plain(value)


class Month(NamedTuple):
    """What is spent of a purse, live runs included, and how much may be."""

    purse: Purse
    holder: str
    spent: Decimal
    cap: Decimal


class Spender(NamedTuple):
    """A run with a budget: what it may spend, what it has spent over all its attempts, and the purses it draws on."""

    caps: Caps
    spent: Caps
    purses: Sequence[Purse]


class Report(NamedTuple):
    """How much more a run has spent of a unit."""

    run_id: RunId
    unit: str
    amount: Decimal


def judge(
    reports: Sequence[Report], spenders: Mapping[RunId, Spender], months: Iterable[Month]
) -> tuple[list[bool], dict[RunId, Exceeded]]:
    """Take reports one after the other: for each whether it is accepted, and the runs to stop with the cap that each
    reached.

    A report is refused once any cap that concerns its run is reached, so each cap is exceeded by at most one report.
    Running time is measured by Rota and comes when an attempt has ended: it always counts and stops nothing.
    """
    spent = {run_id: dict(each.spent) for run_id, each in spenders.items()}
    purses = {each.purse: each for each in months}

    def reached(run_id: RunId) -> Exceeded | None:
        spender = spenders[run_id]
        reported = {unit: cap for unit, cap in spender.caps.items() if unit != SECONDS}
        drawn_on = [purses[each] for each in spender.purses]
        over = (
            Exceeded(each.purse.unit, each.spent, each.cap, each.holder) for each in drawn_on if each.spent >= each.cap
        )
        return exceeded(reported, spent[run_id]) or next(over, None)

    accepted: list[bool] = []
    for run_id, unit, amount in reports:
        accepted.append(unit == SECONDS or reached(run_id) is None)
        if accepted[-1]:
            spent[run_id][unit] = spent[run_id].get(unit, Decimal()) + amount
            for purse in spenders[run_id].purses:
                if purse.unit == unit:
                    purses[purse] = purses[purse]._replace(spent=purses[purse].spent + amount)
    reporting = dict.fromkeys(each.run_id for each in reports if each.unit != SECONDS)
    return accepted, {run_id: over for run_id in reporting if (over := reached(run_id))}


def exceeded(caps: Caps, spent: Caps) -> Exceeded | None:
    over = [Exceeded(unit, spent[unit], cap) for unit, cap in caps.items() if spent.get(unit, Decimal()) >= cap]
    return over[0] if over else None


def purses(concerns: Sequence[Concern]) -> dict[Purse, Decimal]:
    """Every purse that these runs need, with its cap."""
    return {demand.purse: demand.cap for each in concerns for demand in each.demands()}
