"""Messages between agents: publish in groups, subscribe, and acknowledge."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from rota.db import at_once, isolation, messages
from rota.db.listener import Listener, Wakes, session_channel
from rota.db.messages import Asked, Attempt, Message, Page, Seen, Where
from rota.db.pool import Connection, Database
from rota.db.together import Together
from rota.errors import Conflict, Invalid, Lost, NotFound, RotaError
from rota.model import message as rules
from rota.model.ids import SessionId, WorkspaceId
from rota.model.message import NewMessage, check_size, recipients

log = logging.getLogger(__name__)

WRITERS = 4
PACE_SECONDS = 0.003
LONG_SECONDS = 0.005
GROUP = 500
GROUP_BYTES = 4_194_304
PAGE = 100
POLL_SECONDS = 1.0

Published = Message | RotaError
Look = Together[tuple[WorkspaceId, Asked], Page]
_looks: WeakKeyDictionary[Database, Look] = WeakKeyDictionary()


class Post:
    """One for each process. What arrives for a session while a write of it is out is written together."""

    def __init__(self, db: Database, wakes: Wakes, *, pace: float = PACE_SECONDS) -> None:
        self._db = db
        self._wakes = wakes
        self._pace = pace
        self._began = float("-inf")
        self._resting = False
        self._waiting: dict[Where, list[_Letter]] = defaultdict(list)
        self._out: set[Where] = set()
        self._writers: set[asyncio.Task[None]] = set()
        self._fresh: set[asyncio.Task[None]] = set()

    async def publish(self, message: NewMessage) -> Message:
        """Return once it is committed. Refusals are raised; a failure of the database may or may not have kept it, so
        whoever repeats it gives a key."""
        letter = _Letter(message)
        self._waiting[letter.where].append(letter)
        self._write_more()
        published = await letter.published
        if isinstance(published, RotaError):
            raise published
        return published

    def _write_more(self) -> None:
        """One group at a time and not one right after another, so that they are few and large: a message of its own
        takes ten times the work of one more in a group. Another beside one that takes long, since somebody may hold the
        lock of a session in it."""
        full = self._fresh or len(self._writers) >= WRITERS
        if self._resting or full or all(where in self._out for where in self._waiting):
            return
        loop = asyncio.get_running_loop()
        if (rest := self._began + self._pace - loop.time()) > 0:
            self._resting = True
            loop.call_later(rest, self._rested)
            return
        self._began = loop.time()
        task = asyncio.create_task(self._write_group())
        self._writers.add(task)
        self._fresh.add(task)
        aging = loop.call_later(LONG_SECONDS, self._takes_long, task)
        task.add_done_callback(lambda _: aging.cancel())
        task.add_done_callback(self._written)

    def _rested(self) -> None:
        self._resting = False
        self._write_more()

    def _takes_long(self, task: "asyncio.Task[None]") -> None:
        self._fresh.discard(task)
        self._write_more()

    def _written(self, task: "asyncio.Task[None]") -> None:
        self._writers.discard(task)
        self._fresh.discard(task)
        if not task.cancelled():
            task.result()
        self._write_more()

    async def _write_group(self) -> None:
        group = self._take()
        touched = {letter.where for letter in group}
        self._out |= touched
        try:
            await self._deliver(group)
        finally:
            self._out -= touched

    def _take(self) -> list["_Letter"]:
        """What waits for sessions that nobody writes to: each session's in order, as much as one statement takes."""
        group: list[_Letter] = []
        size = 0
        for where in [where for where in self._waiting if where not in self._out]:
            while (waiting := self._waiting[where]) and len(group) < GROUP and (not group or size < GROUP_BYTES):
                group.append(waiting.pop(0))
                size += group[-1].size
            if not waiting:
                del self._waiting[where]
        return group

    async def _deliver(self, group: Sequence["_Letter"]) -> None:
        try:
            published = await self._write(group)
        except psycopg.DataError as failure:  # one that cannot be stored must not take the others with it
            if len(group) == 1:
                return group[0].fail(failure)
            for letter in group:
                await self._deliver([letter])
            return None
        except Exception as failure:  # whatever it is, it is told to those who wait for it
            for letter in group:
                letter.fail(failure)
            return None
        for letter, answer in zip(group, published, strict=True):
            letter.succeed(answer)
        return None

    async def _write(self, group: Sequence["_Letter"]) -> list[Published]:
        async with self._db.connection() as conn, at_once.undone_if_it_fails(conn):
            published = await publish(conn, [letter.message for letter in group], whole=True)
        for letter, answer in zip(group, published, strict=True):
            if isinstance(answer, Message):
                self._wakes.send(session_channel(letter.message.session_id), [letter.message.session_id])
        return published


class _Letter:
    def __init__(self, message: NewMessage) -> None:
        self.message = message
        self.where: Where = (message.workspace_id, message.session_id)
        self.size = check_size(message.body)
        self.published: asyncio.Future[Published] = asyncio.get_running_loop().create_future()

    def succeed(self, answer: Published) -> None:
        if not self.published.done():  # whoever sent it may be gone
            self.published.set_result(answer)

    def fail(self, failure: BaseException) -> None:
        if not self.published.done():
            self.published.set_exception(failure)


async def publish(conn: Connection, given: Sequence[NewMessage], *, whole: bool = False) -> list[Published]:
    """Write messages in this transaction, or as a `whole` one: each numbered under its session's lock, which is held
    until the commit, so that a reader with "after N" can never pass over one that commits later."""
    for message in given:
        check_size(message.body)
    seen = await messages.look(
        conn,
        attempts=list({attempt for m in given if (attempt := _attempt(m))}),
        sessions=sorted({(m.workspace_id, m.session_id) for m in given}),
        keys=list({(m.workspace_id, m.scope_id, m.key) for m in given if m.key is not None}),
        begin=whole,
    )
    sheet = _Sheet(seen)
    answers = [sheet.add(message) for message in given]
    await messages.write(conn, sheet.rows, commit=whole)
    return answers


def _attempt(message: NewMessage) -> Attempt | None:
    run_id, attempt = message.run_id, message.attempt
    return (message.workspace_id, run_id, attempt) if run_id and attempt else None


class _Sheet:
    """What is about to be written, numbered."""

    def __init__(self, seen: Seen) -> None:
        self._now, self._held, self._sessions, self._earlier = seen.now, seen.held, seen.sessions, dict(seen.keys)
        self._last = {where: session.last_seq for where, session in seen.sessions.items()}
        self.rows: list[dict[str, Any]] = []

    def add(self, message: NewMessage) -> Published:
        where = (message.workspace_id, message.session_id)
        session = self._sessions.get(where)
        if message.run_id and _attempt(message) not in self._held:
            return Lost("This attempt belongs to another worker now.")
        if session is None:
            return NotFound("There is no such session.")
        if same := self._same(message):
            return _again(message, *same)
        if session.status == "archived":
            return Conflict("This session is archived; nobody reads its messages.", code="session_archived")
        try:
            to = recipients(message.to, message.sender, session.seats)
        except Invalid as refused:
            return refused
        return self._number(where, message, to)

    def _same(self, message: NewMessage) -> tuple[bytes, Any] | None:
        key = message.key
        return None if key is None else self._earlier.get((message.workspace_id, message.scope_id, key))

    def _number(self, where: Where, message: NewMessage, to: Sequence[str]) -> Message:
        now = self._now
        self._last[where] = seq = self._last[where] + 1
        deliveries = [{"role": role, "acked_at": None} for role in sorted(to)]
        row = {
            "workspace_id": message.workspace_id, "session_id": message.session_id, "seq": seq,
            "run_id": message.run_id, "attempt": message.attempt, "data": message.data(), "recipients": to,
        }  # fmt: skip
        if message.key is not None:
            body_hash, answer = message.body_hash(), {"id": seq, "created_at": now, "deliveries": deliveries}
            row |= {"scope_id": message.scope_id, "key": message.key, "body_hash": body_hash.hex(), "answer": answer}
            self._earlier[message.workspace_id, message.scope_id, message.key] = (body_hash, answer)
        self.rows.append(row)
        return Message(seq, message.run_id, message.attempt, message.data(), now, deliveries)


def _again(message: NewMessage, body_hash: bytes, answer: dict[str, Any]) -> Published:
    """The first answer, given again to a repeat of the same request."""
    if body_hash != message.body_hash():
        told = "This Idempotency-Key was used with another message."
        return Invalid(told, code="key_reused", field="Idempotency-Key")
    at = answer["created_at"]
    created_at = datetime.fromisoformat(at) if isinstance(at, str) else at
    return Message(answer["id"], message.run_id, message.attempt, message.data(), created_at, answer["deliveries"])


async def subscribe(
    db: Database,
    listener: Listener,
    workspace_id: WorkspaceId,
    session_id: SessionId,
    *,
    role: str | None = None,
    after: int = 0,
    unacked: bool = False,
    until: asyncio.Event,
    beat: float | None = None,
    poll: float = POLL_SECONDS,
) -> AsyncGenerator[list[Message]]:
    """Pages of messages, stored ones first, then as they come; an empty page after `beat` seconds without one. Ends
    soon after `until` is set. No connection is held while it waits. What no notification announces is found within
    `poll` seconds."""
    changed, look = asyncio.Event(), _look(db)
    async with listener.subscribed(session_channel(session_id), lambda _: changed.set()), _set_after(until, changed):
        quiet_since = asyncio.get_running_loop().time()
        while not until.is_set():
            changed.clear()
            page = await look((workspace_id, Asked(session_id, after, role, unacked)))
            if page.messages:
                after = page.messages[-1].id
                yield page.messages
                quiet_since = asyncio.get_running_loop().time()
            # What was committed after the look has told so, or is found by the poll.
            if not page.more and await _rest(changed, quiet_since, beat, poll) and not until.is_set():
                yield []
                quiet_since = asyncio.get_running_loop().time()


def _look(db: Database) -> Look:
    """One for each process: inboxes that change at the same time are read together."""
    if db not in _looks:
        _looks[db] = Together(partial(_read, db), lambda asked: (asked[0], asked[1].chosen))
    return _looks[db]


async def _read(db: Database, asked: Sequence[tuple[WorkspaceId, Asked]]) -> list[Page]:
    workspace_id = asked[0][0]
    async with db.connection() as conn, at_once.undone_if_it_fails(conn):
        confined = await isolation.confinement(db, conn, workspace_id)
        return await messages.pages(conn, workspace_id, [each for _, each in asked], limit=PAGE, confined=confined)


@asynccontextmanager
async def _set_after(first: asyncio.Event, second: asyncio.Event) -> AsyncIterator[None]:
    """Setting the first event sets the second too, so that one wait is for both."""
    following = asyncio.create_task(first.wait())
    following.add_done_callback(lambda _: second.set())
    try:
        yield
    finally:
        following.cancel()


async def _rest(changed: asyncio.Event, quiet_since: float, beat: float | None, poll: float) -> bool:
    """Sleep until something changed, or the next poll is due; whether it has been quiet for a whole beat."""
    loop = asyncio.get_running_loop()
    left = quiet_since + beat - loop.time() if beat is not None else poll
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, min(left, poll))):
            await changed.wait()
    return beat is not None and not changed.is_set() and loop.time() >= quiet_since + beat


async def check_role(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, role: str) -> None:
    rules.check_role(role, await messages.seats(conn, workspace_id, session_id))


async def ack(
    conn: Connection,
    workspace_id: WorkspaceId,
    session_id: SessionId,
    role: str,
    ids: Sequence[int],
    *,
    field: str = "ids",
) -> None:
    """Take messages off a role's inbox for good. A repeat changes nothing. `field` is where the request names them."""
    found = await messages.ack(conn, workspace_id, session_id, role, ids)
    if missing := sorted(set(ids) - found):
        raise NotFound(
            f"Message {missing[0]} of this session was not sent to {role!r}.", code="not_delivered", field=field
        )


def shown(message: Message) -> dict[str, Any]:
    """A message as the API and the desk give it."""
    return {
        "id": message.id, "from": message.data.get("from"), "to": message.data.get("to"),
        "body": message.data.get("body"), "run_id": message.run_id, "attempt": message.attempt,
        "created_at": message.created_at, "deliveries": message.deliveries,
    }  # fmt: skip
