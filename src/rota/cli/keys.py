"""`rota keys`: the vault's ring of keys, for whoever can reach the database and the home."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from rota.access import key_ring, sealing
from rota.cli import options, showing
from rota.cli.showing import Column
from rota.daemon import database
from rota.db import sealed
from rota.errors import Invalid
from rota.settings import Settings

COLUMNS = (
    Column("key", "id", whole=True),
    Column("secrets", "secrets"),
    Column("use", lambda key: "seals what is new" if key["newest"] else "opens what is old"),
)


@click.group("keys")
def command() -> None:
    """Turn the vault's ring of keys, and see what is sealed with which."""


@command.command("list")
@options.home
def show(home: Path | None) -> None:
    """Print the keys by id, the one that seals first, and how many secrets each has sealed."""
    for line in showing.table(COLUMNS, asyncio.run(_show(options.settings_with(home=home))), within=showing.room()):
        click.echo(line)


async def _show(settings: Settings) -> list[dict[str, Any]]:
    async with database(settings) as (db, _), db.connection() as conn:
        vault = await sealing.open_for(conn, settings.home, settings.vault_keys)
        used = await sealed.counts(conn)
    return [{"id": each, "secrets": used.get(each, 0), "newest": each == vault.newest} for each in vault.key_ids]


@command.command("rotate")
@options.home
def rotate(home: Path | None) -> None:
    """Make a new key and seal everything with it, while Rota runs. The old ones stay until they are forgotten."""
    settings = _with_file(options.settings_with(home=home))
    click.echo(asyncio.run(_reseal(settings, turn=True)))


@command.command("reseal")
@options.home
def reseal(home: Path | None) -> None:
    """Seal everything with the first key of the ring."""
    click.echo(asyncio.run(_reseal(options.settings_with(home=home))))


async def _reseal(settings: Settings, *, turn: bool = False) -> str:
    async with database(settings) as (db, _):
        async with db.connection() as conn:
            vault = await sealing.open_for(conn, settings.home, settings.vault_keys)
            if turn:
                key_ring.turn(settings.home)
            stale = sum(count for key_id, count in (await sealed.counts(conn)).items() if key_id != vault.newest)
        with click.progressbar(label="Sealing", show_pos=True, length=stale, file=sys.stderr) as bar:
            done = await sealing.reseal(db, vault, told=bar.update)
        return f"Sealed anew with {vault.newest}: {done}."


@command.command("forget")
@click.argument("key")
@options.home
def forget(key: str, home: Path | None) -> None:
    """Take a key out of the ring. Refused while anything is sealed with it; backups from before still need it."""
    settings = _with_file(options.settings_with(home=home))
    asyncio.run(_forget(settings, key))
    click.echo(f"{key} is forgotten.")


async def _forget(settings: Settings, key: str) -> None:
    async with database(settings) as (db, _), db.transaction() as conn:
        await sealing.forget(conn, settings.home, key)


def _with_file(settings: Settings) -> Settings:
    if settings.vault_keys:
        raise Invalid(
            "The ring comes from ROTA_VAULT_KEYS: change it there, restart, then `rota keys reseal`.",
            field="ROTA_VAULT_KEYS",
        )
    return settings
