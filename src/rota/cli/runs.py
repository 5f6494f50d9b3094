"""`rota runs`: what became of a slot, a run now, a task or a chat turn."""

import click

from rota.cli import showing
from rota.cli.following import answered, followed, waited
from rota.cli.noun import REF, Rota, asks_rota, once, owner, pages
from rota.cli.options import Seconds
from rota.cli.showing import Column, Item, brief, lasted, local
from rota.errors import NotFound
from rota.model.run import Status

command = click.Group("runs", help="List, show, follow, cancel and retry runs.")

STATUSES = tuple(map(str, Status))


def _outcome(run: Item) -> object:
    return run["skip_reason"] or run["error_detail"] or run["error_class"] or run["summary"]


RUNS = [
    Column("id", "id", whole=True),
    Column("status", "status"),
    Column("source", "source"),
    Column("queued", lambda run: brief(run["queued_at"])),
    Column("took", lambda run: lasted(run["started_at"], run["finished_at"])),
    Column("outcome", _outcome),
]
LEDGER = [RUNS[0], RUNS[1], RUNS[2], Column("slot", lambda run: brief(run["slot"])), *RUNS[3:]]
ATTEMPTS = [
    Column("attempt", "attempt"),
    Column("worker", "worker_id"),
    Column("sandbox", lambda attempt: attempt.get("sandbox") or "–"),
    Column("started", lambda attempt: brief(attempt["started_at"])),
    Column("took", lambda attempt: lasted(attempt["started_at"], attempt["ended_at"])),
    Column("ended as", "ended_as"),
    Column("detail", "detail"),
]


def _facts(run: Item) -> list[tuple[str, object]]:
    missed = run["missed"]
    return [
        ("id", run["id"]),
        ("status", run["status"]),
        ("source", run["source"]),
        ("reason", run["skip_reason"] or run["error_class"]),
        ("detail", run["error_detail"]),
        ("summary", run["summary"]),
        ("slot", local(run["slot"]) if run["slot"] else None),
        ("missed", f"{missed['count']} since {local(missed['since'])}" if missed else None),
        ("queued", local(run["queued_at"])),
        ("started", local(run["started_at"])),
        ("finished", local(run["finished_at"])),
        ("payload", run["payload"]),
        ("usage", run["usage"]),
        ("refused tasks", ", ".join(f"{count} {code}" for code, count in run["refused_tasks"].items()) or None),
        ("automation", run["automation_id"]),
        ("agent", run["agent_id"]),
        ("session", run["session_id"]),
        ("retry of", run["retry_of"]),
        ("revision", run["revision"]),
    ]


@command.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only those")
@click.option("--automation", help="Only of this one")
@click.option("--session", help="Only in this one, by its id")
@owner
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, **filters: str | None) -> None:
    """Runs of the workspace, newest first."""
    if rota.as_json:
        rota.listed("/runs", RUNS, limit=limit, **filters)
        return
    known: dict[str, str] = {}
    named = Column("automation", lambda run: _slug(rota, known, run["automation_id"]))
    columns = [*RUNS[:3], named, *RUNS[3:]]
    rota.listed("/runs", columns, limit=limit, **filters)


def _slug(rota: Rota, known: dict[str, str], automation_id: str | None) -> str | None:
    """Runs name their automation by its id; people know it by its slug."""
    if automation_id and automation_id not in known:
        try:
            known[automation_id] = rota.ask("GET", f"/automations/{automation_id}")["slug"]
        except NotFound:
            known[automation_id] = automation_id
    return known.get(automation_id or "")


@command.command()
@click.argument("run", type=REF)
@asks_rota
def show(rota: Rota, run: str) -> None:
    """One run, with the story of each attempt: its worker, its times and how it ended."""
    found = rota.ask("GET", f"/runs/{run}")
    rota.shown(found, _facts)
    if found["attempts"] and not rota.as_json:
        click.echo()
        for line in showing.table(ATTEMPTS, found["attempts"], within=showing.room()):
            click.echo(line)


@command.command()
@click.argument("run", type=REF)
@asks_rota
def follow(rota: Rota, run: str) -> None:
    """Print what a run says, from its beginning until it has ended; with --json its events, one a line.

    Ends with 0 if it succeeded, else with 1.
    """
    followed(rota, rota.ask("GET", f"/runs/{run}"))


@command.command()
@click.argument("run", type=REF)
@click.option("--timeout", type=Seconds(), help="Give up after so long: 90s, 15m [never]")
@asks_rota
def wait(rota: Rota, run: str, timeout: float | None) -> None:
    """Wait until a run has ended, and say how.

    Ends with 0 if it succeeded, with 1 if not, and with 3 if it has not ended in time.
    """
    waited(rota, {"id": run}, within=timeout)


@command.command()
@click.argument("run", type=REF)
@asks_rota
def cancel(rota: Rota, run: str) -> None:
    """Cancel a run: at once if it waits, else as soon as its worker has stopped it."""
    asked = rota.ask("POST", f"/runs/{run}/cancel")
    rota.said(asked, f"{asked['id']} is {asked['status'] if asked['finished_at'] else 'being stopped'}.")


@command.command()
@click.argument("run", type=REF)
@click.option("--follow", is_flag=True, help="Print what it says, until it has ended")
@once
@asks_rota
def retry(rota: Rota, run: str, follow: bool, key: str | None) -> None:
    """Start a new run in place of one that failed, was cancelled or skipped. Prints its id."""
    answered(rota, rota.ask("POST", f"/runs/{run}/retry", key=key), follow=follow)
