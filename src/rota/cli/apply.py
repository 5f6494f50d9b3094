"""`rota apply`: bring agents and automations to what files of YAML say, after showing what that changes."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from rota.cli import showing
from rota.cli.applying import telling
from rota.cli.applying.planning import Change, Planner, located
from rota.cli.applying.reading import STDIN, read_all
from rota.cli.noun import Rota, asks_rota
from rota.cli.triggers import tell_secrets
from rota.errors import Invalid, RotaError

WOULD_CHANGE = 3


@click.command("apply")
@click.option(
    "-f", "--file", "files", multiple=True, required=True,
    help="A file of YAML, a directory of *.yaml, or `-` for the standard input. Repeatable",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show; ends with 0 if nothing would change, else with 3")
@click.option("--yes", is_flag=True, help="Write without asking")
@click.option("--accept-grant", is_flag=True, help="Let automations of others that change run on your authority")
@asks_rota
def command(rota: Rota, files: tuple[str, ...], dry_run: bool, yes: bool, accept_grant: bool) -> None:
    """Create and change the agents and automations that files of YAML describe.

    Shows what differs from what is there, field by field, and asks before it writes. What a file leaves out stays as it
    is, and nothing is ever deleted. All is checked before anything is written.
    """
    if not (yes or dry_run) and (rota.as_json or STDIN in files):
        raise Invalid("Nobody can be asked here: give --yes to write, or --dry-run to look.", field="--yes")
    changes = Planner(rota, read_all(files), accept_grant=accept_grant).plan()
    if not rota.as_json:
        for line in telling.told(changes):
            click.echo(line)
    pending = [change for change in changes if change.action != "unchanged"]
    if dry_run:
        if rota.as_json:
            click.echo(showing.as_json({"items": telling.as_data(changes)}))
        sys.exit(WOULD_CHANGE if pending else 0)
    if pending and not yes and not _agreed():
        click.echo("Nothing was written. --yes writes without asking.", err=True)
        sys.exit(1)
    answers = _written(rota, pending)
    if rota.as_json:
        saved = {(change.item.kind, change.item.slug): answer for change, answer in zip(pending, answers, strict=True)}
        items = [{**each, "answer": saved.get((each["kind"], each["slug"]))} for each in telling.as_data(changes)]
        click.echo(showing.as_json({"items": items}))


def _agreed() -> bool:
    """Whoever stops here, or cannot answer, has not agreed."""
    try:
        return click.confirm("Write this?")
    except click.Abort:
        click.echo(err=True)
        return False


def _written(rota: Rota, pending: Sequence[Change]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for change in pending:
        try:
            answer = _write(rota, change)
        except RotaError as refused:
            told = located(change.item, refused)
            done = f"{len(answers)} of {len(pending)} were written; mend this one and apply again."
            raise type(told)(f"{told.message}\n{done}", code=told.code, field=told.field) from None
        answers.append(answer)
        if not rota.as_json:
            click.echo(f"{showing.one_line(change.item)} is {'created' if change.there is None else 'changed'}.")
            tell_secrets(answer.get("triggers", ()))
    return answers


def _write(rota: Rota, change: Change) -> dict[str, Any]:
    answer: dict[str, Any] = dict(change.there or {})
    if change.there is None:
        answer = rota.ask("POST", change.item.path, change.send)
    elif change.send:
        answer = rota.ask("PATCH", f"{change.item.path}/{answer['id']}", change.send)
    if change.verb:
        # Its answer has no secrets, which are shown but once.
        answer = {
            **rota.ask("POST", f"{change.item.path}/{answer['id']}/{change.verb}"),
            "triggers": answer["triggers"],
        }
    return answer
