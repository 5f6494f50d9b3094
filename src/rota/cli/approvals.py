"""`rota approvals`: what agents ask, and the answers that they wait for."""

import click

from rota.cli.noun import REF, Rota, asks_rota, each_of, pages
from rota.cli.showing import Column, Item, brief, local

command = click.Group("approvals", help="List, show and answer what agents ask.")

STATUSES = ("pending", "approved", "refused", "expired", "cancelled", "any")
APPROVALS = [
    Column("id", "id", whole=True),
    Column("status", "status"),
    Column("question", "question"),
    Column("answers", lambda approval: each_of(each["id"] for each in approval["options"])),
    Column("asked", lambda approval: brief(approval["created_at"])),
    Column("expires", lambda approval: brief(approval["expires_at"])),
]


def _facts(approval: Item) -> list[tuple[str, object]]:
    answers = (f"{each['id']}: {each['label']}" for each in approval["options"])
    return [
        ("id", approval["id"]),
        ("status", approval["status"]),
        ("question", approval["question"]),
        ("detail", approval["detail"]),
        ("answers", "\n".join(answers)),
        ("answered", approval["option_id"]),
        ("note", approval["text"]),
        ("by", approval["answered_by_name"]),
        ("asked", local(approval["created_at"])),
        ("expires", local(approval["expires_at"])),
        ("run", f"{approval['run_id']} ({approval['run_status']})"),
        ("session", approval["session_id"]),
    ]


@command.command("list")
@click.option("--status", type=click.Choice(STATUSES), default="pending", show_default=True)
@click.option("--mine", is_flag=True, help="Only those on your own automations and sessions")
@click.option("--session", help="Only in this one, by its id")
@pages
@asks_rota
def list_(rota: Rota, limit: int | None, status: str, mine: bool, session: str | None) -> None:
    """Questions of agents, newest first; those that wait, unless told."""
    wanted = None if status == "any" else status
    rota.listed("/approvals", APPROVALS, limit=limit, status=wanted, mine=mine or None, session=session)


@command.command()
@click.argument("approval", type=REF)
@asks_rota
def show(rota: Rota, approval: str) -> None:
    """One question, and its answer if it has one."""
    rota.shown(rota.ask("GET", f"/approvals/{approval}"), _facts)


@command.command()
@click.argument("approval", type=REF)
@click.argument("answer")
@click.option("--text", help="A note to the agent")
@asks_rota
def answer(rota: Rota, approval: str, answer: str, text: str | None) -> None:
    """Answer for good, with `approve`, `refuse` or an option's id. The run goes on."""
    given = rota.ask("POST", f"/approvals/{approval}", {"answer": answer, "text": text})
    rota.said(given, f"{given['id']} is {given['status']}.")
