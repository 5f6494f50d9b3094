"""`rota sessions`: follow one live, keep it as a file, and show such a file elsewhere."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import click

from rota.client import Client
from rota.errors import Conflict, Invalid

AT_ONCE = 500


@click.group("sessions")
@click.option("--url", envvar="ROTA_URL", default="http://127.0.0.1:7682", show_default=True, help="Where Rota answers")
@click.option("--token", envvar="ROTA_TOKEN", required=True, help="`rota tokens create NAME` makes one (ROTA_TOKEN)")
@click.option("--workspace", default="default", show_default=True)
@click.pass_context
def command(context: click.Context, url: str, token: str, workspace: str) -> None:
    """Follow, export and import sessions."""
    context.obj = context.with_resource(Client(url, token=token, workspace=workspace))


@command.command()
@click.argument("session")
@click.option("--after", default=0, help="Only what comes after this number")
@click.option("--json", "as_json", is_flag=True, help="Print whole events, one a line")
@click.pass_obj
def follow(client: Client, session: str, after: int, as_json: bool) -> None:
    """Print what is said in a SESSION, stored and live, until Ctrl-C."""
    for event in client.follow(session, after=after):
        line = json.dumps(event, ensure_ascii=False) if as_json else _told(event)
        if line:
            click.echo(line)


def _told(event: dict[str, Any]) -> str:
    data = event["data"]
    told = data.get("text") or data.get("body") or data.get("prompt") or data.get("status") or data.get("name") or ""
    return f"{event['seq']:>6} {event['kind']:<8} {str(told).rstrip()}"


@command.command()
@click.argument("session")
@click.option("-o", "--output", type=click.File("wb"), default="-", help="A file; stdout unless told")
@click.pass_obj
def export(client: Client, session: str, output: BinaryIO) -> None:
    """Write a whole SESSION as lines of JSON."""
    output.writelines(client.export(session))


@command.command("import")
@click.argument("file", type=click.File("rb"))
@click.pass_obj
def import_(client: Client, file: BinaryIO) -> None:
    """Show a session again that was exported to FILE. It can only be read. Prints its id."""
    lines = _lines(file)
    first = list(islice(lines, AT_ONCE))
    if not first:
        raise Invalid("The file is empty: an export begins with a line about its session.", code="invalid_export")
    session = client.request("POST", "/sessions/import", {"lines": first})
    number = len(first) + 1
    while more := list(islice(lines, AT_ONCE)):
        session = _more(client, session, more, number)
        number += len(more)
    if not session["imported"]["complete"]:
        raise Invalid(f"Line {number}: the file ends without its end; it is not whole.", code="invalid_export")
    click.echo(session["id"])


def _lines(file: BinaryIO) -> Iterator[Any]:
    for number, line in enumerate(file, start=1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            print(f"rota: Line {number}: this is no JSON.", file=sys.stderr)
            sys.exit(2)


def _more(client: Client, session: dict[str, Any], lines: list[Any], first: int) -> dict[str, Any]:
    path = f"/sessions/{session['id']}/import"
    try:
        taken: dict[str, Any] = client.request("POST", path, {"lines": lines, "first": first})
    except Conflict as refused:
        if refused.facts.get("next_line") != first + len(lines):
            raise
        taken = client.request("GET", f"/sessions/{session['id']}")  # it was taken; only the answer got lost
    return taken
