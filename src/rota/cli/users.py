"""`rota users`: the people of a server, for whoever can reach the database."""

from pathlib import Path
from typing import Any

import click

from rota.cli import options, showing
from rota.cli.operating import in_transaction
from rota.cli.showing import Column

COLUMNS = (
    Column("e-mail", "email", whole=True),
    Column("name", "name"),
    Column("workspaces", lambda person: ", ".join(person["workspaces"])),
    Column("account", lambda person: "switched off" if person["disabled"] else "on"),
)


@click.group("users")
def command() -> None:
    """List people, switch their accounts off and on, and let them sign in with a new identity."""


@command.command("list")
@options.home
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line")
def list_(home: Path | None, as_json: bool) -> None:
    """Show everybody who has an account, and the workspaces they belong to."""

    async def look(conn: Any) -> list[dict[str, Any]]:
        from rota.db import people  # noqa: PLC0415 — after the options were checked

        return await people.everybody(conn)

    for line in showing.listed(COLUMNS, in_transaction(options.settings_with(home=home), look), as_lines=as_json):
        click.echo(line)


@command.command("disable")
@click.argument("email")
@options.home
def disable(email: str, home: Path | None) -> None:
    """Let somebody in nowhere any more.

    They are signed out, their tokens rest, and their grants end with what runs on them. Refused for the last admin of
    a workspace.
    """
    changed = _switch(home, email, off=True)
    click.echo(f"{email} is switched off." if changed else f"{email} was switched off already.")


@command.command("enable")
@click.argument("email")
@options.home
def enable(email: str, home: Path | None) -> None:
    """Let somebody in again. Their tokens work again; grants that ended stay ended."""
    changed = _switch(home, email, off=False)
    click.echo(f"{email} is switched on." if changed else f"{email} was not switched off.")


@command.command("unlink")
@click.argument("email")
@options.home
def unlink(email: str, home: Path | None) -> None:
    """Forget as whom the identity provider knows somebody.

    Who signs in there next with this e-mail address, verified, is them: for a person whom the provider knows anew.
    """

    async def forget(conn: Any) -> bool:
        from rota.roster import members  # noqa: PLC0415

        return await members.unlink_as_operator(conn, email)

    changed = in_transaction(options.settings_with(home=home), forget)
    known = f"{email} is unlinked: who signs in next with this verified address is them."
    click.echo(known if changed else f"{email} was not known to an identity provider.")


def _switch(home: Path | None, email: str, *, off: bool) -> bool:
    async def switch(conn: Any) -> bool:
        from rota.roster import members  # noqa: PLC0415

        return await members.switch_as_operator(conn, email, off=off)

    changed: bool = in_transaction(options.settings_with(home=home), switch)
    return changed
