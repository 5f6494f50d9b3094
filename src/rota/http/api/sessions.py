"""Sessions: conversations, and their live trace."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from rota.db import events, isolation, sessions
from rota.db import tasks as task_rows
from rota.db.events import Event
from rota.db.listener import RUNS, session_channel
from rota.db.pool import Connection
from rota.errors import Invalid, NotFound
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit, Owner
from rota.http.api.repeats import IdempotencyKey, Once
from rota.http.context import InUnit, Shared, Signed, Unit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.pages import Page, cursor_of, page_of, read_cursor, read_number_cursor
from rota.http.shapes.sessions import EventOut, ImportIn, ImportMoreIn, LineOut, OriginOut, SessionIn, SessionOut
from rota.http.shapes.tasks import RoleIn, RoleOut, TaskOut, TasksIn
from rota.http.streams import STILL_HERE, EventStream
from rota.model.ids import SessionId, WorkspaceId
from rota.model.session import SessionStatus, Verb
from rota.roster import members, running
from rota.sessions import changing, opening, replay, roles, tasks, transcript
from rota.trace.follow import Told

router = APIRouter(prefix=API + "/sessions", tags=["sessions"], route_class=Repeatable)


class NdJson(StreamingResponse):
    media_type = "application/x-ndjson"


EXPORT = {"application/x-ndjson": {"schema": {"type": "string"}}}
LARGEST_SEQ = 2**63 - 1
INTERACTIVE_ONLY = ("agent", "prompt", "input")
BACKGROUND_ONLY = ("goal", "roles", "tasks", "draft")
Origin = Literal["user", "import", "schedule", "run_now", "webhook", "event", "after", "task", "chat", "retry"]
After = Annotated[int, Query(ge=0, le=LARGEST_SEQ, description="Give events with a higher number")]
# Ends of lines to many a reader, though not to the standard of server-sent events.
LINE_MARKS = [(mark.encode(), rf"\u{ord(mark):04x}".encode()) for mark in ("\x85", "\u2028", "\u2029")]


async def find(conn: Connection, workspace_id: WorkspaceId, session_id: UUID) -> dict[str, Any]:
    return await changing.find(conn, workspace_id, SessionId(session_id))


async def _shown(unit: Unit, session_id: UUID) -> SessionOut:
    return SessionOut.model_validate(await find(unit.conn, unit.caller.workspace_id, session_id))


@router.get("")
async def list_sessions(
    unit: InUnit,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    kind: Literal["interactive", "automation", "background"] | None = None,
    status: SessionStatus | None = None,
    origin: Origin | None = None,
    owner: Owner = None,
) -> Page[SessionOut]:
    """Sessions, newest first. `kind=interactive` is the list of chats."""
    found = await sessions.page(
        unit.conn,
        unit.caller.workspace_id,
        before=read_cursor(cursor),
        limit=limit + 1,
        kind=kind,
        status=status,
        origin=origin,
        owner_id=await members.find_owner(unit.conn, unit.caller, owner),
    )
    return page_of(found, limit, SessionOut)


@router.post("", status_code=201)
async def open_session(unit: InUnit, body: SessionIn, idempotency_key: IdempotencyKey = None) -> SessionOut:
    """Open a conversation with an agent, or give several a goal with roles and tasks."""
    request = {"session": "open", **body.model_dump(mode="json")}
    opened = await running.once_for_key(unit.conn, unit.caller, idempotency_key, request, lambda: _open(unit, body))
    unit.about(opened)
    unit.wake(RUNS, unit.caller.workspace_id)
    return await _shown(unit, opened)


async def _open(unit: Unit, body: SessionIn) -> UUID:
    interactive = body.kind == "interactive"
    _refuse_fields(body, BACKGROUND_ONLY if interactive else INTERACTIVE_ONLY)
    if interactive:
        if body.agent is None:
            raise Invalid("Say whom to talk to.", code="unknown_agent", field="agent")
        return await opening.converse(
            unit.conn, unit.caller, body.agent, title=body.title, prompt=body.prompt, given=body.input
        )
    if body.goal is None:
        raise Invalid("Say what is to be achieved.", code="nothing_to_do", field="goal")
    return await opening.pursue(
        unit.conn,
        unit.caller,
        body.goal,
        title=body.title,
        seats=[role.model_dump() for role in body.roles],
        forms=[task.form() for task in body.tasks],
        draft=body.draft,
    )


def _refuse_fields(body: SessionIn, names: tuple[str, ...]) -> None:
    for name in names:
        if name in body.model_fields_set:
            raise Invalid(f"A session of kind {body.kind} has no {name}.", field=name)


async def _change(unit: Unit, session_id: UUID, verb: Verb) -> SessionOut:
    await changing.change(unit.conn, unit.caller, SessionId(session_id), verb)
    unit.wake(RUNS, unit.caller.workspace_id)
    unit.wake(session_channel(SessionId(session_id)))
    return await _shown(unit, session_id)


@router.post("/{session_id}/enable")
async def enable_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """Start the work of a draft."""
    return await _change(unit, session_id, Verb.ENABLE)


@router.post("/{session_id}/pause")
async def pause_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """Hold its tasks: what nobody has claimed does not start; what runs finishes. It takes no messages meanwhile."""
    return await _change(unit, session_id, Verb.PAUSE)


@router.post("/{session_id}/resume")
async def resume_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """Let a paused session go on."""
    return await _change(unit, session_id, Verb.RESUME)


@router.post("/{session_id}/complete")
async def complete_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """End it as done: what has not begun is skipped, what runs is cancelled; an automation's own run goes on."""
    return await _change(unit, session_id, Verb.COMPLETE)


@router.post("/{session_id}/fail")
async def fail_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """End it as failed, in the same way."""
    return await _change(unit, session_id, Verb.FAIL)


@router.post("/{session_id}/archive")
async def archive_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """Put a session away that is done or failed: from then on it can only be read. Answers 409 while a run, or an
    automation with `session: same`, goes on in it."""
    return await _change(unit, session_id, Verb.ARCHIVE)


@router.get("/{session_id}/roles")
async def list_roles(unit: InUnit, session_id: UUID) -> Page[RoleOut]:
    """The session's roles and their agents, oldest first."""
    await find(unit.conn, unit.caller.workspace_id, session_id)
    found = await sessions.roles(unit.conn, unit.caller.workspace_id, SessionId(session_id))
    return Page(items=[RoleOut.model_validate(each) for each in found])


@router.post("/{session_id}/roles", status_code=201)
async def add_role(unit: InUnit, session_id: UUID, body: RoleIn) -> RoleOut:
    """Give an agent a role in the session."""
    await roles.give(unit.conn, unit.caller, SessionId(session_id), body.name, body.agent)
    found = await sessions.roles(unit.conn, unit.caller.workspace_id, SessionId(session_id))
    return RoleOut.model_validate(next(each for each in found if each["name"] == body.name))


@router.get("/{session_id}/tasks")
async def list_tasks(
    unit: InUnit, session_id: UUID, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[TaskOut]:
    """The session's tasks in the order they were added."""
    await find(unit.conn, unit.caller.workspace_id, session_id)
    where = (unit.caller.workspace_id, SessionId(session_id))
    return page_of(await task_rows.page(unit.conn, where, after=read_cursor(cursor), limit=limit + 1), limit, TaskOut)


@router.post("/{session_id}/tasks", status_code=201)
async def add_tasks(
    unit: InUnit, session_id: UUID, body: TasksIn, idempotency_key: IdempotencyKey = None
) -> Page[TaskOut]:
    """Add tasks, all or none. Those that wait for nobody start at once. A session that is done or failed goes on."""
    caller, where = unit.caller, (unit.caller.workspace_id, SessionId(session_id))
    session = await find(unit.conn, *where)
    caller.must_own(session["owner_id"], "add tasks to this session")
    request = {"tasks_of": str(session_id), **body.model_dump(mode="json")}
    batch = await running.once_for_key(
        unit.conn,
        caller,
        idempotency_key,
        request,
        lambda: tasks.add(unit.conn, *where, [each.form() for each in body.tasks]),
    )
    unit.wake(RUNS, caller.workspace_id)
    unit.wake(session_channel(SessionId(session_id)))
    found = await task_rows.page(unit.conn, where, batch=batch)
    return Page(items=[TaskOut.model_validate(each) for each in found])


@router.get("/{session_id}")
async def get_session(unit: InUnit, session_id: UUID) -> SessionOut:
    """One session."""
    return await _shown(unit, session_id)


@router.post("/import", status_code=201, openapi_extra={"requestBody": {"content": EXPORT}})
async def import_session(unit: InUnit, once: Once, body: ImportIn) -> SessionOut:
    """Begin to show an exported session here: its first lines, and all of them if they are few; or the export as it is,
    as `application/x-ndjson`. It can only be read."""
    return await _shown(unit, await once(body, lambda: replay.begin(unit.conn, unit.caller, body.lines)))


@router.post("/{session_id}/import")
async def import_more(unit: InUnit, session_id: UUID, body: ImportMoreIn) -> SessionOut:
    """Go on with an import: the next lines. The line that says `end` completes it."""
    await replay.go_on(unit.conn, unit.caller, SessionId(session_id), body.lines, first=body.first)
    return await _shown(unit, session_id)


@router.get("/{session_id}/export", response_class=NdJson)
async def export_session(caller: Signed, shared: Shared, session_id: UUID) -> NdJson:
    """The whole session as lines of JSON: its head, roles, tasks and events."""
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        await find(conn, caller.workspace_id, session_id)
    lines = replay.export(shared.db, caller.workspace_id, SessionId(session_id))
    return NdJson(lines, headers={"Content-Disposition": f'attachment; filename="session-{session_id}.jsonl"'})


@router.get("/{session_id}/origin")
async def get_origin(unit: InUnit, session_id: UUID) -> OriginOut:
    """Which automation started this session; 404 if none did."""
    await find(unit.conn, unit.caller.workspace_id, session_id)
    origin = await sessions.origin(unit.conn, unit.caller.workspace_id, SessionId(session_id))
    if not origin:
        raise NotFound("No automation started this session.")
    return OriginOut.model_validate(origin)


@router.get("/{session_id}/events")
async def list_events(
    unit: InUnit,
    session_id: UUID,
    after: After = 0,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[EventOut]:
    """The session's log, oldest first: page on with `after` set to the last `seq` you have, or with the cursor."""
    page = await _part_of_log(unit, session_id, after, limit, cursor)
    shown = [EventOut.model_validate(each) for each in page.events]
    return Page(items=shown, next_cursor=cursor_of(shown[-1].seq) if page.more else None)


@router.get("/{session_id}/transcript")
async def get_transcript(
    unit: InUnit, session_id: UUID, after: After = 0, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[LineOut]:
    """The session told as a conversation, oldest first, in the words of its page. `limit` events are told at once; what
    an agent said in several of them is one line, and so are many tasks that were added together."""
    page = await _part_of_log(unit, session_id, after, limit, cursor)
    told = [LineOut.model_validate(line) for line in transcript.conversation(page.events)]
    return Page(items=told, next_cursor=cursor_of(transcript.span(page.events[-1])[1]) if page.more else None)


async def _part_of_log(unit: Unit, session_id: UUID, after: int, limit: int, cursor: str | None) -> events.Page:
    """Fewer where they are large: nobody waits for a page of a hundred megabytes."""
    after = read_number_cursor(cursor, largest=LARGEST_SEQ) or after
    await find(unit.conn, unit.caller.workspace_id, session_id)
    asked = [(SessionId(session_id), after)]
    [page] = await events.pages(unit.conn, unit.caller.workspace_id, asked, limit=limit)
    return page


@router.get("/{session_id}/trace", response_class=EventStream, status_code=200)
async def follow_trace(
    request: Request,
    caller: Signed,
    shared: Shared,
    session_id: UUID,
    after: Annotated[int, Query(ge=0, le=LARGEST_SEQ)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventStream:
    """Server-sent events: what is stored, then live. `Last-Event-ID` resumes exactly, on any replica."""
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        session = await find(conn, caller.workspace_id, session_id)
    start = min(read_last_event_id(last_event_id, after), session["last_seq"])
    told = shared.readers.follow(caller.workspace_id, SessionId(session_id), after=start)
    return EventStream(request, _lines(told))


def read_last_event_id(header: str | None, after: int) -> int:
    if header is None or header == "":
        return after
    if not header.isascii() or not header.isdigit() or len(header) > 19 or int(header) > LARGEST_SEQ:
        raise Invalid("Last-Event-ID is the `id` of the last event you saw: a whole number.", field="Last-Event-ID")
    return int(header)


async def _lines(told: AsyncGenerator[Told]) -> AsyncGenerator[bytes]:
    async with aclosing(told):  # a reader who leaves must not stay subscribed
        async for each in told:
            yield each.once("lines", partial(_page, each.events)) or STILL_HERE


def _page(events: Sequence[Event]) -> bytes:
    return b"".join(map(_line, events))


def _line(event: Event) -> bytes:
    data = orjson.dumps(EventOut.model_validate(event).model_dump())
    for mark, escaped in LINE_MARKS:
        data = data.replace(mark, escaped)
    return b"event: %s\nid: %d\ndata: %s\n\n" % (event.kind.encode(), event.seq, data)
