"""`rota me`: oneself, in this workspace and on this server."""

import sys

import click

from rota.cli.noun import REF, Rota, asks_rota, standard_input
from rota.cli.showing import Column, Item, brief
from rota.errors import Invalid

command = click.Group("me", help="Show and change who you are: name, password, where you are signed in.")

LOGINS = [
    Column("id", "id", whole=True),
    Column("last used", lambda login: brief(login["last_used_at"])),
    Column("since", lambda login: brief(login["created_at"])),
    Column("until", lambda login: brief(login["expires_at"])),
    Column("address", "ip"),
    Column("browser", "user_agent"),
]


def _facts(person: Item) -> list[tuple[str, object]]:
    return [
        ("name", person["name"]),
        ("e-mail", person["email"]),
        ("id", person["id"]),
        ("level", person["level"]),
        ("password", "set" if person["has_password"] else "not set"),
        ("known to", "\n".join(each["issuer"] for each in person["identities"])),
    ]


@command.command()
@asks_rota
def show(rota: Rota) -> None:
    """Whose token this is, and what they may do here."""
    rota.shown(rota.ask("GET", "/me"), _facts)


@command.command()
@click.option("--name", required=True, help="Another name, in every workspace")
@asks_rota
def edit(rota: Rota, name: str) -> None:
    """Change your name."""
    saved = rota.ask("PATCH", "/me", {"name": name})
    rota.said(saved, f"You are {saved['name']}.")


@command.command()
@asks_rota
def password(rota: Rota) -> None:
    """Change your password: the present and the new one are asked for, or two lines of the standard input.

    All your logins end.
    """
    current, new = _passwords()
    changed = rota.ask("PUT", "/me/password", {"current": current, "new": new})
    rota.said(changed, "Your password is changed, and all your logins have ended.")


def _passwords() -> tuple[str, str]:
    """Never arguments, which every process of the machine could read."""
    if sys.stdin.isatty():
        current = click.prompt("Present password", hide_input=True, err=True)
        return current, click.prompt("New password", hide_input=True, confirmation_prompt=True, err=True)
    match standard_input().splitlines():
        case [current, new]:
            return current, new
    raise Invalid("Give two lines: the present password, then the new one.", field="-")


@command.command()
@asks_rota
def logins(rota: Rota) -> None:
    """The browsers in which you are signed in, the last used first."""
    rota.tabled(rota.ask("GET", "/me/logins"), LOGINS)


@command.command("sign-out")
@click.argument("login", type=REF, required=False)
@asks_rota
def sign_out(rota: Rota, login: str | None) -> None:
    """Sign out in one browser, by the id that `logins` shows, or in all."""
    if login is None:
        ended = rota.ask("DELETE", "/me/logins")
        rota.said(ended, f"Logins ended: {ended['ended']}.")
    else:
        rota.said(rota.ask("DELETE", f"/me/logins/{login}"), f"{login} is signed out.")
