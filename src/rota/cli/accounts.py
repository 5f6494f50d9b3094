"""`rota accounts`: who is charged, and what was spent."""

from typing import Any

import click

from rota.cli.noun import JSON, REF, Rota, asks_rota, changing, pages, with_fields
from rota.cli.showing import Column, Item, figure, local

command = click.Group("accounts", help="List, show and save accounts, and see what they were charged with.")


def amounts(used: Item) -> str:
    return ", ".join(f"{unit} {figure(amount)}" for unit, amount in used.items())


def days(function: Any) -> Any:
    """The options that say of which days."""
    until = click.option("--until", help="The last day [today]")
    return click.option("--since", help="The first day: 2027-01-31 [30 days ago]")(until(function))


def _spending(account: Item) -> str:
    spending = account["spending"].items()
    return ", ".join(f"{unit} {figure(each['spent'])} of {figure(each['cap'])}" for unit, each in spending)


ACCOUNTS = [
    Column("id", "id", whole=True),
    Column("name", "name"),
    Column("currency", "currency"),
    Column("month", "month"),
    Column("spent", _spending),
]
USAGE = [
    Column("day", "day"),
    Column("automation", lambda used: used["automation"] or "(none)"),
    Column("used", lambda used: amounts(used["usage"])),
]


def _facts(account: Item) -> list[tuple[str, object]]:
    kept = ("name", "id", "currency", "budget", "month", "spending")
    return [
        *((name, account[name]) for name in kept),
        ("made", local(account["created_at"])),
        ("changed", local(account["updated_at"])),
    ]


@command.command("list")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None) -> None:
    """Accounts, newest first, each with how this month stands."""
    rota.listed("/accounts", ACCOUNTS, limit=limit)


@command.command()
@click.argument("account", type=REF)
@asks_rota
def show(rota: Rota, account: str) -> None:
    """One account: its budget, and what of it is spent and set aside this month."""
    rota.shown(rota.ask("GET", f"/accounts/{account}"), _facts)


@command.command()
@click.argument("name")
@click.option("--currency", help="ISO 4217 [USD]")
@click.option("--budget", type=JSON, help='What runs and months may cost: {"per_run": {"money": "0.50"}}')
@asks_rota
def create(rota: Rota, name: str, **given: Any) -> None:
    """Make an account. `rota automations renew-grant --account` lets an automation charge it."""
    made = rota.ask("POST", "/accounts", with_fields({"name": name, **given}, ()))
    rota.said(made, str(made["id"]))


@command.command()
@click.argument("account", type=REF)
@click.option("--name", help="Another name")
@click.option("--currency", help="ISO 4217")
@click.option("--budget", type=JSON, help="Counts from the next run on")
@asks_rota
def edit(rota: Rota, account: str, **given: Any) -> None:
    """Rename an account, or change its budget."""
    saved = rota.ask("PATCH", f"/accounts/{account}", changing(with_fields(given, ())))
    rota.said(saved, f"{saved['name']} is saved.")


@command.command()
@click.argument("account", type=REF)
@days
@pages
@asks_rota
def usage(rota: Rota, account: str, limit: int | None, since: str | None, until: str | None) -> None:
    """What was charged to it, by day and automation, the newest day first."""
    rota.listed(f"/accounts/{account}/usage", USAGE, limit=limit, since=since, until=until)
