"""`rota notifications`: what you should know."""

import click

from rota.cli.noun import REF, Rota, asks_rota, pages, secret, with_fields
from rota.cli.showing import Column, Item, brief
from rota.errors import Invalid
from rota.model.notification import Kind

command = click.Group("notifications", help="List and read your notifications, and choose what you hear of and where.")

NOTIFICATIONS = [
    Column("id", "id", whole=True),
    Column("when", lambda told: brief(told["updated_at"])),
    Column("kind", "kind"),
    Column("times", "count"),
    Column("read", lambda told: "yes" if told["read_at"] else "no"),
    Column("title", "title"),
    Column("detail", "detail"),
]

CHOICES = [
    Column("kind", "kind", whole=True),
    Column("bell", lambda choice: "yes" if choice["bell"] else "no"),
    Column("outward", lambda choice: "yes" if choice["outward"] else "no"),
]
TARGETS = [
    Column("id", "id", whole=True),
    Column("name", "name"),
    Column("by", "scheme"),
    Column("waiting", "waiting"),
    Column("sent", lambda target: brief(target["sent_at"])),
    Column("failed", lambda target: brief(target["failed_at"])),
    Column("error", "error"),
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


@command.command()
@asks_rota
def choices(rota: Rota) -> None:
    """What you hear of, in the bell and outward."""
    _chosen(rota, rota.ask("GET", "/notifications/choices"))


@command.command()
@click.argument("kind", type=click.Choice(list(map(str, Kind))), metavar="KIND")
@click.option("--bell/--no-bell", default=None, help="Hear of it in the bell, or not")
@click.option("--outward/--no-outward", default=None, help="Be told of it outside, or not")
@asks_rota
def choose(rota: Rota, kind: str, bell: bool | None, outward: bool | None) -> None:
    """Choose how you hear of one KIND. What is left out stays as it is."""
    given = with_fields({"bell": bell, "outward": outward}, ())
    if not given:
        raise Invalid("Say what is to change: --bell, --no-bell, --outward or --no-outward.", field="--bell")
    before = rota.ask("GET", "/notifications/choices")[kind] if len(given) == 1 else {}
    _chosen(rota, rota.ask("PUT", "/notifications/choices", {kind: before | given}))


def _chosen(rota: Rota, choices: Item) -> None:
    if rota.as_json:
        rota.said(choices, "")
    else:
        items = [{"kind": kind, **choice} for kind, choice in choices.items()]
        rota.tabled({"items": items, "next_cursor": None}, CHOICES)


@command.command()
@asks_rota
def targets(rota: Rota) -> None:
    """Where you are told outside, newest first, and how that goes. Never an address."""
    rota.tabled(rota.ask("GET", "/notifications/targets"), TARGETS)


@command.command("add-target")
@click.argument("name")
@asks_rota
def add_target(rota: Rota, name: str) -> None:
    """Be told at an Apprise URL, which is asked for or read from the standard input. It is never shown again."""
    saved = rota.ask("POST", "/notifications/targets", {"name": name, "url": secret("URL")})
    rota.said(saved, str(saved["id"]))


@command.command("test-target")
@click.argument("target", type=REF)
@asks_rota
def test_target(rota: Rota, target: str) -> None:
    """Send a test; `targets` shows soon what came of it."""
    rota.said(rota.ask("POST", f"/notifications/targets/{target}/test"), "It is on its way; see `targets`.")


@command.command("delete-target")
@click.argument("target", type=REF)
@asks_rota
def delete_target(rota: Rota, target: str) -> None:
    """Forget a target, with what waits for it."""
    rota.said(rota.ask("DELETE", f"/notifications/targets/{target}"), f"{target} is deleted.")
