"""`rota messages`: what the roles of a session and people tell each other."""

import sys
from typing import Any

import click

from rota.cli.following import NOT_YET
from rota.cli.noun import REF, Rota, asks_rota, each_of, json_of, once, pages, text_of
from rota.cli.options import Seconds
from rota.cli.showing import Column, Item, brief, local
from rota.errors import NotFound

command = click.Group("messages", help="List, show, publish and acknowledge messages of a session.")


def _waits_for(message: Item) -> str:
    return each_of(each["role"] for each in message["deliveries"] if not each["acked_at"])


MESSAGES = [
    Column("id", "id", whole=True),
    Column("from", "from"),
    Column("to", "to"),
    Column("sent", lambda message: brief(message["created_at"])),
    Column("waits for", _waits_for),
    Column("body", "body"),
]


def _facts(message: Item) -> list[tuple[str, object]]:
    acked = (f"{each['role']}: {local(each['acked_at'])}" for each in message["deliveries"])
    return [
        ("id", message["id"]),
        ("from", message["from"]),
        ("to", message["to"]),
        ("sent", local(message["created_at"])),
        ("run", message["run_id"]),
        ("acknowledged", "\n".join([*acked, ""])),
        ("body", message["body"]),
    ]


@command.command("list")
@click.argument("session", type=REF)
@click.option("--role", help="Only what this role was sent, or `user`")
@click.option("--after", type=click.IntRange(0), default=0, help="Only messages with a higher number")
@click.option("--unacked", is_flag=True, help="Only what was not acknowledged")
@click.option("--wait", type=Seconds(), default=0.0, help="If there is none, wait so long for the first: 30s, 5m")
@pages
@asks_rota
def list_(
    rota: Rota, session: str, limit: int | None, role: str | None, after: int, unacked: bool, wait: float
) -> None:
    """Messages of a SESSION, oldest first, and who has not acknowledged them.

    With --wait it ends with 3 if none has come.
    """
    chosen: dict[str, Any] = {"role": role, "after": after, "unacked": unacked}
    page = rota.some_of(f"/sessions/{session}/messages", limit, **chosen)
    if wait and not page["items"] and rota.client.messages(session, **chosen, wait=wait):
        page = rota.some_of(f"/sessions/{session}/messages", limit, **chosen)
    rota.tabled(page, MESSAGES)
    if wait and not page["items"]:
        sys.exit(NOT_YET)


@command.command()
@click.argument("session", type=REF)
@click.argument("message", type=click.IntRange(1))
@asks_rota
def show(rota: Rota, session: str, message: int) -> None:
    """One message in full, by its number, and who has acknowledged it when."""
    found = rota.ask("GET", f"/sessions/{session}/messages", after=message - 1, limit=1)["items"]
    if not found or found[0]["id"] != message:
        raise NotFound(f"There is no message {message} in this session.")
    rota.shown(found[0], _facts)


@command.command()
@click.argument("session", type=REF)
@click.argument("body")
@click.option("--to", default="all", show_default=True, help="A role of the session, `user`, or `all` others")
@click.option("--parse", is_flag=True, help="BODY is JSON, not text")
@once
@asks_rota
def publish(rota: Rota, session: str, body: str, to: str, parse: bool, key: str | None) -> None:
    """Send BODY to one role of a SESSION, or to all (`-`: from the standard input). Prints its number.

    It starts no run: agents find it in their inbox. `rota sessions say` gives an agent a prompt.
    """
    said = text_of(body)
    sent = rota.client.publish(session, json_of(said, "BODY") if parse else said, to=to, key=key)
    rota.said(sent, str(sent["id"]))


@command.command()
@click.argument("session", type=REF)
@click.argument("messages", type=click.IntRange(1), nargs=-1, required=True)
@click.option("--role", default="user", show_default=True, help="Whose inbox they are taken from")
@asks_rota
def ack(rota: Rota, session: str, messages: tuple[int, ...], role: str) -> None:
    """Take MESSAGES off a role's inbox for good, by their numbers. A repeat changes nothing."""
    for each in messages:
        rota.client.ack(session, each, role=role)
        rota.said(None, f"{each} is acknowledged.")
