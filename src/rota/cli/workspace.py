"""`rota workspace`: its name, its zone and its limits, and its pause."""

from typing import Any

import click

from rota.cli.noun import Rota, asks_rota, changing, fields, with_fields
from rota.cli.showing import Item, local

command = click.Group("workspace", help="Show, change, pause and resume the workspace.")


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
        ("paused", _pause(workspace["pause"])),
        ("made", local(workspace["created_at"])),
    ]


def _pause(pause: Item | None) -> str | None:
    if pause is None:
        return None
    end = f", until {local(pause['until'])}" if pause["until"] else ""
    return f"since {local(pause['paused_at'])} by {pause['paused_by']}{end}: {pause['reason']}"


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


@command.command()
@click.option("--reason", required=True, help="Why, for everybody to see")
@click.option("--until", help="Resume by itself then: 2026-06-01T09:00:00+02:00")
@click.option("--for", "lasts", help="Resume by itself after this time: 2h")
@asks_rota
def pause(rota: Rota, **given: Any) -> None:
    """Pause all automations: no schedule, webhook or event starts a run. What waits is skipped, what runs finishes.

    Again, it replaces the reason and the end. For admins.
    """
    saved = rota.ask("POST", "/pause", with_fields(given, ()))
    rota.said(saved, f"{saved['slug']} is paused {_pause(saved['pause'])}")


@command.command()
@asks_rota
def resume(rota: Rota) -> None:
    """Let all automations fire again, counting from now. What was paused itself stays so. For admins."""
    saved = rota.ask("POST", "/resume")
    rota.said(saved, f"{saved['slug']} is resumed.")
