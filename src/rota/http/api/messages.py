"""Messages between the roles of a session, and between them and people."""

from contextlib import aclosing
from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request

from rota.db import isolation, runs
from rota.db import messages as rows
from rota.db.listener import RUNS, session_channel
from rota.db.messages import Asked, Message
from rota.errors import Invalid
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.api.repeats import IdempotencyKey
from rota.http.api.sessions import LARGEST_SEQ, find
from rota.http.context import InUnit, Posting, Shared, Signed, Web, unit_of
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.fields import Duration
from rota.http.shapes.messages import AckIn, MessageOrTurn, MessageOut, TurnIn
from rota.http.shapes.pages import Page, cursor_of, read_number_cursor
from rota.http.shapes.runs import RunOut
from rota.model.caller import Caller
from rota.model.ids import SessionId, WorkspaceId
from rota.model.message import USER, NewMessage
from rota.roster import running
from rota.sessions import chat, messages, repeats

router = APIRouter(prefix=API + "/sessions/{session_id}/messages", tags=["messages"], route_class=Repeatable)

LONGEST_WAIT = timedelta(seconds=60)

After = Annotated[int, Query(ge=0, le=LARGEST_SEQ, description="Give messages with a higher number")]
Wait = Annotated[Duration | None, Query(description="Wait so long for the first message, up to 60s", examples=["30s"])]
MessageId = Annotated[int, Path(ge=1, le=LARGEST_SEQ)]


def check_wait(wait: timedelta | None) -> None:
    if wait is not None and wait > LONGEST_WAIT:
        raise Invalid("Wait 60s at most, then ask again.", field="wait")


async def next_page(
    shared: Web, caller: Caller, asked: Asked, *, wait: timedelta | None, limit: int
) -> Page[MessageOut]:
    """What is there, or what comes within the time; no connection is held meanwhile."""
    check_wait(wait)
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        page = await rows.page(conn, caller.workspace_id, asked, limit=limit)
    found, more = page.messages, page.more
    if not found and wait and not asked.imported:
        with shared.streams.open(caller):
            came = await _first_that_comes(shared, caller.workspace_id, asked, wait)
        found, more = came[:limit], len(came) > limit
    items = [MessageOut.model_validate(messages.shown(each)) for each in found]
    return Page(items=items, next_cursor=cursor_of(items[-1].id) if more else None)


async def _first_that_comes(shared: Web, workspace_id: WorkspaceId, asked: Asked, wait: timedelta) -> list[Message]:
    pages = messages.subscribe(
        shared.db, shared.listener, workspace_id, asked.session_id, role=asked.role, after=asked.after,
        unacked=asked.unacked, until=shared.closing, beat=wait.total_seconds(),
    )  # fmt: skip
    async with aclosing(pages):
        async for page in pages:
            return page
    return []


@router.get("")
async def list_messages(
    caller: Signed,
    shared: Shared,
    session_id: UUID,
    role: Annotated[str | None, Query(max_length=63, description="Only what this role was sent")] = None,
    after: After = 0,
    unacked: Annotated[bool, Query(description="Only what was not acknowledged")] = False,
    wait: Wait = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[MessageOut]:
    """Messages, oldest first; with `wait`, an empty inbox is watched until something comes. What is not acknowledged
    comes again."""
    after = read_number_cursor(cursor, largest=LARGEST_SEQ) or after
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        session = await find(conn, caller.workspace_id, session_id)
        if role is not None:
            await messages.check_role(conn, caller.workspace_id, SessionId(session_id), role)
    asked = Asked(SessionId(session_id), after, role, unacked, imported=session["imported"] is not None)
    return await next_page(shared, caller, asked, wait=wait, limit=limit)


@router.post("", status_code=201)
async def publish_message(
    request: Request,
    caller: Signed,
    shared: Shared,
    post: Posting,
    session_id: UUID,
    body: MessageOrTurn,
    idempotency_key: IdempotencyKey = None,
) -> MessageOut | RunOut:
    """Send a `body` to one role or to all: a message. Or a `prompt` to the session's agent: a run that sees the
    transcript so far; a session that is done or failed goes on. The same `Idempotency-Key` sends it once."""
    repeats.check_key(idempotency_key)
    if isinstance(body, TurnIn):
        return await _take_turn(request, SessionId(session_id), body, idempotency_key)
    async with isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        session = await find(conn, caller.workspace_id, session_id)
    caller.must_own(session["owner_id"], "send messages to this session")
    if body.sender != USER:
        raise Invalid(
            "What you send is from `user`. Only an agent at work speaks for its role, at its desk.",
            code="not_your_role",
            field="from",
        )
    message = NewMessage(caller.workspace_id, SessionId(session_id), body.body, body.to, USER, key=idempotency_key)
    return MessageOut.model_validate(messages.shown(await post.publish(message)))


async def _take_turn(request: Request, session_id: SessionId, body: TurnIn, key: str | None) -> RunOut:
    async with unit_of(request, request.path_params["workspace"]) as unit:
        conn, caller = unit.conn, unit.caller
        await find(conn, caller.workspace_id, session_id)
        run_id = await running.once_for_key(
            conn, caller, key, {"session": str(session_id), **body.model_dump(mode="json")},
            lambda: chat.turn(conn, caller, session_id, prompt=body.prompt, given=body.input),
        )  # fmt: skip
        unit.wake(RUNS, caller.workspace_id)
        unit.wake(session_channel(session_id))
        return RunOut.model_validate(await runs.find(conn, caller.workspace_id, run_id))


@router.post("/{message_id}/ack", status_code=204)
async def ack_message(unit: InUnit, session_id: UUID, message_id: MessageId, body: AckIn | None = None) -> None:
    """Take a message off a role's inbox for good. A repeat changes nothing."""
    session = await find(unit.conn, unit.caller.workspace_id, session_id)
    unit.caller.must_own(session["owner_id"], "acknowledge messages of this session")
    role, where = body.role if body else USER, (unit.caller.workspace_id, SessionId(session_id))
    await messages.check_role(unit.conn, *where, role)
    await messages.ack(unit.conn, *where, role, [message_id], field="message_id")
