"""A whole session as lines of JSON, and back: an imported session shows the same story elsewhere, and only that."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from typing import Any

import orjson

from rota.db import events, imports, isolation, sessions, tasks
from rota.db.pool import Connection, Database
from rota.errors import Conflict, Invalid, NotFound
from rota.model.caller import Caller, Level
from rota.model.export import VERSION, End, ImportedEvent, ImportedPart, read_head, read_line
from rota.model.ids import SessionId, WorkspaceId, new_id
from rota.model.session import SessionStatus
from rota.sessions import changing

PAGE = 500
HEAD = ("id", "kind", "status", "origin", "title", "goal", "automation_id", "agent_slug", "created_at", "updated_at")
TASK = ("id", "key", "role", "status", "prompt", "input", "depends_on", "run_id", "reason", "summary", "error_class",
        "error_detail", "max_attempts", "added_by_run", "created_at", "started_at", "finished_at")  # fmt: skip


async def export(db: Database, workspace_id: WorkspaceId, session_id: SessionId) -> AsyncIterator[bytes]:
    """The session as it is now, page by page: a long one takes no more memory than a short one, and no connection is
    held while a slow reader reads."""
    where = (workspace_id, session_id)
    async with isolation.in_workspace(db, workspace_id) as conn:
        session = await changing.find(conn, *where)
        roles = await sessions.roles(conn, *where)
    head = {"rota": "session", "version": VERSION, "exported_at": datetime.now(UTC)}
    yield _line({**head, "session": {name: session[name] for name in HEAD}})
    for role in roles:
        yield _line({"role": {"name": role["name"], "agent": role["agent"]}})
    async for page in _task_pages(db, *where):
        yield b"".join(_line({"task": _task(task)}) for task in page)
    count, after = 0, 0
    while after < session["last_seq"]:
        async with isolation.in_workspace(db, workspace_id) as conn:
            [found] = await events.pages(conn, workspace_id, [(session_id, after)], limit=PAGE)
        told = [event for event in found.events if event.seq <= session["last_seq"]]
        if not told:
            break  # the rest is older than events are kept
        yield b"".join(_line({"event": event}) for event in told)
        count, after = count + len(told), told[-1].seq
    yield _line({"end": {"events": count}})


async def _task_pages(
    db: Database, workspace_id: WorkspaceId, session_id: SessionId
) -> AsyncIterator[list[dict[str, Any]]]:
    after = None
    while True:
        async with isolation.in_workspace(db, workspace_id) as conn:
            page = await tasks.page(conn, (workspace_id, session_id), after=after, limit=PAGE)
        if page:
            yield page
            after = page[-1]["id"]
        if len(page) < PAGE:
            return


def _task(task: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: task[name] for name in TASK}, "timeout": int(task["timeout"].total_seconds())}


def _line(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)


async def begin(conn: Connection, caller: Caller, lines: Sequence[Any]) -> SessionId:
    """Open an imported session with the first lines of an export. It is archived from the beginning: nothing runs."""
    caller.must_be(Level.MEMBER, "import a session")
    head = read_head(lines[0])
    session_id = SessionId(new_id())
    await sessions.insert(
        conn, caller.workspace_id, session_id, kind=head.kind, status=SessionStatus.ARCHIVED, origin="import",
        owner_id=caller.user_id, agent_id=None, title=head.title, goal=head.goal,
        imported={**head.facts, "lines": 1, "events": 0, "complete": False},
    )  # fmt: skip
    await _take(conn, (caller.workspace_id, session_id), lines[1:])
    return session_id


async def go_on(conn: Connection, caller: Caller, session_id: SessionId, lines: Sequence[Any], *, first: int) -> None:
    """Add the next lines. A repeat of what was taken before is refused, so that a client can go on after a failure."""
    found = await changing.find(conn, caller.workspace_id, session_id)
    caller.must_own(found["owner_id"], "import into this session")
    if found["imported"] is None or found["imported"].get("complete"):
        raise Conflict("Only an import that is under way takes lines.", code="not_importing")
    if found["imported"]["lines"] + 1 != first:
        raise Conflict(
            f"The next line of this import is {found['imported']['lines'] + 1}, not {first}.",
            code="not_importing",
            next_line=found["imported"]["lines"] + 1,
        )
    await _take(conn, (caller.workspace_id, session_id), lines)


async def _take(conn: Connection, where: tuple[WorkspaceId, SessionId], lines: Sequence[Any]) -> None:
    session = await sessions.lock(conn, *where)
    if not session:
        raise NotFound("There is no such session.")
    imported, last = session["imported"], session["last_seq"]
    read: list[ImportedEvent] = []
    parts: list[ImportedPart] = []
    for number, line in enumerate(lines, start=imported["lines"] + 1):
        if imported["complete"]:
            raise Invalid(f"Line {number}: nothing comes after the end.", code="invalid_export", field="lines")
        match read_line(line, number):
            case End(count):
                _check_count(count, imported["events"] + len(read), number)
                imported["complete"] = True
            case ImportedEvent() as event:
                if event.seq <= last:
                    told = f"Line {number}: event {event.seq} comes after {last}; numbers only grow."
                    raise Invalid(told, code="invalid_export", field="lines", line=number)
                read.append(event)
                last = event.seq
            case ImportedPart() as part:
                parts.append(part)
    counted = {"lines": imported["lines"] + len(lines), "events": imported["events"] + len(read)}
    await events.restore(conn, *where, read)
    await _keep(conn, where, parts)
    has_tasks = any(part.what == "task" for part in parts)
    await sessions.imported(conn, *where, {**imported, **counted}, last_seq=last, has_tasks=has_tasks)


async def _keep(conn: Connection, where: tuple[WorkspaceId, SessionId], parts: Sequence[ImportedPart]) -> None:
    if not parts:
        return
    kept = await imports.add(conn, where, parts)
    if again := next((part for part in parts if part.line not in kept), None):
        told = f"Line {again.line}: this {again.what} stands on an earlier line."
        raise Invalid(told, code="invalid_export", field="lines", line=again.line)
    try:
        TopologicalSorter(await imports.needs(conn, where)).prepare()
    except CycleError:
        told = f"Line {parts[-1].line}: up to here tasks wait for each other in a circle."
        raise Invalid(told, code="invalid_export", field="lines", line=parts[-1].line) from None


def _check_count(count: int, found: int, number: int) -> None:
    if count != found:
        told = f"Line {number}: the export had {count} events, but {found} were read: lines are missing."
        raise Invalid(told, code="invalid_export", field="lines", line=number)
