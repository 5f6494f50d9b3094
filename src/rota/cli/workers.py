"""`rota workers`: who runs the agents."""

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
    Column("last words", lambda worker: each_of(run["last_line"] for run in worker["runs"] if run["last_line"])),
]


@command.command("list")
@asks_rota
def list_(rota: Rota) -> None:
    """Workers, how they are, and what those say that are at work for this workspace."""
    rota.tabled(rota.ask("GET", "/workers"), WORKERS)
