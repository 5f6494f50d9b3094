"""`rota workspaces`: the workspaces of a server, for whoever can reach the database."""

from pathlib import Path
from typing import Any

import click

from rota.cli import options, showing
from rota.cli.operating import in_transaction, link
from rota.cli.showing import Column

COLUMNS = (
    Column("slug", "slug", whole=True),
    Column("name", "name"),
    Column("members", "members"),
    Column("made", lambda workspace: showing.brief(workspace["created_at"].isoformat())),
)


@click.group("workspaces")
def command() -> None:
    """Make workspaces beside the first one, and list them."""


@command.command("create")
@click.argument("slug")
@options.home
@options.host
@options.port
@click.option("--name", help="Its name; else one made of the slug")
def create(slug: str, home: Path | None, host: str | None, port: int | None, name: str | None) -> None:
    """Make a workspace with an admin of its own, and print a link that signs that admin in, once.

    They invite the others. `ROTA_WORKSPACE=SLUG rota sign-in` prints another link.
    """
    settings = options.settings_with(home=home, host=host, port=port)

    async def make(conn: Any) -> str:
        from rota.access import signing_in  # noqa: PLC0415 — after the options were checked
        from rota.roster import first_start  # noqa: PLC0415

        return await signing_in.create_link(conn, await first_start.make_another(conn, slug, name))

    secret = in_transaction(settings, make)
    click.echo(link(settings, secret, chosen=host is not None or port is not None))


@command.command("list")
@options.home
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line")
def list_(home: Path | None, as_json: bool) -> None:
    """Show all workspaces of the server, oldest first."""

    async def look(conn: Any) -> list[dict[str, Any]]:
        from rota.db import workspaces  # noqa: PLC0415

        return await workspaces.everywhere(conn)

    for line in showing.listed(COLUMNS, in_transaction(options.settings_with(home=home), look), as_lines=as_json):
        click.echo(line)
