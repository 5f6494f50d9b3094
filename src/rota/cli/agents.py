"""`rota agents`: who works."""

from typing import Any

import click

from rota.cli.following import answered
from rota.cli.noun import JSON, REF, Rota, asks_rota, changing, fields, once, pages, pairs_of, text_of, with_fields
from rota.cli.runs import RUNS
from rota.cli.sessions import SESSIONS
from rota.cli.showing import Column, Item, brief, local

command = click.Group("agents", help="List, show, save, run, pause and delete agents.")

AGENTS = [
    Column("slug", "slug", whole=True),
    Column("name", "name"),
    Column("executor", "executor"),
    Column("status", "status"),
    Column("pool", "pool"),
    Column("changed", lambda agent: brief(agent["updated_at"])),
]


def _facts(agent: Item) -> list[tuple[str, object]]:
    kept = ("name", "slug", "id", "status", "executor", "config", "instructions", "credentials", "pool")
    return [
        *((name, agent[name]) for name in kept),
        ("max concurrent", agent["max_concurrent"]),
        ("revision", agent["revision"]),
        ("created", local(agent["created_at"])),
        ("changed", local(agent["updated_at"])),
        ("warnings", "\n".join(agent["warnings"])),
    ]


def _saves(function: Any) -> Any:
    """The options that create and edit share."""
    for option in (
        click.option("--executor", help="Its kind: command, python, http, …"),
        click.option("--config", type=JSON, help="What its kind needs, as JSON (`-`: from the standard input)"),
        click.option("--instructions", help="What it is told before every prompt; `-`: from the standard input"),
        click.option("--credential", "credentials", multiple=True, metavar="VAR=NAME", help="Give it one. Repeatable"),
        click.option("--pool", help="Only workers of this pool run it"),
        click.option("--max-concurrent", type=int, help="So many of its runs at once at most"),
        click.option("--slug", help="Its short name for addresses [made from the name]"),
        fields,
    )[::-1]:
        function = option(function)
    return function


def _body(instructions: str | None, credentials: tuple[str, ...], fields: tuple[str, ...], **given: Any) -> Any:
    told = text_of(instructions) if instructions is not None else None
    uses = pairs_of(credentials, "--credential")
    return with_fields({**given, "instructions": told, "credentials": uses}, fields)


@command.command("list")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None) -> None:
    """Agents, newest first."""
    rota.listed("/agents", AGENTS, limit=limit)


@command.command()
@click.argument("agent", type=REF)
@asks_rota
def show(rota: Rota, agent: str) -> None:
    """One agent."""
    rota.shown(rota.ask("GET", f"/agents/{agent}"), _facts)


@command.command()
@click.argument("name")
@_saves
@asks_rota
def create(rota: Rota, name: str, **given: Any) -> None:
    """Save an agent called NAME."""
    _saved(rota, rota.ask("POST", "/agents", _body(name=name, **given)))


@command.command()
@click.argument("agent", type=REF)
@click.option("--name", help="Another name")
@_saves
@asks_rota
def edit(rota: Rota, agent: str, **given: Any) -> None:
    """Change an agent: a new revision of it and of each automation that uses it."""
    _saved(rota, rota.ask("PATCH", f"/agents/{agent}", changing(_body(**given))))


def _saved(rota: Rota, agent: Item) -> None:
    rota.said(agent, f"{agent['slug']} is saved, revision {agent['revision']}.")
    for warning in agent["warnings"]:
        click.secho(warning, fg="yellow", err=True)


@command.command()
@click.argument("agent", type=REF)
@asks_rota
def pause(rota: Rota, agent: str) -> None:
    """Start no run of it until it is resumed. What waits is skipped, what runs finishes."""
    paused = rota.ask("PATCH", f"/agents/{agent}", {"status": "paused"})
    rota.said(paused, f"{paused['slug']} is paused.")


@command.command()
@click.argument("agent", type=REF)
@asks_rota
def resume(rota: Rota, agent: str) -> None:
    """Let a paused agent work again."""
    active = rota.ask("PATCH", f"/agents/{agent}", {"status": "active"})
    rota.said(active, f"{active['slug']} is active.")


@command.command()
@click.argument("agent", type=REF)
@asks_rota
def delete(rota: Rota, agent: str) -> None:
    """Delete an agent that no automation uses any more. Its runs stay readable."""
    rota.said(rota.ask("DELETE", f"/agents/{agent}"), f"{agent} is deleted.")


@command.command()
@click.argument("agent", type=REF)
@click.argument("prompt", required=False)
@click.option("--input", "given", type=JSON, help="An input as JSON, beside the prompt or in its place")
@click.option("--timeout", help="How long it may take: 30m")
@click.option("--scope", "scopes", multiple=True, help="What its grant also allows: workspace:read. Repeatable")
@click.option("--follow", is_flag=True, help="Print what it says, until it has ended")
@once
@asks_rota
def run(
    rota: Rota,
    agent: str,
    prompt: str | None,
    given: Any,
    timeout: str | None,
    scopes: tuple[str, ...],
    follow: bool,
    key: str | None,
) -> None:
    """Run an agent directly, in a session of its own; `-` takes the PROMPT from the standard input.

    The kinds command, python, http and kubernetes need no PROMPT.

    Prints the run's id. With --follow it ends with 0 if the run succeeded, else with 1.
    """
    body = {"prompt": text_of(prompt) if prompt else None, "input": given, "timeout": timeout}
    body |= {"scopes": list(scopes)} if scopes else {}
    answered(rota, rota.ask("POST", f"/agents/{agent}/runs", body, key=key), follow=follow)


@command.command()
@click.argument("agent", type=REF)
@pages
@asks_rota
def runs(rota: Rota, agent: str, limit: int | None) -> None:
    """Runs of one agent, newest first."""
    rota.listed(f"/agents/{agent}/runs", RUNS, limit=limit)


@command.command()
@click.argument("agent", type=REF)
@pages
@asks_rota
def sessions(rota: Rota, agent: str, limit: int | None) -> None:
    """Sessions of one agent, newest first."""
    rota.listed(f"/agents/{agent}/sessions", SESSIONS, limit=limit)
