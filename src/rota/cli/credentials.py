"""`rota credentials`: secrets for agents. Values go in and never come out."""

import click

from rota.cli.noun import REF, Rota, asks_rota, changing, each_of, pages, secret, with_fields
from rota.cli.showing import Column, Item, brief, local

command = click.Group("credentials", help="List, save and delete secrets for agents. Never shows a value.")

CREDENTIALS = [
    Column("name", "name", whole=True),
    Column("usable by", "usable_by"),
    Column("used by", lambda credential: each_of(each["slug"] for each in credential["used_by"])),
    Column("last used", lambda credential: brief(credential["last_used_at"])),
    Column("description", "description"),
]
described = click.option("--description", help="What it is for")
usable = click.option("--usable-by", type=click.Choice(["admin", "member"]), help="Who may name it in automations")


def _facts(credential: Item) -> list[tuple[str, object]]:
    kept = ("name", "id", "description")
    return [
        *((name, credential[name]) for name in kept),
        ("usable by", credential["usable_by"]),
        ("used by", "\n".join(f"{each['kind']} {each['slug']}" for each in credential["used_by"])),
        ("made by", credential["created_by"]),
        ("made", local(credential["created_at"])),
        ("changed", local(credential["updated_at"])),
        ("last used", local(credential["last_used_at"])),
    ]


@command.command("list")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None) -> None:
    """Credentials, newest first, and the agents and automations that name them."""
    rota.listed("/credentials", CREDENTIALS, limit=limit)


@command.command()
@click.argument("credential", type=REF)
@asks_rota
def show(rota: Rota, credential: str) -> None:
    """One credential, by name or id. Never its value."""
    rota.shown(rota.ask("GET", f"/credentials/{credential}"), _facts)


@command.command()
@click.argument("name")
@described
@usable
@asks_rota
def create(rota: Rota, name: str, description: str | None, usable_by: str | None) -> None:
    """Save a secret under a NAME. Its value is asked for, or read from the standard input."""
    given = with_fields({"name": name, "description": description, "usable_by": usable_by}, ())
    saved = rota.ask("POST", "/credentials", given | {"value": secret("Value")})
    rota.said(saved, f"{saved['name']} is saved.")


@command.command()
@click.argument("credential", type=REF)
@click.option("--value", "anew", is_flag=True, help="Give it another value: asked for, or from the standard input")
@described
@usable
@asks_rota
def edit(rota: Rota, credential: str, anew: bool, description: str | None, usable_by: str | None) -> None:
    """Give it another value, which the next attempt gets, or say anew who may use it."""
    value = secret("Value") if anew else None
    given = changing(with_fields({"description": description, "usable_by": usable_by, "value": value}, ()))
    saved = rota.ask("PATCH", f"/credentials/{credential}", given)
    rota.said(saved, f"{saved['name']} is saved.")


@command.command()
@click.argument("credential", type=REF)
@asks_rota
def delete(rota: Rota, credential: str) -> None:
    """Forget a credential for good. Refused while an agent or automation names it."""
    rota.said(rota.ask("DELETE", f"/credentials/{credential}"), f"{credential} is deleted.")
