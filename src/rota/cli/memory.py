"""`rota memory`: what an automation remembers from one run to the next, seen and mended by hand."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from rota.cli import showing
from rota.cli.noun import KEY, REF, Rota, asks_rota, json_of, pages, text_of, with_fields
from rota.cli.showing import Column, Item, brief, figure, local
from rota.errors import Invalid

command = click.Group("memory", help="List, read, set and delete what an automation remembers.")

MEMORY = [
    Column("key", "key", whole=True),
    Column("sure", lambda kept: None if kept["confidence"] is None else figure(kept["confidence"])),
    Column("changed", lambda kept: brief(kept["updated_at"])),
    Column("until", lambda kept: brief(kept["expires_at"])),
    Column("value", lambda kept: showing.as_json(kept["value"], indent=None)),
]


@command.command("list")
@click.argument("automation", type=REF)
@pages
@asks_rota
def list_(rota: Rota, automation: str, limit: int | None) -> None:
    """What an AUTOMATION remembers, by key. What has expired is not there."""
    rota.listed(f"/automations/{automation}/memory", MEMORY, limit=limit)


@command.command()
@click.argument("automation", type=REF)
@click.argument("key", type=KEY)
@asks_rota
def get(rota: Rota, automation: str, key: str) -> None:
    """Print the value under KEY as JSON; with --json also how sure it is, until when, and whose it is."""
    kept = rota.ask("GET", f"/automations/{automation}/memory/{key}")
    click.echo(showing.as_json(kept if rota.as_json else kept["value"]))


@command.command("set")
@click.argument("automation", type=REF)
@click.argument("key", type=KEY)
@click.argument("value", required=False)
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Take the value from a file instead")
@click.option("--text", "as_text", is_flag=True, help="The value is text, not JSON")
@click.option("--ttl", help="For how long: 7d, 12h [for good]")
@click.option("--confidence", type=click.FloatRange(0, 1), help="How sure it is, from 0 to 1")
@asks_rota
def set_(
    rota: Rota, automation: str, key: str, value: str | None, file: Path | None, as_text: bool, **given: Any
) -> None:
    """Remember VALUE under KEY, in place of the one before: JSON, or `-` for the standard input."""
    text = _given(value, file)
    body = with_fields(given, ()) | {"value": text if as_text else json_of(text, "VALUE", "; --text takes it as text")}
    kept = rota.ask("PUT", f"/automations/{automation}/memory/{key}", body)
    rota.said(kept, _kept(kept))


def _given(value: str | None, file: Path | None) -> str:
    if (value is None) == (file is None):
        raise Invalid("Give a VALUE or a --file, one of them.", field="--file")
    if file is None:
        return text_of(value or "")
    try:
        return file.read_text(encoding="utf-8")
    except OSError as failure:
        raise Invalid(f"{file} cannot be read: {failure.strerror}.", field="--file") from None
    except UnicodeDecodeError:
        raise Invalid(f"{file} is not UTF-8.", field="--file") from None


def _kept(kept: Item) -> str:
    until = kept["expires_at"]
    return f"{kept['key']} is remembered{f' until {local(until)}' if until else ''}."


@command.command()
@click.argument("automation", type=REF)
@click.argument("key", type=KEY)
@asks_rota
def delete(rota: Rota, automation: str, key: str) -> None:
    """Forget what is under KEY."""
    kept = rota.seen(f"/automations/{automation}/memory/{key}")  # what was spelled wrong is told, not passed by
    gone = rota.ask("DELETE", f"/automations/{automation}/memory/{key}")
    rota.said(gone, f"{kept['key']} is forgotten." if kept else f"Nothing is remembered under {unquote(key)} now.")
