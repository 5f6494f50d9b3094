"""`rota tokens`: API tokens, for whoever can reach the database."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from rota.cli import options, showing
from rota.cli.operating import in_transaction
from rota.cli.showing import Column
from rota.errors import Invalid
from rota.settings import read_settings

SCOPES = ("read", "run", "write", "admin")
COLUMNS = (
    Column("id", "id", whole=True),
    Column("status", "status"),
    Column("name", "name"),
    Column("user", "user"),
    Column("scopes", lambda token: ", ".join(token["scopes"])),
    Column("last used", lambda token: showing.brief(_iso(token["last_used_at"]))),
    Column("until", lambda token: showing.brief(_iso(token["expires_at"]))),
)
workspace_option = click.option("--workspace", help="The workspace they are for [ROTA_WORKSPACE, default]")


@click.group("tokens")
def command() -> None:
    """Make, list and revoke tokens for scripts."""


@command.command("create")
@click.argument("name")
@options.home
@workspace_option
@click.option("--user", help="E-mail address of the member whose token it is; else the first admin's")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="What it is for; else everything")
@click.option("--lasts", help="How long, such as 90d; else until it is revoked")
def create(
    name: str, home: Path | None, workspace: str | None, user: str | None, scopes: tuple[str, ...], lasts: str | None
) -> None:
    """Print a new API token. It is shown this once; only its hash is kept."""
    settings = options.settings_with(home=home, workspace=workspace)
    given: dict[str, Any] = {"email": user, "scopes": scopes or SCOPES, "lasts": _duration(lasts)}

    async def make(conn: Any) -> str:
        from rota.access import tokens  # noqa: PLC0415 — after the options were checked
        from rota.roster.first_start import settle_in  # noqa: PLC0415

        await settle_in(conn, read_settings().workspace)  # the first token may be made before anything else is there
        return await tokens.create_as_operator(conn, settings.workspace, name, **given)

    click.echo(in_transaction(settings, make))


@command.command("list")
@options.home
@workspace_option
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line")
def list_(home: Path | None, workspace: str | None, as_json: bool) -> None:
    """Show the tokens of a workspace, newest first. Never a secret."""
    settings = options.settings_with(home=home, workspace=workspace)

    async def look(conn: Any) -> list[dict[str, Any]]:
        from rota.access import tokens  # noqa: PLC0415

        found = await tokens.all_of(conn, settings.workspace)
        return [{name: value for name, value in each.items() if name != "lasts"} for each in found]

    for line in showing.listed(COLUMNS, in_transaction(settings, look), as_lines=as_json):
        click.echo(line)


@command.command("revoke")
@click.argument("token", type=click.UUID)
@options.home
@workspace_option
def revoke(token: Any, home: Path | None, workspace: str | None) -> None:
    """End a token, by the id that `rota tokens list` shows."""
    settings = options.settings_with(home=home, workspace=workspace)

    async def end(conn: Any) -> None:
        from rota.access import tokens  # noqa: PLC0415

        await tokens.revoke_as_operator(conn, settings.workspace, token)

    in_transaction(settings, end)
    click.echo(f"{token} is revoked.")


def _iso(instant: datetime | None) -> str | None:
    return instant.isoformat() if instant else None


def _duration(text: str | None) -> timedelta | None:
    from rota.model.duration import parse_duration  # noqa: PLC0415

    try:
        return None if text is None else parse_duration(text)
    except Invalid as refused:
        raise click.BadParameter(refused.message, param_hint="--lasts") from None
