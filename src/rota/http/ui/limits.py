"""The card "Access and limits" of an automation: the person it runs as, its secrets, and its limits."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.db import accounts, grants, spending
from rota.db.pool import Connection
from rota.http.ui import charts
from rota.model import budget
from rota.model.budget import Purse
from rota.model.caller import Caller
from rota.model.duration import format_duration

UNITS = {"tokens": " tokens", "seconds": " of run time"}


class Secret(NamedTuple):
    """A variable and the credential it gets its value from."""

    variable: str
    credential: str
    of_agent: bool


async def access_and_limits(
    conn: Connection, caller: Caller, automation: Mapping[str, Any], agent: Mapping[str, Any] | None
) -> dict[str, Any]:
    grant = await grants.find(conn, caller.workspace_id, automation["grant_id"])
    currency = ""
    if "money" in str(automation["budget"]):
        currency = await accounts.currency(conn, caller.workspace_id, automation["grant_id"])
    per_run = budget.caps(automation["budget"], "per_run")
    return {
        "runs_as": grant["user"] if grant else None,
        "secrets": secrets(automation["credentials"], agent["credentials"] if agent else {}),
        "per_run": [f"{charts.spent(cap, unit)}{_suffix(unit, currency)}" for unit, cap in per_run.items()],
        "per_month": await _meters(conn, caller, automation, currency),
        "timeout": format_duration(automation["timeout"]),
        "max_attempts": automation["max_attempts"],
    }


def secrets(own: Mapping[str, str], of_agent: Mapping[str, str]) -> list[Secret]:
    """All secrets that a run is given. The automation's take the place of the agent's."""
    found = {variable: Secret(variable, name, True) for variable, name in of_agent.items()}
    found |= {variable: Secret(variable, name, False) for variable, name in own.items()}
    return [found[variable] for variable in sorted(found)]


async def _meters(
    conn: Connection, caller: Caller, automation: Mapping[str, Any], currency: str
) -> list[tuple[str, int]]:
    """How much of each monthly cap is spent: in words, and in percent."""
    caps = budget.caps(automation["budget"], "per_month")
    if not caps:
        return []
    month = await accounts.month(conn, caller.timezone)
    purses = {Purse(caller.workspace_id, automation["id"], month.first_day, unit): cap for unit, cap in caps.items()}
    standing = await spending.standing(conn, purses, month.start)
    meters = []
    for unit in caps:
        spent, cap = standing[unit]["spent"], standing[unit]["cap"]
        text = f"{charts.spent(spent, unit)} of {charts.spent(cap, unit)}{_suffix(unit, currency)} this month"
        meters.append((text, min(round(100 * spent / cap), 100)))
    return meters


def _suffix(unit: str, currency: str) -> str:
    return f" {currency}" if unit == "money" else UNITS[unit]
