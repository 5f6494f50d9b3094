"""Budgets, accounts and what was used."""

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field

from rota.http.shapes.fields import In, Name, Out, Patch


def _money(value: Any) -> Any:
    """A number is taken as it is written, not as the binary fraction nearest to it."""
    return str(value) if isinstance(value, float) else value


Tokens = Annotated[int, Field(gt=0, le=10**15)]
Seconds = Annotated[int, Field(gt=0, le=10**9)]
Money = Annotated[
    Decimal,
    Field(gt=0, max_digits=15, decimal_places=6, examples=["0.50"], strict=False),
    BeforeValidator(_money, json_schema_input_type=str | float),
]


class Caps(In):
    """At most so much; what is left out has no limit. Money in the account's currency."""

    tokens: Tokens | None = None
    money: Money | None = None
    seconds: Seconds | None = None

    def told(self) -> dict[str, Any]:
        return {unit: cap for unit in type(self).model_fields if (cap := getattr(self, unit)) is not None}


class Budget(In):
    """What one run, and all runs of a month, may spend. A month's cap needs one for each run: that is set aside."""

    per_run: Caps | None = None
    per_month: Caps | None = None

    def told(self) -> dict[str, Any]:
        spans = {"per_run": self.per_run, "per_month": self.per_month}
        return {span: caps.told() for span, caps in spans.items() if caps}


def _told(budget: Budget | None) -> Any:
    return budget.told() if budget else None


BudgetIn = Annotated[
    Budget | None,
    Field(examples=[{"per_run": {"money": "0.50"}, "per_month": {"money": "10"}}]),
    AfterValidator(_told),
]
BudgetOut = Annotated[
    dict[str, dict[str, int | str]], Field(examples=[{"per_run": {"money": "0.50"}, "per_month": {"money": "10"}}])
]
Currency = Annotated[str, Field(pattern="^[A-Z]{3}$", description="ISO 4217")]


class AccountIn(In):
    name: Name
    currency: Currency = "USD"
    budget: BudgetIn = None


class AccountPatch(Patch):
    name: Name = ""
    currency: Currency = "USD"
    budget: BudgetIn = None


class Standing(Out):
    cap: float
    spent: float
    reserved: float = Field(description="Set aside for runs that have not ended")


class AccountOut(Out):
    id: UUID
    name: str
    currency: str
    budget: BudgetOut | None
    month: str = Field(examples=["2027-01"])
    spending: dict[str, Standing] = Field(description="By unit that the month has a cap for")
    created_at: datetime
    updated_at: datetime


class UsageOut(Out):
    day: date
    automation_id: UUID | None = Field(description="Null for runs of no automation, together")
    automation: str | None
    name: str | None
    usage: dict[str, float] = Field(
        description="`money` of a workspace is in its first account's currency; others stand apart, as `money EUR`",
        examples=[{"tokens": 1200, "money": 0.5}],
    )


class ExpectedOut(Out):
    automation_id: UUID
    automation: str
    name: str
    fires: int = Field(description="How often its schedules will still fire this month")
    runs_considered: int
    per_run: dict[str, float] = Field(description="Mean of its newest runs, 20 at most")
    estimate: dict[str, float] = Field(description="Within what is left of its budget and of its account's")
    limited_by: Literal["automation", "account"] | None = Field(
        description="The budget that allows less than its schedules would cost, if one does"
    )


class ForecastOut(Out):
    month: str
    until: datetime
    spent: dict[str, float]
    items: list[ExpectedOut]
    next_cursor: None = None
    estimate: dict[str, float] = Field(
        description="An estimate of the whole month: what is spent, and what is expected"
    )
    complete: bool = Field(description="False if there are more schedules than were looked at")
    without_runs: int = Field(description="Automations that will run this month and have no finished run to learn from")
    at_least: bool = Field(
        description="True if part of the cost is unknown: `complete` is false, or `without_runs` > 0"
    )
