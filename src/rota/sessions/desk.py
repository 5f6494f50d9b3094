"""The desk of one attempt in its worker: what it says goes to the recorder, what it does goes to the tables, fenced."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from rota.db import approvals, checkpoints, events, usage
from rota.db import artifacts as artifact_rows
from rota.db import tasks as task_rows
from rota.db.approvals import Approval
from rota.db.listener import RUNS, Wakes, session_channel
from rota.db.pool import MOST_OVERTAKEN, OVERTAKEN, PASSING, Connection, Database
from rota.errors import Conflict, Invalid, Lost, TooLarge
from rota.model.approval import APPROVE_OR_REFUSE, Answer, Option, Question, without
from rota.model.artifact import check_uri, named
from rota.model.budget import SECONDS
from rota.model.event import event_name
from rota.model.executor import LARGEST_CHECKPOINT
from rota.model.ids import ApprovalId, RunId, WorkspaceId, new_id
from rota.model.memory import Remembered
from rota.model.outcome import Parked
from rota.model.redaction import NOTHING_SECRET, Redactor
from rota.model.run import Claimed
from rota.model.task import TaskForm, is_over_limit
from rota.model.text import says_something
from rota.sessions import approvals as asking
from rota.sessions import artifacts, messages
from rota.sessions import seat as at
from rota.sessions.artifacts import Depot
from rota.sessions.messages import Post
from rota.sessions.seat import Seat
from rota.sessions.shelves import PIECE
from rota.trace.record import TOO_MANY_UNITS, Recorder, RecordingDesk

log = logging.getLogger(__name__)

T = TypeVar("T")
Write = Callable[[Connection], Awaitable[T]]

RETRY = timedelta(seconds=0.5)


class Office:
    """What the desks of a worker share."""

    def __init__(
        self, db: Database, wakes: Wakes, recorder: Recorder, post: Post, depot: Depot, *, retry: timedelta = RETRY
    ) -> None:
        self.db, self.wakes, self.recorder, self.post, self.depot = db, wakes, recorder, post, depot
        self.retry_seconds = retry.total_seconds()

    def desk(self, run: Claimed) -> "AttemptDesk":
        return AttemptDesk(self, run)


class AttemptDesk:
    """Implements `model.executor.Desk`. What few agents use is made when they use it: a busy worker makes thousands of
    desks a second."""

    __slots__ = ("_office", "_over_budget", "_recording", "_redactor", "_seat", "handed_on", "run")

    def __init__(self, office: Office, run: Claimed) -> None:
        self.run = run
        self.handed_on = False
        self._office = office
        self._redactor = NOTHING_SECRET
        self._over_budget: Callable[[str], None] | None = None
        self._recording: RecordingDesk | None = None
        self._seat: Seat | None = None

    @property
    def _db(self) -> Database:
        return self._office.db

    @property
    def _wakes(self) -> Wakes:
        return self._office.wakes

    @property
    def _attempt(self) -> tuple[WorkspaceId, RunId, int]:
        return self.run.workspace_id, self.run.id, self.run.attempt

    @property
    def _words(self) -> RecordingDesk:
        if self._recording is None:
            self._recording = self._office.recorder.desk(self.run)
            self._recording.over_budget = self._over_budget
            if self._redactor:
                self._recording.hide(self._redactor)
        return self._recording

    @property
    def has_spoken(self) -> bool:
        """Whether anything was said or spent here."""
        return self._recording is not None

    @property
    def last_line(self) -> str:
        """The last line that the agent said."""
        return self._recording.last_line if self._recording else ""

    async def last_words(self) -> str:
        """The same, also of what it said over HTTP, once it has ended."""
        workspace_id, run_id, attempt = self._attempt
        try:
            async with self._db.connection() as conn:
                told = await events.last_words(conn, workspace_id, self.run.session_id, run_id, attempt)
        except PASSING:
            return self.last_line
        own = told.replace(TOO_MANY_UNITS, "\n")
        last = next((line.strip() for line in reversed(own.splitlines()) if says_something(line)), "")
        return self.last_line if self.last_line.endswith(last) else last

    async def finish(self) -> None:
        """Wait until all that was said is stored, also what was held back."""
        if self._recording:
            await self._recording.end()

    def hide(self, redactor: Redactor) -> None:
        """From now on these secrets are taken out of everything the attempt writes, but its checkpoint."""
        self._redactor = redactor
        if self._recording:
            self._recording.hide(redactor)

    async def say(self, text: str, *, voice: str = "") -> None:
        await self._words.say(text, voice)

    async def tool(self, name: str, data: Mapping[str, Any]) -> None:
        await self._words.tool(name, data)

    async def usage(self, unit: str, amount: float) -> None:
        await self._words.usage(unit, amount)

    async def ran(self, span: timedelta) -> None:
        """How long the attempt has run, once it has ended."""
        await self._words.ran(span)

    def when_over_budget(self, stop: Callable[[str], None] | None) -> None:
        """Call this as soon as the run has spent what it may, or nobody any more."""
        self._over_budget = stop
        if self._recording:
            self._recording.over_budget = stop

    async def spent_seconds(self) -> timedelta:
        """How long earlier attempts of the run have run."""
        async with self._db.connection() as conn:
            spent = await usage.spent(conn, self.run.workspace_id, self.run.id)
        return timedelta(seconds=float(spent.get(SECONDS, 0)))

    async def stored(self) -> None:
        await self._words.finish()
        if self._words.lost:
            raise Lost("The attempt belongs to somebody else.")

    async def checkpoint(self, data: bytes) -> None:
        if len(data) > LARGEST_CHECKPOINT:
            raise TooLarge(f"A checkpoint of {len(data):,} bytes is too large: {LARGEST_CHECKPOINT:,} is the most.")
        await self._words.finish()  # who goes on from here repeats nothing, so all that led here is told and charged
        await self._persist(lambda conn: self._store(conn, bytes(data)))

    async def ask(
        self,
        question: str,
        *,
        options: Sequence[Option] = APPROVE_OR_REFUSE,
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer:
        approval = await self._ask(Question(question, options, detail, key), keeps_process=True)
        if approval.answer is None:
            approval = await self._answered(approval)
        assert approval.answer
        return approval.answer

    async def park(
        self,
        question: str,
        *,
        options: Sequence[Option] = APPROVE_OR_REFUSE,
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer | Parked:
        approval = await self._ask(Question(question, options, detail, key), keeps_process=False)
        return approval.answer or Parked(approval.id)

    async def message(self, body: Any, *, to: str = "all", key: str | None = None) -> Mapping[str, Any]:
        await self._words.finish()  # what led to it is read before it
        clean = self._redactor.value
        letter = (await self._seated()).message(clean(body), to, clean(key) or new_id().hex)
        return messages.shown(await self._again(lambda: self._office.post.publish(letter)))

    async def inbox(self, *, after: int = 0, wait: timedelta | None = None) -> Sequence[Mapping[str, Any]]:
        seat, clock = await self._seated(), asyncio.get_running_loop().time
        until = clock() + (wait.total_seconds() if wait else 0.0)

        async def looked() -> Sequence[Mapping[str, Any]]:
            pages = messages.subscribe(
                self._db, self._wakes.listener, *seat.where, role=seat.role, after=after, unacked=True,
                until=asyncio.Event(), beat=max(0.0, until - clock()),
            )  # fmt: skip
            async with aclosing(pages):
                return [messages.shown(each) for each in await anext(pages)]

        return await self._again(looked)

    async def ack(self, ids: Sequence[int]) -> None:
        seat = await self._seated()
        await self._write(lambda conn: at.ack(conn, seat, ids))

    async def task(self, tasks: Sequence[TaskForm]) -> Sequence[Mapping[str, Any]]:
        await self._words.finish()
        seat = await self._seated()
        clean = self._redactor.value
        forms = [
            replace(
                each, role=clean(each.role), key=clean(each.key), prompt=clean(each.prompt), input=clean(each.input)
            )
            for each in tasks
        ]
        batch = new_id()

        async def added(conn: Connection) -> Sequence[Mapping[str, Any]]:
            return await task_rows.page(conn, seat.where, batch=batch)

        async def add(conn: Connection) -> Sequence[Mapping[str, Any]]:
            await at.add_tasks(conn, seat, forms, batch=batch)
            return await added(conn)

        try:
            done = await self._write(_once(add, added))
        except Conflict as refusal:
            if is_over_limit(refusal):
                await self._persist(partial(at.count_refused_tasks, seat=seat, refusal=refusal))
            raise
        self._wakes.send(RUNS, [seat.workspace_id])
        return done

    async def event(self, name: str, data: Any = None, *, key: str | None = None) -> Mapping[str, Any]:
        await self._words.finish()
        clean = self._redactor.value
        seat, given, own = await self._seated(), clean(data), clean(key) or new_id().hex
        called = event_name(self._redactor.text(name))
        runs = await self._write(lambda conn: at.event(conn, seat, called, given, own), event=called)
        self._wakes.send(RUNS, [seat.workspace_id])
        return {"runs": runs}

    async def artifact(self, name: str, content: bytes | Path, *, media_type: str | None = None) -> Mapping[str, Any]:
        await self._words.finish()
        kind = media_type and self._redactor.text(media_type)
        seat, called, own = await self._seated(), named(self._redactor.text(name), kind), new_id()
        async with self._office.depot.receive(_pieces(content)) as draft:
            await self._again(lambda: self._office.depot.keep(seat.workspace_id, draft))
            return await self._write(
                _once(
                    lambda conn: artifacts.add(conn, seat.author, called, draft, artifact_id=own),
                    lambda conn: artifact_rows.find(conn, *seat.where, own),
                )
            )

    async def link(self, uri: str, *, name: str | None = None) -> Mapping[str, Any]:
        await self._words.finish()
        seat, called = await self._seated(), named(self._redactor.text(name or "link"), "text/uri-list")
        address, own = check_uri(self._redactor.text(uri)), new_id()
        return await self._write(
            _once(
                lambda conn: artifacts.link(conn, seat.author, called, address, artifact_id=own),
                lambda conn: artifact_rows.find(conn, *seat.where, own),
            )
        )

    async def remember(self, given: Remembered) -> Mapping[str, Any]:
        clean = self._redactor.value
        seat, kept = await self._seated(), replace(given, key=clean(given.key), value=clean(given.value))
        return await self._write(lambda conn: at.remember(conn, seat, kept))

    async def recall(self, key: str) -> Mapping[str, Any] | None:
        seat = await self._seated()
        return await self._persist(lambda conn: at.recall(conn, seat, key))

    async def forget(self, key: str) -> None:
        seat = await self._seated()
        await self._write(lambda conn: at.forget(conn, seat, key))

    async def _seated(self) -> Seat:
        if self._seat is None:
            self._seat = await self._persist(lambda conn: at.of_attempt(conn, *self._attempt))
        return self._seat

    async def _write(self, work: Callable[[Connection], Awaitable[T]], *, event: str | None = None) -> T:
        """Fenced, in one transaction; then who follows the session is woken."""
        seat = await self._seated()

        async def held(conn: Connection) -> T:
            await at.hold(conn, seat, event=event)
            return await work(conn)

        done = await self._persist(held)
        self._wakes.send(session_channel(self.run.session_id))
        return done

    async def _again(self, work: Callable[[], Awaitable[T]]) -> T:
        """What opens its own transactions, tried until the database is there; a repeat of it is the same. Where another
        was first, a second look sees it."""
        for tried in count(1):
            try:
                return await work()
            except (*PASSING, *OVERTAKEN) as failure:
                if not isinstance(failure, PASSING) and tried >= MOST_OVERTAKEN:
                    raise
                log.warning("desk.retried", extra={"run_id": self.run.id, "error": str(failure).strip()})
                await asyncio.sleep(self._office.retry_seconds)
        raise AssertionError("it is tried until it is done")

    async def waited(self) -> timedelta:
        """How long this attempt has waited for answers, wherever it asked."""
        async with self._db.connection() as conn:
            return await approvals.waited(conn, *self._attempt)

    async def _persist(self, write: Callable[[Connection], Awaitable[T]]) -> T:
        """Try until it is written or the lease is lost: while the database is away, the agent waits for it."""

        async def in_transaction() -> T:
            async with self._db.transaction() as conn:
                return await write(conn)

        return await self._again(in_transaction)

    async def _store(self, conn: Connection, data: bytes) -> None:
        if not await checkpoints.store(conn, *self._attempt, data):
            raise Lost("This attempt belongs to another worker now.")

    async def _ask(self, question: Question, *, keeps_process: bool) -> Approval:
        await self._words.finish()  # what led to the question is read before it
        question = without(question, self._redactor) if self._redactor else question
        approval_id = ApprovalId(new_id())
        approval = await self._persist(
            lambda conn: asking.ask(
                conn, *self._attempt, question, keeps_process=keeps_process, approval_id=approval_id
            )
        )
        self._wakes.send(session_channel(self.run.session_id))
        return approval

    async def _answered(self, approval: Approval) -> Approval:
        found = await asking.wait_for_answer(self._db, self._wakes.listener, self.run.workspace_id, approval.id)
        if found is None or found.answer is None:
            await asyncio.Future()  # it expired or was withdrawn, and the run with it: this attempt is being stopped
        assert found
        return found


def _once(write: Write[T], find: Write[T | None]) -> Write[T]:
    """A write that may be tried again: a try that lost its connection may have been committed, so the next looks first
    for what it wrote."""
    tries = count()

    async def written(conn: Connection) -> T:
        found = await find(conn) if next(tries) else None
        return found or await write(conn)

    return written


async def _pieces(content: bytes | Path) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    try:
        with await asyncio.to_thread(content.open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE):
                yield piece
    except OSError as failure:
        raise Invalid(f"The file {content.name!r} cannot be read: {failure.strerror}.", field="path") from failure
