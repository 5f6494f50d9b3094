"""The desk over HTTP: what an agent at work may do, with the token of its attempt and no other."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from rota.db import approvals as approval_rows
from rota.db import isolation
from rota.db import tasks as task_rows
from rota.db.approvals import Approval
from rota.db.listener import RUNS, session_channel
from rota.db.messages import Asked
from rota.db.pool import Connection
from rota.errors import Conflict, Forbidden, Lost, NotFound, TooLarge, Unauthenticated
from rota.http.api.artifacts import UPLOAD, ArtifactName, Hash, take_in
from rota.http.api.messages import After, Wait, check_wait, next_page
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.api.repeats import IdempotencyKey
from rota.http.bodies import declared_size
from rota.http.context import Keeping, Posting, Shared, Signed, Web
from rota.http.redacting import redactor_of
from rota.http.routes import API
from rota.http.shapes.artifacts import ArtifactOut
from rota.http.shapes.desk import AckAllIn, AskIn, AskOut, DeskEventIn, DeskMessageIn, SayIn, ToolIn, UsageIn
from rota.http.shapes.memory import MemoryIn, MemoryOut
from rota.http.shapes.messages import MessageOut
from rota.http.shapes.pages import Page, cursor_of, page_of, read_cursor, read_text_cursor
from rota.http.shapes.tasks import TaskOut, TasksIn
from rota.http.shapes.triggers import FiredOut
from rota.model.approval import APPROVE_OR_REFUSE, Option, Question
from rota.model.caller import Caller
from rota.model.event import event_name
from rota.model.executor import LARGEST_CHECKPOINT
from rota.model.ids import ApprovalId
from rota.model.memory import Remembered
from rota.model.redaction import Redactor
from rota.model.task import is_over_limit
from rota.sessions import approvals, messages, repeats
from rota.sessions import seat as desk
from rota.sessions.seat import Seat

router = APIRouter(prefix=API + "/runs/{run_id}/desk", tags=["desk"])

Work = Callable[[Connection], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class AtDesk:
    """An attempt that reached us with its token. `Redacting` has taken its secrets out of what it sends, but for its
    words, which may begin a secret here and end it in another request."""

    shared: Web
    caller: Caller
    seat: Seat
    key: str | None
    redactor: Redactor

    async def write(
        self, verb: str, request: dict[str, Any], work: Work, *, event: str | None = None, alone: bool = False
    ) -> Any:
        """Do it in one transaction, fenced by the attempt, once for its key; then wake who follows the session."""
        async with _fenced(), isolation.in_workspace(self.shared.db, self.seat.workspace_id) as conn:
            await desk.hold(conn, self.seat, event=event, alone=alone)
            answer = await repeats.once(
                conn, self.seat.workspace_id, self.seat.run_id, self.key, {"desk": verb, **request}, work
            )
        self.shared.wakes.send(session_channel(self.seat.session_id))
        return answer

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        async with isolation.in_workspace(self.shared.db, self.seat.workspace_id) as conn:
            yield conn


@asynccontextmanager
async def _fenced() -> AsyncIterator[None]:
    try:
        yield
    except Lost:
        raise Unauthenticated(
            "This attempt has ended or lost its lease; nothing more of it is kept.", code="attempt_over"
        ) from None


async def _at_desk(
    request: Request, caller: Signed, shared: Shared, run_id: UUID, idempotency_key: IdempotencyKey = None
) -> AtDesk:
    """Only the attempt itself: not its person, not an admin, not an agent of another run."""
    if caller.run_id != run_id or caller.attempt is None:
        raise Forbidden(
            "Only the agent of this run sits at its desk, with the token of its attempt.", code="not_at_desk"
        )
    repeats.check_key(idempotency_key)
    async with _fenced(), isolation.in_workspace(shared.db, caller.workspace_id) as conn:
        seat = await desk.of_attempt(conn, caller.workspace_id, caller.run_id, caller.attempt)
    return AtDesk(shared, caller, seat, idempotency_key, redactor_of(request))


Seated = Annotated[AtDesk, Depends(_at_desk)]


@router.post("/say", status_code=204)
async def say(at: Seated, body: SayIn) -> None:
    """Say something in the transcript."""
    told = {"text": at.redactor.text(body.text)}
    await at.write("say", told, lambda conn: desk.say(conn, at.seat, body.text, at.redactor))


@router.post("/tool", status_code=204)
async def use_tool(at: Seated, body: ToolIn) -> None:
    """Record the use of a tool."""
    await at.write("tool", body.model_dump(), lambda conn: desk.tool(conn, at.seat, body.name, body.data))


@router.post("/usage", status_code=204)
async def spend(at: Seated, body: UsageIn) -> None:
    """Charge the account of the run's grant with so much more of a unit. The report that reaches a cap of the budget
    counts and stops the run, which fails `budget_exceeded`; later ones are refused, 409 `budget_exceeded`, and do not
    count. Running time (`seconds`) is measured, so what is sent of it does not count."""
    refusal = await at.write(
        "usage",
        body.model_dump(),
        lambda conn: desk.spend(conn, at.seat, body.unit, body.amount),
        alone=at.seat.budgeted,
    )
    if refusal:
        raise Conflict(f"{refusal} This report was not recorded, and the run is being stopped.", code="budget_exceeded")


@router.post("/message", status_code=201)
async def send_message(at: Seated, post: Posting, body: DeskMessageIn) -> MessageOut:
    """Send a message from the agent's role to another, to the person (`user`), or to `all`."""
    async with _fenced():
        sent = await post.publish(at.seat.message(body.body, body.to, at.key))
    return MessageOut.model_validate(messages.shown(sent))


@router.get("/inbox")
async def read_inbox(at: Seated, after: After = 0, wait: Wait = None, limit: Limit = DEFAULT_LIMIT) -> Page[MessageOut]:
    """Messages to the agent's role that it has not acknowledged, oldest first; with `wait` until one comes."""
    seat = at.seat
    asked = Asked(seat.session_id, after, seat.role, unacked=True)
    return await next_page(at.shared, at.caller, asked, wait=wait, limit=limit)


@router.post("/ack", status_code=204)
async def ack(at: Seated, body: AckAllIn) -> None:
    """Take messages off the inbox for good. A repeat changes nothing."""
    await at.write("ack", body.model_dump(), lambda conn: desk.ack(conn, at.seat, body.ids))


@router.get("/task")
async def list_tasks(at: Seated, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[TaskOut]:
    """The session's tasks in the order they were added."""
    async with at.reading() as conn:
        found = await task_rows.page(conn, at.seat.where, after=read_cursor(cursor), limit=limit + 1)
    return page_of(found, limit, TaskOut)


@router.post("/task", status_code=201)
async def add_tasks(at: Seated, body: TasksIn) -> Page[TaskOut]:
    """Add tasks to the session, all or none. Those that wait for nobody start at once. Over a limit of the run they are
    refused, `task_depth` or `too_many_tasks_of_run`, and counted in its history."""
    forms = [each.form() for each in body.tasks]
    try:
        batch = await at.write("task", body.model_dump(mode="json"), lambda conn: desk.add_tasks(conn, at.seat, forms))
    except Conflict as refusal:
        if is_over_limit(refusal):
            async with _fenced(), isolation.in_workspace(at.shared.db, at.seat.workspace_id) as conn:
                await desk.count_refused_tasks(conn, at.seat, refusal)
            at.shared.wakes.send(session_channel(at.seat.session_id))
        raise
    at.shared.wakes.send(RUNS, [at.seat.workspace_id])
    async with at.reading() as conn:
        found = await task_rows.page(conn, at.seat.where, batch=UUID(batch))
    return Page(items=[TaskOut.model_validate(each) for each in found])


@router.post("/event", status_code=202)
async def post_event(at: Seated, body: DeskEventIn) -> FiredOut:
    """Fire every event trigger of this workspace with this name. One that would start again what led to this run is
    refused, `event_cycle`."""
    name = event_name(body.event)
    runs = await at.write(
        "event", body.model_dump(), lambda conn: desk.event(conn, at.seat, name, body.data, at.key), event=name
    )
    at.shared.wakes.send(RUNS, [at.seat.workspace_id])
    return FiredOut(runs=runs)


@router.post("/artifact", status_code=201, openapi_extra=UPLOAD)
async def leave_artifact(
    request: Request, at: Seated, depot: Keeping, name: ArtifactName = None, sha256: Hash = None
) -> ArtifactOut:
    """Keep the body under `?name=report.md`; without a name, the body is JSON with the `uri` of something outside."""
    async with _fenced():
        return await take_in(request, at.shared, depot, at.seat.author, name, sha256, key=at.key)


@router.get("/memory")
async def recall_all(at: Seated, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Page[MemoryOut]:
    """What the run's automation remembers, by key."""
    async with at.reading() as conn:
        kept = await desk.recall_all(conn, at.seat, after=read_text_cursor(cursor) or "", limit=limit + 1)
    items = [MemoryOut.model_validate(each) for each in kept[:limit]]
    return Page(items=items, next_cursor=cursor_of(items[-1].key) if len(kept) > limit else None)


@router.get("/memory/{key}")
async def recall(at: Seated, key: str) -> MemoryOut:
    """What the automation remembers under a key; 404 if nothing, or no longer."""
    async with at.reading() as conn:
        kept = await desk.recall(conn, at.seat, key)
    if not kept:
        raise NotFound("Nothing is remembered under this key.")
    return MemoryOut.model_validate(kept)


@router.put("/memory/{key}")
async def remember(at: Seated, key: str, body: MemoryIn) -> MemoryOut:
    """Remember a value for later runs, in place of the one before; with `ttl` for a time."""
    given = Remembered(key, body.value, body.ttl, body.confidence)
    kept = await at.write(
        "remember", {"key": key, **body.model_dump()}, lambda conn: desk.remember(conn, at.seat, given)
    )
    return MemoryOut.model_validate(kept)


@router.delete("/memory/{key}", status_code=204)
async def forget(at: Seated, key: str) -> None:
    """Forget what is under a key."""
    await at.write("forget", {"key": key}, lambda conn: desk.forget(conn, at.seat, key))


BYTES: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.get("/checkpoint", response_class=Response, responses={200: BYTES})
async def read_checkpoint(at: Seated) -> Response:
    """The last checkpoint, as it was stored; 404 if there is none."""
    async with at.reading() as conn:
        data = await desk.last_checkpoint(conn, at.seat)
    if data is None:
        raise NotFound("There is no checkpoint.")
    return Response(data, media_type="application/octet-stream", headers={"X-Content-Type-Options": "nosniff"})


@router.put("/checkpoint", status_code=204, openapi_extra={"requestBody": BYTES})
async def store_checkpoint(request: Request, at: Seated) -> None:
    """Keep the body, in place of what was kept before, for the attempt that goes on from here."""
    _refuse_larger(declared_size(request.scope))
    data = bytearray()
    async for piece in request.stream():
        data += piece
        _refuse_larger(len(data))
    await at.write(
        "checkpoint",
        {"sha256": hashlib.sha256(data).hexdigest()},
        lambda conn: desk.checkpoint(conn, at.seat, bytes(data)),
    )


def _refuse_larger(size: int) -> None:
    if size > LARGEST_CHECKPOINT:
        raise TooLarge(
            f"A checkpoint has at most {LARGEST_CHECKPOINT:,} bytes.",
            code="checkpoint_too_large",
            limit=LARGEST_CHECKPOINT,
        )


@router.post("/ask", status_code=201)
async def ask(at: Seated, body: AskIn, wait: Wait = None) -> AskOut:
    """Ask a person. Asked again with the same `key`, it is the same question; `GET …/ask/{approval_id}` waits for its
    answer. While it is pending the run awaits approval and keeps its place."""
    check_wait(wait)
    options = [Option(**each.model_dump()) for each in body.options] if body.options else list(APPROVE_OR_REFUSE)
    question = Question(body.question, options, body.detail, body.key)
    seat = at.seat

    async def asked(conn: Connection, approval_id: ApprovalId | None = None) -> Approval:
        where = (seat.workspace_id, seat.run_id, seat.attempt)
        return await approvals.ask(conn, *where, question, keeps_process=True, approval_id=approval_id)

    async def first(conn: Connection) -> ApprovalId:
        return (await asked(conn)).id

    # A repeat of the request asks under the id of the first. Its key is not the question's, which tells what a later
    # attempt asks again from what it asks anew.
    with _slot(at, wait):
        async with _fenced(), isolation.in_workspace(at.shared.db, seat.workspace_id) as conn:
            request = {"desk": "ask", **body.model_dump()}
            known = await repeats.once(conn, seat.workspace_id, seat.run_id, at.key, request, first)
            approval = await asked(conn, ApprovalId(UUID(known)))
        at.shared.wakes.send(session_channel(seat.session_id))
        return await _answered(at, approval, wait)


@router.get("/ask/{approval_id}")
async def wait_for_answer(at: Seated, approval_id: UUID, wait: Wait = None) -> AskOut:
    """What became of a question of this run; with `wait` until it is answered."""
    check_wait(wait)
    async with at.reading() as conn:
        asked = await approval_rows.find(conn, at.seat.workspace_id, ApprovalId(approval_id))
    if asked is None or asked.run_id != at.seat.run_id:
        raise NotFound("This run has not asked that.")
    with _slot(at, wait):
        return await _answered(at, asked, wait)


def _slot(at: AtDesk, wait: timedelta | None) -> AbstractContextManager[None]:
    """Taken before anything is written, so that a caller with too many open requests has asked nothing."""
    return at.shared.streams.open(at.caller) if wait else nullcontext()


async def _answered(at: AtDesk, asked: Approval, wait: timedelta | None) -> AskOut:
    if asked.answer is None and wait:
        answer = asyncio.create_task(
            approvals.wait_for_answer(
                at.shared.db, at.shared.listener, at.seat.workspace_id, asked.id, within=wait.total_seconds()
            )
        )
        closing = asyncio.create_task(at.shared.closing.wait())
        await asyncio.wait({answer, closing}, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if answer.done():
            asked = answer.result() or asked
        answer.cancel()
    return AskOut(
        approval_id=asked.id, status=asked.status, approved=asked.answer.approved if asked.answer else None,
        option_id=asked.option_id, text=asked.answer.text if asked.answer else None,
    )  # fmt: skip
