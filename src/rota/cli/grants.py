"""`rota grants`: whose authority agents run on."""

import click

from rota.cli.noun import REF, Rota, asks_rota, each_of, pages
from rota.cli.showing import Column, Item, brief, local

command = click.Group("grants", help="List, show and revoke grants.")

GRANTS = [
    Column("id", "id", whole=True),
    Column("status", "status"),
    Column("user", "user"),
    Column("made", lambda grant: brief(grant["created_at"])),
    Column("expires", lambda grant: brief(grant["expires_at"])),
    Column("scopes", lambda grant: each_of(grant["scopes"])),
]


def _facts(grant: Item) -> list[tuple[str, object]]:
    return [
        ("id", grant["id"]),
        ("status", grant["status"]),
        ("user", grant["user"]),
        ("account", grant["account_id"]),
        ("scopes", "\n".join(grant["scopes"])),
        ("automations", "\n".join(each["slug"] for each in grant["automations"])),
        ("runs", grant["runs"]),
        ("last run", local(grant["last_run_at"])),
        ("made", local(grant["created_at"])),
        ("expires", local(grant["expires_at"])),
        ("revoked", local(grant["revoked_at"])),
        ("replaces", grant["replaces"]),
    ]


@command.command("list")
@click.option("--status", type=click.Choice(["valid", "revoked", "expired"]), help="Only those")
@click.option("--automation", help="Only of this one: the history of its grants")
@click.option("--user", help="Only of this person, by id")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, status: str | None, automation: str | None, user: str | None) -> None:
    """Grants, newest first: who lets which agents run."""
    rota.listed("/grants", GRANTS, limit=limit, status=status, automation=automation, user=user)


@command.command()
@click.argument("grant", type=REF)
@asks_rota
def show(rota: Rota, grant: str) -> None:
    """One grant: what it allows, which automations run on it now, and what it was used for."""
    rota.shown(rota.ask("GET", f"/grants/{grant}"), _facts)


@command.command()
@click.argument("grant", type=REF)
@asks_rota
def revoke(rota: Rota, grant: str) -> None:
    """End it now: what waits is skipped, what has begun is stopped. Automations skip until their grant is renewed."""
    ended = rota.ask("POST", f"/grants/{grant}/revoke")
    rota.said(ended, f"{ended['id']} is {ended['status']}.")
