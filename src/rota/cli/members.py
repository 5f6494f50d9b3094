"""`rota members`: who belongs to the workspace."""

from urllib.parse import quote

import click

from rota.cli.noun import Rota, asks_rota, changing, pages, with_fields
from rota.cli.showing import Column, Item, brief, local
from rota.errors import NotFound

command = click.Group(
    "members", help="List, show, invite, change and remove members; a person is named by e-mail or id."
)

LEVELS = ("viewer", "member", "admin")
MEMBERS = [
    Column("id", "id", whole=True),
    Column("name", "name"),
    Column("e-mail", "email"),
    Column("level", "level"),
    Column("account", lambda member: "off" if member["disabled"] else "on"),
    Column("since", lambda member: brief(member["created_at"])),
]


def _facts(member: Item) -> list[tuple[str, object]]:
    return [
        ("name", member["name"]),
        ("e-mail", member["email"]),
        ("id", member["id"]),
        ("level", member["level"]),
        ("account", "off" if member["disabled"] else "on"),
        ("since", local(member["created_at"])),
    ]


def _id(rota: Rota, given: str) -> str:
    if "@" not in given:
        return quote(given, safe="")
    for member in rota.all_of("/members"):
        if (member["email"] or "").lower() == given.strip().lower():
            return str(member["id"])
    raise NotFound("There is no member with this e-mail address, or you may not see it.")


@command.command("list")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None) -> None:
    """Members, newest account first. E-mail addresses are shown to admins."""
    rota.listed("/members", MEMBERS, limit=limit)


@command.command()
@click.argument("member")
@asks_rota
def show(rota: Rota, member: str) -> None:
    """One member."""
    rota.shown(rota.ask("GET", f"/members/{_id(rota, member)}"), _facts)


@command.command()
@click.argument("email")
@click.option("--name", help="For a new account [the e-mail's first part]")
@click.option("--level", type=click.Choice(LEVELS), help="What they may do [member]")
@asks_rota
def invite(rota: Rota, email: str, name: str | None, level: str | None) -> None:
    """Make somebody a member. Prints the link that signs in who has no account yet, once."""
    invited = rota.ask("POST", "/members", with_fields({"email": email, "name": name, "level": level}, ()))
    rota.said(invited, _invited(invited))


def _invited(member: Item) -> str:
    return str(member["link"] or f"{member['email']} is a {member['level']}, and signs in as before.")


@command.command()
@click.argument("member")
@click.option("--level", type=click.Choice(LEVELS), help="What they may do")
@click.option("--disable/--enable", "disabled", default=None, help="Switch their account off or on")
@asks_rota
def edit(rota: Rota, member: str, level: str | None, disabled: bool | None) -> None:
    """Raise or lower a member, or switch their account off or on."""
    given = changing(with_fields({"level": level, "disabled": disabled}, ()))
    changed = rota.ask("PATCH", f"/members/{_id(rota, member)}", given)
    rota.said(changed, f"{changed['name']} is a {changed['level']}{', switched off' if changed['disabled'] else ''}.")


@command.command()
@click.argument("member")
@asks_rota
def remove(rota: Rota, member: str) -> None:
    """Take somebody out: their grants, tokens and logins end at once. Their automations stay and skip."""
    rota.said(rota.ask("DELETE", f"/members/{_id(rota, member)}"), f"{member} is no member any more.")


@command.command()
@click.argument("member")
@asks_rota
def link(rota: Rota, member: str) -> None:
    """Print a new one-time sign-in link for somebody who lost theirs."""
    made = rota.ask("POST", f"/members/{_id(rota, member)}/link")
    rota.said(made, made["link"])
