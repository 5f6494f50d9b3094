"""`rota sign-in`: a new one-time link, for whoever can reach the database."""

import asyncio
from pathlib import Path

import click

from rota.cli import options
from rota.daemon import address, database
from rota.settings import Settings


@click.command("sign-in")
@options.home
@options.host
@options.port
def command(home: Path | None, host: str | None, port: int | None) -> None:
    """Print a link that signs the workspace's admin in, once. For a server that `rota serve` runs."""
    settings = options.settings_with(home=home, host=host, port=port)
    click.echo(asyncio.run(_link(settings)))


async def _link(settings: Settings) -> str:
    from rota.access import signing_in  # noqa: PLC0415 — after the options were checked
    from rota.roster.first_start import settle_in  # noqa: PLC0415

    async with database(settings) as (db, _), db.transaction() as conn:
        caller = (await settle_in(conn, settings.workspace)).caller
        return f"{address(settings, None)}/sign-in?token={await signing_in.create_link(conn, caller.user_id)}"
