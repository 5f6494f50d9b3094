"""`rota audit`: who changed what, and who tried to."""

import click

from rota.cli.noun import Rota, asks_rota, each_of, pages
from rota.cli.showing import Column, Item, brief

command = click.Group("audit", help="List the audit log. For admins.")


def _object(entry: Item) -> str:
    return f"{entry['object_kind']} {entry['object_id'] or ''}"


def _changed(entry: Item) -> str:
    return entry["code"] or each_of((entry["after"] or {}) | (entry["before"] or {}), most=6)


AUDIT = [
    Column("when", lambda entry: brief(entry["created_at"])),
    Column("who", lambda entry: entry["user"] or "(operator)"),
    Column("action", "action"),
    Column("object", _object),
    Column("status", "status"),
    Column("changed", _changed),
]


@command.command("list")
@click.option("--user", help="Only what this person asked for, by id")
@click.option("--action", help="Only this: automation.pause")
@click.option("--object-kind", help="Only of this kind: automation")
@click.option("--object-id", help="Only of this one, by id")
@click.option("--refused/--done", default=None, help="Only what was refused, or only what was done")
@click.option("--since", help="From this instant on: 2027-01-31T00:00:00Z")
@click.option("--until", help="Up to this instant")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, **filters: str | bool | None) -> None:
    """Every change of the workspace and every refused one, newest first."""
    rota.listed("/audit", AUDIT, limit=limit, **filters)
