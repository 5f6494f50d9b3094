"""What the commands of every noun share: where Rota is, lists that page, and answers for people or for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import Any
from urllib.parse import quote

import click

from rota.cli import options, showing
from rota.cli.showing import Column, Item
from rota.client import Client
from rota.errors import Forbidden, Invalid

PAGE = 100  # as many as the API gives at once
PATIENCE = 10.0
CONNECT_PATIENCE = 2.0
MEGABYTE = 1_000_000
Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rota:
    """The line to one workspace, and how its answers are shown."""

    client: Client
    as_json: bool

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None, **params: Any) -> Any:
        return self.client.request(method, path, body, params=params, key=key)

    def seen(self, path: str) -> Any:
        """What stands there before it is changed; None where the token is for changes only."""
        try:
            return self.ask("GET", path)
        except Forbidden as refused:
            if refused.code != "scope_missing":
                raise
            return None

    def listed(self, path: str, columns: Sequence[Column], *, limit: int | None, **filters: Any) -> None:
        """Print the first so many items of a list, or all of them."""
        self.tabled(self.some_of(path, limit, **filters), columns)

    def tabled(self, page: Mapping[str, Any], columns: Sequence[Column]) -> None:
        if self.as_json:
            click.echo(showing.as_json(page))
            return
        for line in showing.table(columns, page["items"], within=showing.room()):
            click.echo(line)
        if not page["items"]:
            click.secho("There is none.", dim=True, err=True)
        if page["next_cursor"]:
            click.secho(f"There are more: --limit {2 * len(page['items'])}, or --all.", dim=True, err=True)

    def some_of(self, path: str, limit: int | None, *, merges: bool = False, **filters: Any) -> dict[str, Any]:
        """The first so many items as one page, with the cursor of what follows. A page of large ones holds fewer than
        were asked for; so does each of a route that `merges`, which counts what it makes them of."""
        items: list[Item] = []
        cursor, left = None, limit
        while True:
            wanted = PAGE if left is None else min(PAGE, left)
            page: dict[str, Any] = self.ask("GET", path, limit=wanted, cursor=cursor, **filters)
            items += page["items"]
            cursor, left = page["next_cursor"], left and left - (wanted if merges else len(page["items"]))
            if cursor is None or left == 0:
                if len(items) > len(page["items"]):
                    _tell("")
                return {**page, "items": items}
            _tell(f"{len(items)} read …")

    def all_of(self, path: str, **filters: Any) -> Iterator[Item]:
        """Every item, read page by page as they are needed."""
        cursor: str | None = None
        while True:
            page = self.ask("GET", path, limit=PAGE, cursor=cursor, **filters)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def shown(self, answer: Any, facts: Callable[[Any], Iterable[tuple[str, object]]]) -> None:
        """Print one thing, name by name."""
        if self.as_json:
            click.echo(showing.as_json(answer))
            return
        for line in showing.facts(facts(answer)):
            click.echo(line)

    def said(self, answer: Any, text: str) -> None:
        """Print what a change led to. What answers nothing is nothing in JSON too."""
        if not self.as_json:
            click.echo(showing.clean(text))
        elif answer is not None:
            click.echo(showing.as_json(answer))


def _tell(told: str) -> None:
    """How far something long is, on a terminal; at its end the line is left empty."""
    if sys.stderr.isatty():
        click.echo(f"\r{told:<30}\r", nl=False, err=True)


@contextmanager
def counted(label: str) -> Iterator[Callable[[int], None]]:
    """The same for bytes of which nobody knows how many will come; nothing where they come to the same terminal."""
    read, shown = 0, 0

    def add(more: int) -> None:
        nonlocal read, shown
        read += more
        if read - shown >= MEGABYTE and not sys.stdout.isatty():
            shown = read
            _tell(f"{label}: {read / MEGABYTE:,.0f} MB …")

    yield add
    if shown:
        _tell("")


def asks_rota(function: Command) -> Command:
    """Give a command the options that say where Rota is, and the line to it."""

    @options.url
    @options.token
    @click.option("--workspace", envvar="ROTA_WORKSPACE", default="default", help="Its slug [ROTA_WORKSPACE, default]")
    @click.option("--json", "as_json", is_flag=True, help="Print what the API answers, as JSON")
    @wraps(function)
    def called(url: str, token: str | None, workspace: str, as_json: bool, **given: Any) -> Any:
        patience = {"patience": PATIENCE, "connect_patience": CONNECT_PATIENCE}
        with Client(url, token=options.known(token), workspace=workspace, **patience) as client:
            return function(Rota(client, as_json), **given)

    return called


def pages(function: Command) -> Command:
    """Give a list the options that say how much of it."""

    @click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most")
    @click.option("--all", "everything", is_flag=True, help="All of them, however many")
    @wraps(function)
    def called(*given: Any, limit: int, everything: bool, **options: Any) -> Any:
        return function(*given, limit=None if everything else limit, **options)

    return called


owner = click.option("--owner", help="Only theirs: me, or the id of a member; as an admin also an e-mail address")
once = click.option("--key", help="Asked again with it, it is done once")


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar that is told of each step, on a terminal; nothing where nobody looks."""
    if length and sys.stderr.isatty():
        with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
            yield bar.update
    else:
        yield lambda _: None


class Ref(click.ParamType):  # type: ignore[type-arg]
    """What names something and becomes part of an address."""

    def __init__(self, name: str, told: str) -> None:
        self.name, self._told = name, told

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        given = str(value).strip()
        if given in {"", ".", ".."} or "/" in given:  # which would lead to another address
            self.fail(f"Give {self._told}.", param, ctx)
        return quote(given, safe="")


class Json(click.ParamType):  # type: ignore[type-arg]
    """JSON, or `-` for JSON on the standard input."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = text_of(value)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as wrong:
            self.fail(f"This is no JSON: {wrong}.", param, ctx)


REF, KEY, JSON = Ref("ref", "an id or a slug"), Ref("key", "a key"), Json()


def text_of(given: str) -> str:
    """What was given, or the standard input for `-`."""
    return standard_input() if given == "-" else given


def json_of(text: str, what: str, hint: str = "") -> Any:
    """What a text says as JSON, where an option tells whether it is any."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise Invalid(f"{what} is no JSON: {wrong}{hint}.", field=what) from None


def standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise Invalid("What stands on the standard input is not UTF-8.", field="-") from None


def secret(label: str) -> str:
    """Never an argument, which every process of the machine could read: asked for, or from the standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(label, hide_input=True, err=True))
    return standard_input().removesuffix("\n")


fields = click.option(
    "--set", "fields", multiple=True, metavar="FIELD=VALUE",
    help="Any other field that the API takes: JSON, or else text. Repeatable",
)  # fmt: skip


def with_fields(given: dict[str, Any], more: Iterable[str]) -> dict[str, Any]:
    """What was given by options, without those left out, and by `--set`."""
    body = {name: value for name, value in given.items() if value is not None}
    for each in more:
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise Invalid(f"--set takes FIELD=VALUE, such as timeout=30m, not {each!r}.", field="--set")
        try:
            body[name] = json.loads(text)
        except ValueError:
            body[name] = text
    return body


def changing(body: dict[str, Any]) -> dict[str, Any]:
    """What a change is to be, if anything: saving nothing anew would be a revision of nothing."""
    if not body:
        raise Invalid("Say what is to change; --help lists the options.", field="--help")
    return body


def pairs_of(given: Iterable[str], option: str) -> dict[str, str] | None:
    """Options such as `--credential API_KEY=openai`, as an object; None if none was given."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise Invalid(f"{option} takes NAME=VALUE, not {each!r}.", field=option)
        if name in found:
            raise Invalid(f"{option} names {name!r} twice, as {found[name]!r} and {value!r}; give one.", field=option)
        found[name] = value
    return found or None


def each_of(texts: Iterable[Any], most: int = 3) -> str:
    """The first few, with commas."""
    known = list(islice(texts, most + 1))
    return ", ".join(map(str, known[:most])) + (" …" if len(known) > most else "")
