"""A run until it has ended: what it says on the way, and how it ended."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from rota.cli import INTERRUPTED, showing
from rota.cli.noun import Rota
from rota.cli.showing import Item
from rota.model.run import TERMINAL

NOT_YET = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0


def answered(rota: Rota, run: Item, *, follow: bool) -> None:
    """Print the run that was started, or follow it to its end."""
    if follow:
        followed(rota, run)
    rota.said(run, str(run["id"]))


def followed(rota: Rota, run: Item) -> NoReturn:
    """Print what a run says until it has ended; ends with 0 if it succeeded, else with 1."""
    line = ""
    with _leaving(run):
        for event in _events(rota, run):
            line = _printed(rota, event) or line
    if line and not line.endswith("\n"):
        click.echo()
    waited(rota, run, quiet=rota.as_json)


@contextmanager
def _leaving(run: Item) -> Iterator[None]:
    """Ctrl-C ends the looking, not the run: say so, lest anybody think it was stopped."""
    try:
        yield
    except KeyboardInterrupt:
        click.secho(f"\nThe run goes on. `rota runs cancel {run['id']}` stops it.", dim=True, err=True)
        sys.exit(INTERRUPTED)


def waited(rota: Rota, run: Item, *, within: float | None = None, quiet: bool = False) -> NoReturn:
    """Wait for the end of a run and tell of it. Ends with 3 if that takes longer than `within` seconds."""
    until, pause = None if within is None else time.monotonic() + within, FIRST_PAUSE
    while not (told := rota.ask("GET", f"/runs/{run['id']}"))["finished_at"]:
        if until is not None and time.monotonic() >= until:
            click.secho(f"rota: {told['id']} is still {told['status']}.", fg="yellow", err=True)
            sys.exit(NOT_YET)
        with _leaving(told):
            time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    if not quiet:
        _tell(rota, told)
    sys.exit(0 if told["status"] == "succeeded" else 1)


def _tell(rota: Rota, run: Item) -> None:
    if rota.as_json:
        click.echo(showing.as_json(run))
        return
    reason = run["skip_reason"] or run["error_class"]
    took = showing.lasted(run["started_at"], run["finished_at"])
    parts = [run["status"], reason, took if run["started_at"] else None, run["error_detail"]]
    click.echo(showing.coloured(", ".join(showing.one_line(part) for part in parts if part)), err=True)


def _events(rota: Rota, run: Item) -> Iterator[dict[str, Any]]:
    """The events of one run: stored, then live, up to its end."""
    if not run["session_id"]:
        return
    if run["finished_at"]:
        events: Iterator[Any] = rota.all_of(f"/sessions/{run['session_id']}/events")
    else:
        events = rota.client.follow(run["session_id"])
    for event in events:
        if event["run_id"] == run["id"]:
            yield event
            if event["kind"] == "run" and event["data"].get("status") in TERMINAL:
                return


def _printed(rota: Rota, event: dict[str, Any]) -> str:
    """Print an event; what the agent said, if it is that."""
    data = event["data"]
    if rota.as_json:
        click.echo(showing.as_json(event, indent=None))
    elif event["kind"] == "output":
        said = showing.clean(data.get("text", ""))
        click.echo(said, nl=False)
        return said
    elif event["kind"] != "run" and (told := said_in(data)):
        click.secho(f"[{event['kind']}] {showing.one_line(told)}", dim=True, err=True)
    return ""


def said_in(data: Item) -> object:
    """What of an event is worth a line."""
    if data.get("task") and "role" in data:
        return f"{data['task']} {data['status']}"
    known = ("text", "body", "prompt", "question", "status", "name")
    return next((data[name] for name in known if data.get(name)), "")
