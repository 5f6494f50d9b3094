"""`rota workers`: who runs the agents."""

from typing import Any

import click

from rota.cli.noun import Rota, asks_rota, each_of
from rota.cli.showing import Column, brief

command = click.Group("workers", help="List workers.")

WORKERS = [
    Column("id", "id", whole=True),
    Column("status", "status"),
    Column("busy", lambda worker: f"{worker['busy']}/{worker['places']}"),
    Column("kinds", lambda worker: each_of(worker["kinds"], most=8)),
    Column("pools", lambda worker: each_of(worker["pools"])),
    Column("seen", lambda worker: brief(worker["last_seen_at"])),
    Column("last words", lambda worker: each_of(_line_of(run) for run in worker["runs"] if _line_of(run))),
]


def _line_of(run: dict[str, Any]) -> str:
    """The last line that a run has said; of a dead worker's run, what became of it."""
    since = run.get("since")
    if not since:
        return str(run["last_line"])
    elsewhere = f" on {since['worker_id']}" if since["worker_id"] and since["attempt"] > run["attempt"] else ""
    return f"{run['run_id']} {since['status']}, attempt {since['attempt']}{elsewhere}"


@command.command("list")
@asks_rota
def list_(rota: Rota) -> None:
    """Workers, how they are, and what those say that are at work for this workspace."""
    rota.tabled(rota.ask("GET", "/workers"), WORKERS)
