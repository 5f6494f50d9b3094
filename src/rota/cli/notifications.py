"""`rota notifications`: what you should know."""

import click

from rota.cli.noun import REF, Rota, asks_rota, pages
from rota.cli.showing import Column, brief

command = click.Group("notifications", help="List your notifications, and mark them as read.")

NOTIFICATIONS = [
    Column("id", "id", whole=True),
    Column("when", lambda told: brief(told["updated_at"])),
    Column("kind", "kind"),
    Column("times", "count"),
    Column("read", lambda told: "yes" if told["read_at"] else "no"),
    Column("title", "title"),
    Column("detail", "detail"),
]


@command.command("list")
@click.option("--unread/--read", default=None, help="Only those that are unread, or only those that are not")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, unread: bool | None) -> None:
    """Your own notifications, newest first."""
    rota.listed("/notifications", NOTIFICATIONS, limit=limit, unread=unread)


@command.command()
@click.argument("notification", type=REF, required=False)
@asks_rota
def read(rota: Rota, notification: str | None) -> None:
    """Mark one as read, or all of yours."""
    if notification is None:
        rota.said(rota.ask("POST", "/notifications/read"), "All are read.")
    else:
        told = rota.ask("POST", f"/notifications/{notification}/read")
        rota.said(told, f"{told['id']} is read.")
