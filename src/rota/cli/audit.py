"""`rota audit`: who changed what, and who tried to."""

from pathlib import Path
from typing import Any

import click

from rota.cli.noun import Rota, asks_rota, counted, each_of, pages
from rota.cli.saving import STANDARD_OUTPUT, output, saved_to
from rota.cli.showing import Column, Item, brief

command = click.Group("audit", help="List and export the audit log. For admins.")


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


def _filters(function: Any) -> Any:
    """The options that say which."""
    for option in (
        click.option("--user", help="Only what this person asked for, by id"),
        click.option("--action", help="Only this: automation.pause"),
        click.option("--object-kind", help="Only of this kind: automation"),
        click.option("--object-id", help="Only of this one, by id"),
        click.option("--refused/--done", default=None, help="Only what was refused, or only what was done"),
        click.option("--since", help="From this instant on: 2027-01-31T00:00:00Z"),
        click.option("--until", help="Up to this instant"),
    )[::-1]:
        function = option(function)
    return function


@command.command("list")
@_filters
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, **filters: str | bool | None) -> None:
    """Every change of the workspace and every refused one, newest first."""
    rota.listed("/audit", AUDIT, limit=limit, **filters)


@command.command()
@_filters
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@output("stdout")
@asks_rota
def export(rota: Rota, form: str, output: Path | None, **filters: str | bool | None) -> None:
    """The same as a file, newest first, however long: a JSON object a line, or a table for spreadsheets."""
    pieces = rota.client.pieces("/audit/export", params={**filters, "format": form})
    with saved_to(output or STANDARD_OUTPUT) as written, counted("Exporting") as told:
        for piece in pieces:
            written.write(piece)
            told(len(piece))
