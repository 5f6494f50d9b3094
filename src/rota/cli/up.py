"""`rota up`: everything in one process, with something to look at."""

import asyncio
from pathlib import Path

import click

from rota.cli import options
from rota.daemon import Ready, only_one, serve
from rota.logs import set_up
from rota.settings import Settings


@click.command("up")
@options.home
@options.host
@options.port
@click.option("--no-starters", is_flag=True, help="Leave out the starter automations at the first start")
def command(home: Path | None, host: str | None, port: int | None, no_starters: bool) -> None:
    """Run everything. Without ROTA_DATABASE_URL, on an embedded PostgreSQL under the home."""
    settings = options.settings_with(home=home, host=host, port=port)
    with only_one(settings.home) as say_where:

        async def started(ready: Ready) -> None:
            say_where(ready.url)
            await greet(ready, starters=not no_starters and ready.settings.local_agents)

        set_up(settings.log_level, file=settings.log_file)
        asyncio.run(serve(settings, started=started))


async def greet(ready: Ready, *, starters: bool) -> None:
    """Settle in at the first start, and print where to sign in."""
    from rota import starters as installed  # noqa: PLC0415 — only the first start needs them
    from rota.access import signing_in  # noqa: PLC0415
    from rota.db.listener import RUNS, TRIGGERS  # noqa: PLC0415
    from rota.roster.first_start import settle_in  # noqa: PLC0415

    async with ready.db.transaction() as conn:
        settled = await settle_in(conn, ready.settings.workspace)
        if settled.first and starters:
            await installed.install(conn, settled.caller)
        link = await signing_in.create_link(conn, settled.caller.user_id)
    ready.wakes.send(TRIGGERS)
    ready.wakes.send(RUNS)
    click.echo(_welcome(ready.settings, ready.url, link), err=True)


def _welcome(settings: Settings, url: str, link: str) -> str:
    return f"""
  {click.style("Rota is up", bold=True)} at {url}, home {settings.home}

  Sign in once with this link:
  {click.style(f"{url}/sign-in?token={link}", fg="cyan", underline=True)}

  For scripts:  rota tokens create NAME
  Stop with Ctrl-C.
"""
