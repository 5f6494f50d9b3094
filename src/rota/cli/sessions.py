"""`rota sessions`: conversations. Open one, speak in it, follow it live, keep it as a file and show that elsewhere."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from rota.cli import showing
from rota.cli.following import followed, said_in
from rota.cli.noun import (
    JSON,
    REF,
    Rota,
    asks_rota,
    counted,
    each_of,
    once,
    owner,
    pages,
    pairs_of,
    progress,
    text_of,
    with_fields,
)
from rota.cli.saving import STANDARD_OUTPUT, output, saved_to
from rota.cli.showing import Column, Item, brief, local
from rota.client import Client
from rota.errors import Conflict, Invalid

command = click.Group("sessions", help="List, show, open and follow sessions, speak in them, export and import them.")

AT_ONCE, BYTES_AT_ONCE = 500, 500_000
KINDS = ("interactive", "automation", "background")
SESSIONS = [
    Column("id", "id", whole=True),
    Column("kind", "kind"),
    Column("status", "status"),
    Column("origin", "origin"),
    Column("title", "title"),
    Column("changed", lambda session: brief(session["updated_at"])),
]
TASKS = [
    Column("key", "key"),
    Column("role", "role"),
    Column("status", "status"),
    Column("after", "after"),
    Column("outcome", lambda task: task["error_detail"] or task["reason"] or task["summary"]),
]

ROLES = [
    Column("role", "name", whole=True),
    Column("agent", "agent"),
    Column("since", lambda role: brief(role["created_at"])),
]
EVENTS = [
    Column("seq", "seq", whole=True),
    Column("kind", "kind"),
    Column("when", lambda event: brief(event["created_at"])),
    Column("said", lambda event: said_in(event["data"])),
]


def _facts(session: Item) -> list[tuple[str, object]]:
    kept = ("title", "id", "kind", "status", "origin", "goal")
    return [
        *((name, session[name]) for name in kept),
        ("automation", session["automation_id"]),
        ("agent", session["agent_id"]),
        ("events", session["last_seq"]),
        ("opened", local(session["created_at"])),
        ("changed", local(session["updated_at"])),
    ]


@command.command("list")
@click.option("--kind", type=click.Choice(KINDS), help="Only those; interactive are chats")
@click.option("--status", help="Only those: draft, active, paused, done, failed, archived")
@click.option("--origin", help="Only those: user, schedule, run_now, webhook, event, after, import")
@owner
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, **filters: str | None) -> None:
    """Sessions, newest first."""
    rota.listed("/sessions", SESSIONS, limit=limit, **filters)


@command.command()
@click.argument("session", type=REF)
@asks_rota
def show(rota: Rota, session: str) -> None:
    """One session."""
    rota.shown(rota.ask("GET", f"/sessions/{session}"), _facts)


@command.command()
@click.argument("session", type=REF)
@pages
@asks_rota
def transcript(rota: Rota, session: str, limit: int | None) -> None:
    """The session told as a conversation, oldest first. So many events are told as --limit says."""
    page = rota.some_of(f"/sessions/{session}/transcript", limit, merges=True)
    page["items"] = _in_one_breath(page["items"])
    if rota.as_json:
        click.echo(showing.as_json(page))
        return
    for line in page["items"]:
        click.echo(
            f"{click.style(showing.one_line(line['speaker']), bold=True)}: {showing.clean(line['text']).rstrip()}"
        )
    if limit and page["next_cursor"]:
        click.secho(f"There is more: --limit {2 * limit}, or --all.", dim=True, err=True)


def _in_one_breath(lines: list[Item]) -> list[Item]:
    """What an agent said goes on where a page of the API ended; a message is whole."""
    told: list[Item] = []
    for line in lines:
        if told and _breath(line) is not None and _breath(told[-1]) == _breath(line):
            told[-1] = {**told[-1], "text": told[-1]["text"] + line["text"]}
        else:
            told.append(line)
    return told


def _breath(line: Item) -> tuple[str, int] | None:
    return (line["run_id"], line["attempt"]) if line["speaker"] == "agent" and "body" not in line["data"] else None


@command.command("open")
@click.argument("agent")
@click.argument("prompt", required=False)
@click.option("--title", help="What it is called")
@click.option("--input", "given", type=JSON, help="An input as JSON, beside the prompt or in its place")
@once
@asks_rota
def open_(rota: Rota, agent: str, prompt: str | None, title: str | None, given: Any, key: str | None) -> None:
    """Open a conversation with AGENT, perhaps with a first PROMPT. Prints the session's id."""
    said = text_of(prompt) if prompt is not None else None
    body = with_fields({"agent": agent, "prompt": said, "title": title, "input": given}, ())
    opened = rota.ask("POST", "/sessions", body, key=key)
    rota.said(opened, str(opened["id"]))


@command.command()
@click.argument("goal")
@click.option("--role", "roles", multiple=True, required=True, metavar="ROLE=AGENT", help="Who takes part, and as what")
@click.option("--tasks", type=JSON, help="The first tasks: a list as the API takes it (`-`: from the standard input)")
@click.option("--title", help="What it is called")
@click.option("--draft", is_flag=True, help="Start nothing until it is enabled")
@once
@asks_rota
def goal(
    rota: Rota, goal: str, roles: tuple[str, ...], tasks: Any, title: str | None, draft: bool, key: str | None
) -> None:
    """Let several agents pursue a GOAL together, each in a role. Prints the session's id.

    A task has a key, a role, a prompt, and perhaps depends_on: the keys of those that it waits for.
    """
    seats = [{"name": role, "agent": agent} for role, agent in (pairs_of(roles, "--role") or {}).items()]
    told = {"kind": "background", "goal": goal, "title": title, "roles": seats, "tasks": tasks, "draft": draft or None}
    opened = rota.ask("POST", "/sessions", with_fields(told, ()), key=key)
    rota.said(opened, str(opened["id"]))


@command.command()
@click.argument("session", type=REF)
@pages
@asks_rota
def tasks(rota: Rota, session: str, limit: int | None) -> None:
    """The tasks of a session, oldest first, and what became of them."""
    page = rota.some_of(f"/sessions/{session}/tasks", limit)
    if not rota.as_json:
        keys = {task["id"]: task["key"] for task in page["items"]}
        for task in page["items"]:
            task["after"] = each_of(keys.get(each, each) for each in task["depends_on"])
    rota.tabled(page, TASKS)


@command.command("add-task")
@click.argument("session", type=REF)
@click.argument("role")
@click.argument("prompt", required=False)
@click.option("--input", "given", type=JSON, help="An input as JSON, beside the prompt or in its place")
@click.option("--name", "key", help="Its key: what later tasks call it")
@click.option("--after", "depends_on", multiple=True, help="Key or id of a task that must be done before. Repeatable")
@click.option("--timeout", help="How long it may run: 30m")
@click.option("--max-attempts", type=int, help="How often it may be tried")
@asks_rota
def add_task(
    rota: Rota, session: str, prompt: str | None, given: Any, depends_on: tuple[str, ...], **task: Any
) -> None:
    """Give a ROLE of the session a task: PROMPT, or `-` for the standard input. Prints its key."""
    said = text_of(prompt) if prompt is not None else None
    told = with_fields({**task, "prompt": said, "input": given, "depends_on": list(depends_on) or None}, ())
    _added(rota, session, [told])


@command.command("add-tasks")
@click.argument("session", type=REF)
@click.argument("tasks", type=JSON)
@asks_rota
def add_tasks(rota: Rota, session: str, tasks: Any) -> None:
    """Add TASKS, all or none: a list as `goal --tasks` takes it (`-`: from the standard input). Prints their keys."""
    _added(rota, session, tasks)


def _added(rota: Rota, session: str, tasks: Any) -> None:
    added = rota.ask("POST", f"/sessions/{session}/tasks", {"tasks": tasks})
    rota.said(added, "\n".join(task["key"] for task in added["items"]))


@command.command()
@click.argument("session", type=REF)
@asks_rota
def roles(rota: Rota, session: str) -> None:
    """Who takes part in a session, and as what."""
    rota.tabled(rota.ask("GET", f"/sessions/{session}/roles"), ROLES)


@command.command("add-role")
@click.argument("session", type=REF)
@click.argument("role")
@click.argument("agent")
@asks_rota
def add_role(rota: Rota, session: str, role: str, agent: str) -> None:
    """Give AGENT the ROLE of a session, so that tasks and messages can go to it."""
    added = rota.ask("POST", f"/sessions/{session}/roles", {"name": role, "agent": agent})
    rota.said(added, f"{added['name']} is {added['agent']}.")


@command.command()
@click.argument("session", type=REF)
@click.argument("text")
@click.option("--to", help="Send a message to this role, to `user` or to `all`, in place of a prompt to the agent")
@click.option("--follow", is_flag=True, help="Print the agent's answer as it comes")
@once
@asks_rota
def say(rota: Rota, session: str, text: str, to: str | None, follow: bool, key: str | None) -> None:
    """Say TEXT to the session's agent (`-`: from the standard input), which answers with a run. Prints its id.

    With --follow it ends with 0 if the run succeeded, else with 1.
    """
    said = text_of(text)
    if to is not None and follow:
        raise Invalid("A message starts no run to follow; leave out --follow or --to.", field="--follow")
    body = {"prompt": said} if to is None else {"body": said, "to": to}
    sent = rota.ask("POST", f"/sessions/{session}/messages", body, key=key)
    if follow:
        followed(rota, sent)
    rota.said(sent, str(sent["id"]))


def _verb(name: str, told: str) -> None:
    """One of the changes that need nothing but the session."""

    @command.command(name, help=told)
    @click.argument("session", type=REF)
    @asks_rota
    def change(rota: Rota, session: str) -> None:
        changed = rota.ask("POST", f"/sessions/{session}/{name}")
        rota.said(changed, f"{changed['id']} is {changed['status']}.")


_verb("enable", "Start the work of a draft.")
_verb("pause", "Hold its tasks: what nobody has claimed does not start; what runs finishes.")
_verb("resume", "Let a paused session go on.")
_verb("complete", "End it as done: what has not begun is skipped, what runs is cancelled.")
_verb("fail", "End it as failed, in the same way.")
_verb("archive", "Put a session away that is done or failed: from then on it can only be read.")


@command.command()
@click.argument("session", type=REF)
@click.option("--after", type=click.IntRange(0), default=0, help="Only what comes after this number")
@asks_rota
def follow(rota: Rota, session: str, after: int) -> None:
    """Print what is said in a SESSION, stored and live, until Ctrl-C; with --json whole events, one a line."""
    for event in rota.client.follow(session, after=after):
        click.echo(showing.as_json(event, indent=None) if rota.as_json else _told(event))


def _told(event: dict[str, Any]) -> str:
    return f"{event['seq']:>6} {event['kind']:<8} {showing.clean(said_in(event['data'])).rstrip()}"


@command.command()
@click.argument("session", type=REF)
@click.option("--after", type=click.IntRange(0), default=0, help="Only what comes after this number")
@pages
@asks_rota
def events(rota: Rota, session: str, limit: int | None, after: int) -> None:
    """What is stored of a session's log, oldest first. `follow` goes on with what comes."""
    rota.listed(f"/sessions/{session}/events", EVENTS, limit=limit, after=after)


@command.command()
@click.argument("session", type=REF)
@asks_rota
def origin(rota: Rota, session: str) -> None:
    """Which automation started a session, by which run and why."""
    rota.shown(rota.ask("GET", f"/sessions/{session}/origin"), _origin)


def _origin(origin: Item) -> list[tuple[str, object]]:
    return [
        ("automation", origin["automation_name"]),
        ("id", origin["automation_id"]),
        ("run", origin["run_id"]),
        ("source", origin["source"]),
        ("slot", local(origin["slot"])),
        ("started", local(origin["started_at"])),
    ]


@command.command()
@click.argument("session", type=REF)
@output("stdout")
@asks_rota
def export(rota: Rota, session: str, output: Path | None) -> None:
    """Write a whole SESSION as lines of JSON."""
    with saved_to(output or STANDARD_OUTPUT) as written, counted("Exporting") as told:
        for piece in rota.client.export(session):
            written.write(piece)
            told(len(piece))


@command.command("import")
@click.argument("file", type=click.File("rb"))
@asks_rota
def import_(rota: Rota, file: BinaryIO) -> None:
    """Show a session again that was exported to FILE. It can only be read. Prints its id."""
    with progress(_size(file), "Importing") as told:
        session = _imported(rota, _lines(file, told))
    rota.said(session, str(session["id"]))


def _imported(rota: Rota, lines: Iterator[bytes]) -> dict[str, Any]:
    groups = _groups(lines)
    first = next(groups, None)
    if not first:
        raise Invalid("The file is empty: an export begins with a line about its session.", code="invalid_export")
    session: dict[str, Any] = rota.ask("POST", "/sessions/import", {"lines": first})
    number = len(first) + 1
    for more in groups:
        session = _more(rota.client, session, more, number)
        number += len(more)
    if not session["imported"]["complete"]:
        raise Invalid(f"Line {number}: the file ends without its end; it is not whole.", code="invalid_export")
    return session


def _size(file: BinaryIO) -> int:
    """Nothing for what has no end yet, such as a pipe."""
    try:
        return os.fstat(file.fileno()).st_size
    except OSError:
        return 0


def _lines(file: BinaryIO, told: Callable[[int], None]) -> Iterator[bytes]:
    for line in file:
        yield line
        told(len(line))


def _groups(lines: Iterator[bytes]) -> Iterator[list[Any]]:
    """As many as one request may carry."""
    group: list[Any] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        if group and (len(group) == AT_ONCE or size + len(line) > BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        try:
            group.append(json.loads(line))
        except (ValueError, RecursionError):
            raise Invalid(f"Line {number}: this is no JSON.", code="invalid_export") from None
        size += len(line)
    if group:
        yield group


def _more(client: Client, session: dict[str, Any], lines: list[Any], first: int) -> dict[str, Any]:
    path = f"/sessions/{session['id']}/import"
    try:
        taken: dict[str, Any] = client.request("POST", path, {"lines": lines, "first": first})
    except Conflict as refused:
        if refused.facts.get("next_line") != first + len(lines):
            raise
        taken = client.request("GET", f"/sessions/{session['id']}")  # it was taken; only the answer got lost
    return taken
