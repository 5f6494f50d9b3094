"""`rota tokens`: API tokens, for whoever can reach the database."""

import asyncio
from pathlib import Path

import click

from rota.cli import options
from rota.daemon import database
from rota.settings import Settings, read_settings


@click.group("tokens")
def command() -> None:
    """Make tokens for scripts."""


@command.command("create")
@click.argument("name")
@options.home
@click.option("--workspace", help="The workspace it is for [ROTA_WORKSPACE, default]")
def create(name: str, home: Path | None, workspace: str | None) -> None:
    """Print a new API token. It is shown this once; only its hash is kept."""
    settings = options.settings_with(home=home, workspace=workspace)
    click.echo(asyncio.run(_create(settings, name)))


async def _create(settings: Settings, name: str) -> str:
    from rota.access import signing_in  # noqa: PLC0415 — after the options were checked
    from rota.roster.first_start import settle_in  # noqa: PLC0415

    async with database(settings) as (db, _), db.transaction() as conn:
        await settle_in(conn, read_settings().workspace)
        return await signing_in.create_token(conn, settings.workspace, name)
