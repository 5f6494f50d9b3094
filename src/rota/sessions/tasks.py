"""Tasks of a session: added by people and by agents at work, and shown as a graph."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from rota.db import attempts, events, runs, sessions, tasks
from rota.db.pool import Connection
from rota.db.tasks import Changed, Where
from rota.errors import Conflict, Lost
from rota.model import session as lifecycle
from rota.model.ids import RunId, SessionId, WorkspaceId, new_id
from rota.model.task import NewTask, TaskForm, added_before, levels, plan, references, refuse_over_limit
from rota.runs import tasking
from rota.sessions import changing
from rota.sessions.roles import check_name

FEW = 10  # tasks that are added at once: the transcript names each; more are one line of it


async def add(
    conn: Connection,
    workspace_id: WorkspaceId,
    session_id: SessionId,
    forms: Sequence[TaskForm],
    *,
    attempt: tuple[RunId, int] | None = None,
    batch: UUID | None = None,
) -> UUID:
    """Add tasks, all or none; the id of this batch. Those that wait for nobody start at once. A session that had ended
    becomes active again. With `attempt`, an agent at work adds them: `Lost` once its lease went to somebody else,
    `Conflict` over a limit of its run; those that an earlier attempt of its run added under the same keys stay as
    they are, and are of this batch.
    """
    if attempt:
        await _hold(conn, workspace_id, *attempt)
    where = (workspace_id, session_id)
    session = await changing.move(conn, workspace_id, session_id, lifecycle.extended)
    roles = {role["name"] for role in await sessions.roles(conn, workspace_id, session_id)}
    if attempt and session["kind"] != "background":
        named = {form.role for form in forms}
        lifecycle.room_for_roles(len(roles), len(named - roles))
        roles |= await _take_seats(conn, where, named, attempt[0])
    known = await tasks.known(conn, where, references(forms))
    again = {each.key: each.id for each in added_before(forms, known, attempt)} if attempt else {}
    planned = plan([form for form in forms if form.key not in again], known, roles)
    depth = await _depth(conn, workspace_id, attempt[0], len(planned)) if attempt else 1
    if session["last_seq"] + len(planned) > lifecycle.MOST_TASKS:  # each has its event: a shorter log has fewer
        lifecycle.room_for_tasks(sum((await tasks.counts(conn, where)).values()), len(planned))
    batch = batch or new_id()
    await tasks.add(conn, where, planned, batch=batch, run_id=attempt[0] if attempt else None, depth=depth)
    if again:
        await tasks.gather(conn, where, again.values(), batch=batch)
    await sessions.keep_tasks(conn, workspace_id, session_id)
    skipped = await tasks.skip(conn, [(*where, each.id) for each in known if each.status in {"failed", "skipped"}])
    await tasking.tell(conn, [*_added(where, planned), *skipped])
    await tasking.go_on(conn, where)
    return batch


async def _depth(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, more: int) -> int:
    """The depth of tasks that a run adds. Refused if it may not add so many, or so deep."""
    standing = await tasks.standing(conn, workspace_id, run_id)
    refuse_over_limit(standing, more)
    return standing.depth


async def _hold(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> None:
    """An agent that is being stopped begins nothing more: it would bring back a session that was ended by hand."""
    if not await events.hold(conn, [(workspace_id, run_id, attempt)]):
        raise Lost("This attempt belongs to another worker now.")
    if await attempts.is_stopping(conn, workspace_id, run_id):
        raise Conflict("This run is being stopped; it adds no more tasks.", code="run_stopping")


async def _take_seats(conn: Connection, where: Where, names: set[str], run_id: RunId) -> set[str]:
    """Where no person gave the roles, those that an agent names are its own, on the grant of its run, which allows no
    other."""
    run = await runs.find(conn, where[0], run_id)
    assert run, "its lease is held"
    for name in sorted(names):
        check_name(name, "tasks.role")
        await sessions.take_seat(conn, *where, name, run["agent_id"], run["grant_id"])
    return names


def _added(where: Where, planned: Sequence[NewTask]) -> Iterator[Changed]:
    for place, task in enumerate(planned, 1):
        told = (place, len(planned)) if len(planned) > FEW else None
        yield Changed(*where, task.id, task.key, task.role, None, "pending", None, told)


async def graph(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> list[dict[str, Any]]:
    """All tasks in the order they were added, each with `level`, the column in which it is drawn."""
    found = await tasks.page(conn, (workspace_id, session_id))
    columns = levels({task["id"]: task["depends_on"] for task in found})
    return [{**task, "level": columns[task["id"]]} for task in found]
