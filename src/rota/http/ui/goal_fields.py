"""What stands in the form of a goal: its fields and the rows of its roles and tasks as they were typed, and what they
mean to the API."""

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData

from rota.errors import Invalid
from rota.http.bodies import clean_text
from rota.http.ui import forms

PLAIN = ("goal", "title", "draft")
ROLE, TASK = ("name", "agent"), ("key", "role", "prompt", "depends_on")
FIELDS = {"roles": ROLE, "tasks": TASK}
MOST = {"roles": 20, "tasks": 50}  # rows of the form; more are added on the session's page, or by the API

Row = dict[str, str]


@dataclass(slots=True)
class Goal:
    """`fresh` is the row that has just come, such as `roles.1`; nothing is to be saved yet if it is `rearranged`."""

    fields: dict[str, str]
    rows: dict[str, list[Row]]
    rearranged: bool = False
    fresh: str = ""

    def typed(self) -> dict[str, str]:
        """By the names that the API gives its fields."""
        told = {
            f"{kind}.{at}.{name}": text
            for kind, rows in self.rows.items()
            for at, row in enumerate(rows)
            for name, text in row.items()
        }
        return self.fields | told

    def values(self) -> dict[str, Any]:
        """As the API takes it. A task without a role is the first one's."""
        roles = [{name: text.strip() for name, text in row.items()} for row in self.rows["roles"]]
        lead = roles[0]["name"] if roles else ""
        tasks = [task_of(row, lead, at) for at, row in enumerate(self.rows["tasks"])]
        return {
            "kind": "background", "goal": said(self.fields["goal"]), "title": self.fields["title"].strip() or None,
            "roles": roles, "tasks": tasks, "draft": bool(self.fields["draft"]),
        }  # fmt: skip

    def rearrange(self, pressed: str) -> None:
        """A button of the form that only adds a row or takes one away: `add-roles`, `remove-tasks.1`."""
        wanted, _, what = pressed.partition("-")
        kind, _, at = what.partition(".")
        rows = self.rows.get(kind, [])
        if wanted == "add" and len(rows) < MOST.get(kind, 0):
            self.fresh = f"{kind}.{len(rows)}"
            rows.append(dict.fromkeys(FIELDS[kind], ""))
        elif wanted == "remove" and at.isdecimal() and int(at) < len(rows):
            del rows[int(at)]
        self.rearranged = wanted in {"add", "remove"}

    def trim(self) -> None:
        """Leave out rows that nobody wrote in. An agent is always chosen, so it is the name that makes a role."""
        used = [row for row in self.rows["roles"] if row["name"].strip()]
        self.rows["roles"] = used or self.rows["roles"][:1]
        self.rows["tasks"] = [row for row in self.rows["tasks"] if any(map(str.strip, row.values()))]


def blank() -> Goal:
    rows = {"roles": [{"name": "worker", "agent": ""}], "tasks": [dict.fromkeys(TASK, "")]}
    return Goal(dict.fromkeys(PLAIN, ""), rows)


async def read(request: Request) -> Goal:
    """What somebody sent, field by field."""
    sent = await request.form()
    goal = Goal(await forms.typed(request, *PLAIN), {kind: _rows(sent, kind) for kind in FIELDS})
    goal.rearrange(request.query_params.get("do") or str(sent.get("do", "")))
    if not goal.rearranged:
        goal.trim()
    return goal


def _rows(sent: FormData, kind: str) -> list[Row]:
    names = FIELDS[kind]
    there = [at for at in range(MOST[kind]) if f"{kind}.{at}.{names[0]}" in sent]
    return [{name: _text(sent, f"{kind}.{at}.{name}") for name in names} for at in there]


def _text(sent: FormData, name: str) -> str:
    value = sent.get(name, "")
    return clean_text(value, name) if isinstance(value, str) else ""


def task_of(row: Row, lead: str = "", at: int = 0) -> dict[str, Any]:
    """A task as the API takes it, which knows other ways than a prompt to say what is to be done."""
    prompt = said(row["prompt"])
    if prompt is None:
        raise Invalid("Give a prompt: what is to be done.", field=f"tasks.{at}.prompt")
    return {
        "key": row["key"].strip() or None,
        "role": row["role"].strip() or lead,
        "prompt": prompt,
        "depends_on": row["depends_on"].replace(",", " ").split(),
    }


def said(text: str) -> str | None:
    """What somebody wrote, without the ends of lines that browsers send; None if that is nothing."""
    return text.strip().replace("\r\n", "\n") or None
