"""`rota sign-in`: a new one-time link, for whoever can reach the database."""

import asyncio
from pathlib import Path

import click

from rota.cli import options
from rota.cli.operating import link
from rota.daemon import database
from rota.settings import Settings


@click.command("sign-in")
@options.home
@options.host
@options.port
@click.option("--user", help="E-mail address of whom it signs in; else the workspace's first admin")
def command(home: Path | None, host: str | None, port: int | None, user: str | None) -> None:
    """Print a link that signs somebody in, once.

    With --user, the passwords, links and logins that an admin may have had a hand in end: who opens the link is that
    person, and may be invited by any workspace.
    """
    settings = options.settings_with(home=home, host=host, port=port)
    secret = asyncio.run(_secret(settings, user))
    click.echo(link(settings, secret, chosen=host is not None or port is not None))


async def _secret(settings: Settings, user: str | None) -> str:
    from rota.access import signing_in  # noqa: PLC0415 — after the options were checked
    from rota.roster import members  # noqa: PLC0415
    from rota.roster.first_start import settle_in  # noqa: PLC0415

    async with database(settings) as (db, _), db.transaction() as conn:
        caller = (await settle_in(conn, settings.workspace)).caller
        if user:
            return await members.link_as_operator(conn, user)
        return await signing_in.create_link(conn, caller.user_id)
