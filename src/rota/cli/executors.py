"""`rota executors`: the kinds of agents."""

import click

from rota.cli import showing
from rota.cli.noun import Rota, asks_rota
from rota.cli.showing import Column, Item
from rota.errors import NotFound

command = click.Group("executors", help="List and show the kinds of agents, and who serves them.")

EXECUTORS = [
    Column("kind", "kind", whole=True),
    Column("served", lambda executor: "yes" if executor["served"] else "no"),
    Column("install", "extra"),
    Column("runs", "runs"),
]


def _facts(executor: Item) -> list[tuple[str, object]]:
    example = executor.get("example")
    return [
        ("kind", executor["kind"]),
        ("served", "by a worker that is alive" if executor["served"] else "by no worker that is alive"),
        ("runs", executor.get("runs")),
        ("install", executor.get("extra")),
        ("needs", executor.get("needs")),
        ("example", showing.as_json(example) if example else None),
    ]


@command.command("list")
@asks_rota
def list_(rota: Rota) -> None:
    """Kinds of agents, and whether a worker that is alive serves them."""
    rota.tabled(rota.ask("GET", "/executors"), EXECUTORS)


@command.command()
@click.argument("kind")
@asks_rota
def show(rota: Rota, kind: str) -> None:
    """One kind: what it runs and needs, and an agent to begin with."""
    known = {each["kind"]: each for each in rota.ask("GET", "/executors")["items"]}
    if kind not in known:
        raise NotFound(f"Nobody knows the kind {kind!r}; there are {', '.join(known)}.")
    rota.shown(known[kind], _facts)
