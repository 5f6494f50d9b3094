"""A person's own notifications: what is unread, and what they choose to hear of. Nobody else finds them."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from rota.db import notifications, runs
from rota.db.listener import BELL
from rota.db.pool import Connection
from rota.errors import Forbidden, NotFound
from rota.model.caller import Caller
from rota.model.notification import Kind, path, title

Choices = dict[str, dict[str, bool]]
DEFAULT = {"bell": True, "outward": True}


def person(caller: Caller) -> None:
    """An agent at work acts for a person, but is none."""
    if caller.run_id is not None:
        raise Forbidden("Notifications are for people; an agent has none.")


async def page(
    conn: Connection, caller: Caller, *, before: UUID | None, limit: int, unread: bool | None = None
) -> list[dict[str, Any]]:
    person(caller)
    found = await notifications.page(
        conn, caller.workspace_id, caller.user_id, before=before, limit=limit, unread=unread
    )
    return await _shown(conn, caller, found)


async def _shown(conn: Connection, caller: Caller, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """With the error of each run that failed, for its reader only: what is sent outside has no words of agents."""
    failed = [each["run_id"] for each in found if each["kind"] == Kind.RUN_FAILED]
    errors = await runs.reasons(conn, caller.workspace_id, failed) if failed else {}
    return [{**each, "title": title(each), "path": path(each), "error": errors.get(each["run_id"])} for each in found]


async def unread(conn: Connection, caller: Caller) -> int:
    return await notifications.unread(conn, caller.workspace_id, caller.user_id)


async def read(conn: Connection, caller: Caller, told_id: UUID) -> dict[str, Any]:
    """Somebody has seen it; a repeat changes nothing."""
    person(caller)
    await notifications.read(conn, caller.workspace_id, caller.user_id, told_id)
    conn.wake(BELL, [caller.user_id])
    found = await notifications.find(conn, caller.workspace_id, caller.user_id, told_id)
    if not found:
        raise NotFound("There is no such notification.")
    [told] = await _shown(conn, caller, [found])
    return told


async def read_all(conn: Connection, caller: Caller) -> None:
    person(caller)
    await notifications.read_all(conn, caller.workspace_id, caller.user_id)
    conn.wake(BELL, [caller.user_id])


async def choices(conn: Connection, caller: Caller) -> Choices:
    """For each kind, whether the bell rings and whether it is sent outward."""
    person(caller)
    found = await notifications.choices(conn, caller.workspace_id, caller.user_id)
    made = {each["kind"]: {"bell": each["bell"], "outward": each["outward"]} for each in found}
    return {kind.value: made.get(kind.value, DEFAULT) for kind in Kind}


async def choose(conn: Connection, caller: Caller, given: Mapping[str, Mapping[str, bool]]) -> Choices:
    """Kinds that are not given stay as they are."""
    person(caller)
    rows = [{"kind": kind, **choice} for kind, choice in given.items()]
    await notifications.choose(conn, caller.workspace_id, caller.user_id, rows)
    return await choices(conn, caller)
