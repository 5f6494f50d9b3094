"""`rota usage`: what the workspace has spent, and what this month will cost."""

import click

from rota.cli import showing
from rota.cli.accounts import USAGE, amounts, days
from rota.cli.noun import Rota, asks_rota, pages
from rota.cli.showing import Column, Item, local

command = click.Group("usage", help="See what was spent, and what this month will cost.")

EXPECTED = [
    Column("automation", "automation", whole=True),
    Column("fires", "fires"),
    Column("per run", lambda expected: amounts(expected["per_run"])),
    Column("estimate", lambda expected: amounts(expected["estimate"])),
    Column("limited by", "limited_by"),
    Column("by runs", "runs_considered"),
]


def _facts(forecast: Item) -> list[tuple[str, object]]:
    return [
        ("month", forecast["month"]),
        ("until", local(forecast["until"])),
        ("spent", amounts(forecast["spent"])),
        ("estimate", amounts(forecast["estimate"])),
        ("at least", _unknown(forecast)),
    ]


def _unknown(forecast: Item) -> str | None:
    """Why the month will cost more than the estimate, if part of it is unknown."""
    missing = [] if forecast["complete"] else ["there are more schedules than were looked at"]
    if count := forecast["without_runs"]:
        missing.append(f"{count} {'automation has' if count == 1 else 'automations have'} no finished run yet")
    return "; ".join(missing) or None


@command.command("list")
@days
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, since: str | None, until: str | None) -> None:
    """What was spent in the workspace, by day and automation, the newest day first."""
    rota.listed("/usage", USAGE, limit=limit, since=since, until=until)


@command.command()
@asks_rota
def forecast(rota: Rota) -> None:
    """An estimate of what this month will cost: what is spent, and what schedules will still fire."""
    found = rota.ask("GET", "/usage/forecast")
    rota.shown(found, _facts)
    if found["items"] and not rota.as_json:
        click.echo()
        for line in showing.table(EXPECTED, found["items"], within=showing.room()):
            click.echo(line)
