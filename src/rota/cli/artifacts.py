"""`rota artifacts`: what agents and people left in a session, kept here or pointed to."""

import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from rota.cli import showing
from rota.cli.noun import REF, Rota, asks_rota, once, pages, progress, with_fields
from rota.cli.saving import STANDARD_OUTPUT, output, saved_to
from rota.cli.showing import Column, Item, brief, figure
from rota.errors import Broken, Invalid, NotFound
from rota.model.artifact import preview_of

command = click.Group("artifacts", help="List, download and add what is left in a session.")

ARTIFACTS = [
    Column("id", "id", whole=True),
    Column("name", "name"),
    Column("type", "media_type"),
    Column("bytes", lambda artifact: None if artifact["size"] is None else figure(artifact["size"])),
    Column("added", lambda artifact: brief(artifact["created_at"])),
    Column("outside", "uri"),
]


@command.command("list")
@click.argument("session", type=REF)
@pages
@asks_rota
def list_(rota: Rota, session: str, limit: int | None) -> None:
    """What was left in a SESSION, newest first. What is outside has an address instead of a size."""
    rota.listed(f"/sessions/{session}/artifacts", ARTIFACTS, limit=limit)


@command.command()
@click.argument("session", type=REF)
@click.argument("artifact")
@output("its own name, in this directory")
@asks_rota
def download(rota: Rota, session: str, artifact: str, output: Path | None) -> None:
    """Save the content of an ARTIFACT, by its id or name; of several with this name, the newest. Prints the file."""
    if rota.as_json and output == STANDARD_OUTPUT:
        raise Invalid("The content goes to the standard output; leave out --json, or name a file.", field="-o")
    found = _kept(rota, session, artifact)
    file = output or _own_name(found)
    pieces = _checked(found, rota.client.pieces(f"/sessions/{session}/artifacts/{found['id']}/content"))
    if file == STANDARD_OUTPUT and sys.stdout.isatty():
        _read_out(found, pieces)
        return
    with saved_to(file) as written, progress(found["size"], "Downloading") as told:
        for piece in pieces:
            written.write(piece)
            told(len(piece))
    if file != STANDARD_OUTPUT:
        rota.said(found, str(file))


def _kept(rota: Rota, session: str, artifact: str) -> Item:
    """Which one is meant. What is outside has no content here."""
    for each in rota.all_of(f"/sessions/{session}/artifacts"):
        if artifact.lower() == each["id"] or artifact == each["name"]:
            if each["uri"] is not None:
                raise NotFound(f"It is outside, and its content is not kept here: {each['uri']}")
            return each
    raise NotFound("There is no such artifact in this session.")


def _own_name(artifact: Item) -> Path:
    """Agents choose names. One that a shell or a program would read by itself, or take for an option, is not used."""
    name = str(artifact["name"])
    if name.startswith((".", "-")):
        raise Invalid(f"Say where {name!r} is to be written, with -o.", field="-o")
    return Path(name)


def _checked(artifact: Item, pieces: Iterable[bytes]) -> Iterator[bytes]:
    hashed = sha256()
    for piece in pieces:
        hashed.update(piece)
        yield piece
    if hashed.hexdigest() != artifact["sha256"]:
        raise Broken("The content was damaged on its way: its hash is another. Ask again.", code="wrong_hash")


def _read_out(artifact: Item, pieces: Iterable[bytes]) -> None:
    """To people, without what their terminal would obey. Programs get it as it is."""
    if preview_of(artifact) not in {"text", "markdown"}:
        told = f"A terminal cannot show {artifact['media_type']}. Name a file with -o, or use a pipe."
        raise Invalid(told, field="-o")
    text = showing.clean(b"".join(pieces).decode("utf-8", "replace"))
    click.echo(text, nl=not text.endswith("\n"))


@command.command()
@click.argument("session", type=REF)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), required=False)
@click.option("--uri", help="Something outside, in place of a file: https://example.org/pull/7")
@click.option("--name", help="What it is called [the file's name]")
@click.option("--type", "media_type", help="Its media type [by its name]")
@once
@asks_rota
def add(rota: Rota, session: str, file: Path | None, uri: str | None, name: str | None, **given: Any) -> None:
    """Keep FILE in a SESSION (`-` for the standard input, with --name), or tell of a --uri. Prints its id."""
    if (file is None) == (uri is None):
        raise Invalid("Give a FILE or a --uri, one of them.", field="--uri")
    if file is None:
        added = _linked(rota, session, uri=uri, name=name, **given)
    else:
        added = _uploaded(rota, session, file, name, **given)
    rota.said(added, str(added["id"]))


def _linked(rota: Rota, session: str, *, key: str | None, **given: str | None) -> Any:
    return rota.ask("POST", f"/sessions/{session}/artifacts", with_fields(given, ()), key=key)


def _uploaded(rota: Rota, session: str, file: Path, name: str | None, **given: Any) -> Any:
    if str(file) == "-":
        if not name:
            raise Invalid("The standard input has no name; give it one with --name.", field="--name")
        return rota.client.add_artifact(session, name, sys.stdin.buffer.read(), **given)
    try:
        with progress(file.stat().st_size, "Uploading") as told:
            return rota.client.add_artifact(session, name or file.name, file, told=told, **given)
    except OSError as failure:
        raise Invalid(f"{file} cannot be read: {failure.strerror}.", field="FILE") from None
