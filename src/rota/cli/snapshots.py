"""`rota snapshots`: how the house was doing, minute by minute."""

import click

from rota.cli.noun import Rota, asks_rota, pages
from rota.cli.showing import Column, Item, brief, figure

command = click.Group("snapshots", help="List how machines and workers were doing.")


def _memory(snapshot: Item) -> str | None:
    return None if snapshot["memory_mb"] is None else f"{figure(round(snapshot['memory_mb']))} MB"


def _cpu(snapshot: Item) -> str | None:
    return None if snapshot["cpu_percent"] is None else f"{snapshot['cpu_percent']:.0f} %"


SNAPSHOTS = [
    Column("taken", lambda snapshot: brief(snapshot["taken_at"])),
    Column("host", "host"),
    Column("workers", "workers"),
    Column("running", "running"),
    Column("queued", "queued"),
    Column("sessions", "sessions"),
    Column("cpu", _cpu),
    Column("memory", _memory),
]


@command.command("list")
@click.option("--before", help="Only those taken before this instant: 2027-01-31T00:00:00Z")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, before: str | None) -> None:
    """How each machine was doing, newest first: workers, runs, processor and memory."""
    rota.listed("/snapshots", SNAPSHOTS, limit=limit, before=before)
