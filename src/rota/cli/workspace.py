"""`rota workspace`: its name, its zone and its limits."""

from typing import Any

import click

from rota.cli.noun import Rota, asks_rota, changing, fields, with_fields
from rota.cli.showing import Item, local

command = click.Group("workspace", help="Show and change the workspace: its name, zone and limits.")


def _facts(workspace: Item) -> list[tuple[str, object]]:
    return [
        ("name", workspace["name"]),
        ("slug", workspace["slug"]),
        ("id", workspace["id"]),
        ("timezone", workspace["timezone"]),
        ("minimum interval", workspace["minimum_interval"]),
        ("max concurrent", workspace["max_concurrent"]),
        ("max schedules", workspace["max_schedules"]),
        ("your level", workspace["level"]),
        ("made", local(workspace["created_at"])),
    ]


@command.command()
@asks_rota
def show(rota: Rota) -> None:
    """The workspace, and your level in it."""
    rota.shown(rota.ask("GET", ""), _facts)


@command.command()
@click.option("--name", help="Another name")
@click.option("--timezone", help="For new schedules: Europe/Berlin")
@click.option("--minimum-interval", help="Schedules fire no more often: 5m")
@click.option("--max-concurrent", type=int, help="So many runs at once at most")
@click.option("--max-schedules", type=int, help="So many schedules at most")
@fields
@asks_rota
def edit(rota: Rota, fields: tuple[str, ...], **given: Any) -> None:
    """Change the workspace; `--set max_schedules=null` takes a limit away. For admins."""
    saved = rota.ask("PATCH", "", changing(with_fields(given, fields)))
    rota.said(saved, f"{saved['slug']} is saved.")
