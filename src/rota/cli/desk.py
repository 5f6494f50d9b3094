"""`rota desk`: what an agent at work may do, for shell scripts. It finds its run in the environment."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO

import click

from rota.cli.options import Seconds
from rota.client import Desk
from rota.errors import Invalid, RotaError, Unauthenticated

REFUSED, NOBODY_ANSWERED, OVER = 1, 3, 4


def seated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command the desk of its run; end with 4 once the attempt is over."""

    @wraps(function)
    def called(*given: Any, **options: Any) -> Any:
        try:
            with Desk.here() as desk:
                return function(desk, *given, **options)
        except Unauthenticated as over:
            click.secho(f"rota: {over.message}", fg="red", err=True)
            sys.exit(OVER)

    return called


def shown(value: Any, as_json: bool, text: str) -> None:
    click.echo(json.dumps(value, ensure_ascii=False) if as_json else text)


as_json = click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON")


@click.group("desk")
def command() -> None:
    """Work at the desk of a run: for scripts that Rota runs as agents.

    Ends with 0 when it was done, 2 when it was refused, 4 once the attempt is over.
    """


@command.command()
@click.argument("text")
@seated
def say(desk: Desk, text: str) -> None:
    """Say a line, TEXT, in the transcript; `-` takes it from the standard input, as it is."""
    desk.say(_text(text) if text == "-" or text.endswith("\n") else f"{text}\n")


@command.command()
@click.argument("name")
@click.argument("data", default="{}")
@seated
def tool(desk: Desk, name: str, data: str) -> None:
    """Record the use of the tool NAME, with DATA as a JSON object."""
    desk.tool(name, _object(data, "DATA"))


@command.command()
@click.argument("unit")
@click.argument("amount", type=float)
@seated
def usage(desk: Desk, unit: str, amount: float) -> None:
    """Charge the account with AMOUNT more of UNIT: `rota desk usage tokens 1200`."""
    desk.usage(unit, amount)


@command.command()
@click.argument("body")
@click.option("--to", default="all", help="A role of the session, `user`, or `all` others [all]")
@click.option("--key", help="Sent again with it, it is the same message")
@click.option("--parse", is_flag=True, help="BODY is JSON, not text")
@as_json
@seated
def message(desk: Desk, body: str, to: str, key: str | None, parse: bool, as_json: bool) -> None:
    """Send BODY to another role; `-` takes it from the standard input. Prints its number."""
    text = _text(body)
    sent = desk.message(_json(text, "BODY") if parse else text, to=to, key=key)
    shown(sent, as_json, str(sent["id"]))


@command.command()
@click.option("--after", type=int, default=0, help="Only messages with a higher number")
@click.option("--wait", type=Seconds(), default=0.0, help="Wait so long for the first: 30s, 5m")
@click.option("--ack", "acking", is_flag=True, help="Acknowledge what was printed")
@as_json
@seated
def inbox(desk: Desk, after: int, wait: float, acking: bool, as_json: bool) -> None:
    """Print messages that were not acknowledged, a line each: number, sender, body, which is JSON if it is no text or
    has line ends or tabs. Ends with 1 if there is none."""
    found = desk.inbox(after=after, wait=wait)
    for each in found:
        shown(each, as_json, f"{each['id']}\t{each['from']}\t{_on_a_line(each['body'])}")
    if acking and found:
        sys.stdout.flush()
        desk.ack(*(each["id"] for each in found))
    sys.exit(0 if found else 1)


def _on_a_line(body: Any) -> str:
    """What a sender writes must not look like another message, of somebody else."""
    fits = isinstance(body, str) and not set(body) & set("\n\r\t")
    return str(body) if fits else json.dumps(body, ensure_ascii=False)


@command.command()
@click.argument("ids", type=int, nargs=-1, required=True)
@seated
def ack(desk: Desk, ids: tuple[int, ...]) -> None:
    """Take messages off the inbox for good, by their numbers."""
    desk.ack(*ids)


@command.command()
@click.argument("role")
@click.argument("prompt")
@click.option("--key", help="What later tasks call it")
@click.option("--after", "depends_on", multiple=True, help="Key or id of a task that must be done before. Repeatable")
@click.option("--timeout", help="How long it may run: 30m")
@as_json
@seated
def task(
    desk: Desk,
    role: str,
    prompt: str,
    key: str | None,
    depends_on: tuple[str, ...],
    timeout: str | None,
    as_json: bool,
) -> None:
    """Give ROLE a task: PROMPT, or `-` for the standard input. Prints its key."""
    given = {"role": role, "prompt": _text(prompt), "key": key, "depends_on": list(depends_on), "timeout": timeout}
    [added] = desk.task({name: value for name, value in given.items() if value})
    shown(added, as_json, added["key"])


@command.command()
@click.argument("name")
@click.argument("data", default="null")
@click.option("--key", help="Posted again with it, it is the same event")
@as_json
@seated
def event(desk: Desk, name: str, data: str, key: str | None, as_json: bool) -> None:
    """Post the event NAME, with DATA as JSON (`-`: from the standard input). Prints the runs it started."""
    fired = desk.event(name, _json(_text(data), "DATA"), key=key)
    if as_json or fired["runs"]:
        shown(fired, as_json, "\n".join(fired["runs"]))


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), required=False)
@click.option("--name", help="What it is called [the file's name]")
@click.option("--type", "media_type", help="Its media type [by its name]")
@click.option("--uri", help="Something outside, in place of a file")
@as_json
@seated
def artifact(
    desk: Desk, file: Path | None, name: str | None, media_type: str | None, uri: str | None, as_json: bool
) -> None:
    """Keep FILE (`-` for the standard input, with --name), or tell of a --uri. Prints its id."""
    if (file is None) == (uri is None):
        raise click.UsageError("Give a FILE or a --uri, one of them.")
    if uri is not None:
        added = desk.link(uri, name=name)
    else:
        assert file is not None
        from_stdin = str(file) == "-"
        if from_stdin and not name:
            raise click.UsageError("The standard input has no name; give it one with --name.")
        content: Any = _stdin().read() if from_stdin else _readable(file)
        added = desk.artifact(name or file.name, content, media_type=media_type)
    shown(added, as_json, added["id"])


@command.group()
def memory() -> None:
    """What the automation remembers from one run to the next."""


@memory.command("get")
@click.argument("key")
@seated
def recall(desk: Desk, key: str) -> None:
    """Print the value under KEY as JSON. Ends with 1 if nothing is remembered there."""
    nothing = object()
    value = desk.recall(key, nothing)
    if value is nothing:
        sys.exit(1)
    click.echo(json.dumps(value, ensure_ascii=False))


@memory.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--ttl", help="For how long: 7d, 12h [for good]")
@click.option("--confidence", type=click.FloatRange(0, 1), help="How sure it is, from 0 to 1")
@seated
def remember(desk: Desk, key: str, value: str, ttl: str | None, confidence: float | None) -> None:
    """Remember VALUE under KEY: JSON as such, all else as text; `-` takes it from the standard input."""
    text = _text(value)
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = text
    desk.remember(key, parsed, ttl=ttl, confidence=confidence)


@memory.command("forget")
@click.argument("key")
@seated
def forget(desk: Desk, key: str) -> None:
    """Forget what is under KEY."""
    desk.forget(key)


@memory.command("list")
@as_json
@seated
def list_memory(desk: Desk, as_json: bool) -> None:
    """Print all that is remembered, a line each."""
    for each in desk.memory():
        shown(each, as_json, f"{each['key']}\t{json.dumps(each['value'], ensure_ascii=False)}")


@command.group()
def checkpoint() -> None:
    """Where the next attempt goes on."""


@checkpoint.command("save")
@click.argument("file", type=click.File("rb"), default="-")
@seated
def save(desk: Desk, file: BinaryIO) -> None:
    """Keep the content of FILE, or of the standard input, in place of what was kept before."""
    desk.checkpoint(file.read())


@checkpoint.command("load")
@seated
def load(desk: Desk) -> None:
    """Print the last checkpoint as it was saved. Ends with 1 if there is none."""
    data = desk.last_checkpoint()
    if data is None:
        sys.exit(1)
    sys.stdout.buffer.write(data)


@command.command()
@click.argument("question")
@click.option("--option", "options", multiple=True, help="id=label, to approve; id=!label, to refuse. Repeatable")
@click.option("--detail", default=None, help="A JSON object that the person is shown")
@click.option("--key", help="Asked again with it, it is the same question and has the same answer")
@click.option("--wait", type=Seconds(), default=None, help="Give up after so long [wait for the answer]")
@as_json
@seated
def ask(
    desk: Desk,
    question: str,
    options: tuple[str, ...],
    detail: str | None,
    key: str | None,
    wait: float | None,
    as_json: bool,
) -> None:
    """Ask a person, and wait. Prints the option chosen, and what they wrote.

    Ends with 0 when it was approved, 1 when it was refused, 3 when nobody has answered."""
    answered = desk.ask(
        question,
        options=[_option(each) for each in options] or None,
        detail=None if detail is None else _object(detail, "--detail"),
        key=key,
        wait=wait,
    )
    if answered["approved"] is None:
        shown(answered, as_json, answered["status"])
        sys.exit(NOBODY_ANSWERED)
    shown(answered, as_json, "\n".join(filter(None, [answered["option_id"], answered["text"]])))
    sys.exit(0 if answered["approved"] else REFUSED)


def _option(text: str) -> dict[str, Any]:
    identity, equals, label = text.partition("=")
    if not identity or not equals or not label.removeprefix("!"):
        raise click.UsageError(f"--option is id=label or id=!label, not {text!r}.")
    return {"id": identity, "label": label.removeprefix("!"), "approves": not label.startswith("!")}


def _stdin() -> BinaryIO:
    return sys.stdin.buffer


def _text(given: str) -> str:
    return _stdin().read().decode("utf-8", "replace") if given == "-" else given


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as wrong:
        raise Invalid(f"{what} is not JSON: {wrong}.") from None


def _object(text: str, what: str) -> dict[str, Any]:
    value = _json(text, what)
    if not isinstance(value, dict):
        raise Invalid(f'{what} is a JSON object, such as {{"a": 1}}.')
    return value


def _readable(file: Path) -> Path:
    try:
        file.open("rb").close()
    except OSError as failure:
        raise RotaError(f"Cannot read {file}: {failure.strerror}.") from None
    return file
