"""Stored, then live: everything after a sequence number, without gap or repeat, on any replica."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from rota.db import events, isolation
from rota.db.events import Event, Page
from rota.db.listener import Listener, session_channel
from rota.db.pool import Database
from rota.db.together import Together
from rota.model.ids import SessionId, WorkspaceId

log = logging.getLogger(__name__)

T = TypeVar("T")
Look = Together[tuple[WorkspaceId, SessionId, int], Page]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is read and held at once, and how long nothing is heard before something is done."""

    page: int = 500
    kept: int = 1000  # events of a session, held for those who follow it
    kept_bytes: int = 4 * 1024 * 1024
    poll_seconds: float = 1.0  # until a session is read without a notification
    beat_seconds: float = 15.0  # until an empty page is given out


@dataclass(slots=True)
class Told:
    """Events that came together; empty when nothing came for a while. Readers who are up to date all get the same
    object, so that what one of them makes of it serves the others too."""

    events: Sequence[Event] = ()
    more: bool = False  # may be stored that nobody told of
    _made: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.events)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What the first reader made under this name."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    def size(self) -> int:
        return self.once("size", lambda: sum(len(orjson.dumps(event.data)) for event in self.events))


class Readers:
    """All who follow sessions in this process. However many follow one session, a change costs one query; and sessions
    that change at the same time are read together."""

    def __init__(self, db: Database, listener: Listener, closing: asyncio.Event, limits: Limits | None = None) -> None:
        self._db = db
        self._listener = listener
        self._closing = closing
        self.limits = limits or Limits()
        self.feeds: dict[tuple[WorkspaceId, SessionId], Feed] = {}
        self._look = Together(self._read, lambda asked: asked[0])

    async def _read(self, asked: Sequence[tuple[WorkspaceId, SessionId, int]]) -> list[Page]:
        """The next page of several sessions of one workspace."""
        workspace_id = asked[0][0]
        async with isolation.in_workspace(self._db, workspace_id) as conn:
            after = [(session_id, seq) for _, session_id, seq in asked]
            return await events.pages(conn, workspace_id, after, limit=self.limits.page)

    async def follow(self, workspace_id: WorkspaceId, session_id: SessionId, *, after: int) -> AsyncGenerator[Told]:
        """What comes after this number; something empty when nothing came for `beat_seconds`, to keep the line alive.
        Ends soon after the process begins to close.

        A session's numbers are in commit order, so "after N" can never pass over a row that is committed later.
        """
        async with self._feed(workspace_id, session_id) as feed:
            while not self._closing.is_set():
                # Both are taken before the look: what comes meanwhile is not slept over, and not passed over.
                changed, floor = feed.changed, feed.floor
                told = feed.kept_after(after) if after >= floor else await feed.stored_after(after)
                if told:
                    after = told.events[-1].seq
                    yield told
                elif after < floor:
                    after = floor  # what stood between was pruned
                elif not await _within(self.limits.beat_seconds, changed) and not self._closing.is_set():
                    yield Told()

    @asynccontextmanager
    async def _feed(self, workspace_id: WorkspaceId, session_id: SessionId) -> AsyncIterator["Feed"]:
        key = (workspace_id, session_id)
        feed = self.feeds.get(key)
        if feed is None:
            feed = self.feeds[key] = Feed(self._db, self._look, workspace_id, session_id, self.limits)
        feed.readers += 1
        try:
            await feed.start(self._listener, self._closing)
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                del self.feeds[key]
                feed.stop()


class Feed:
    """The newest events of one session, read once for all of its readers. `floor` and everything before it is only in
    the table: who is further behind, or too slow, reads there alone."""

    def __init__(
        self, db: Database, look: Look, workspace_id: WorkspaceId, session_id: SessionId, limits: Limits
    ) -> None:
        self.readers = 0
        self.floor = 0
        self.changed = asyncio.Event()
        self._db, self._look, self._limits = db, look, limits
        self._of = (workspace_id, session_id)
        self.kept: deque[Told] = deque()
        self._head = 0
        self._woken = asyncio.Event()
        self._starting = asyncio.Lock()
        self._ear = (session_channel(session_id), lambda _: self._woken.set())
        self._stop: Callable[[], None] | None = None

    async def start(self, listener: Listener, closing: asyncio.Event) -> None:
        """Listen, then look where the log ends: what is written in between is read twice rather than never."""
        async with self._starting:
            if self._stop:
                return
            with ExitStack() as started:
                started.callback(listener.off, *self._ear)
                listener.on(*self._ear)
                async with isolation.in_workspace(self._db, self._of[0]) as conn:
                    self.floor = self._head = await events.last_seq(conn, *self._of)
                started.callback(asyncio.create_task(self._read_on(closing)).cancel)
                self._stop = started.pop_all().close

    def stop(self) -> None:
        if self._stop:
            self._stop()

    def kept_after(self, after: int) -> Told:
        """The next of what is kept: nearly always the newest, so the search begins there."""
        following = Told()
        for told in reversed(self.kept):
            if told.events[-1].seq <= after:
                break
            following = told
        if not following or following.events[0].seq > after:
            return following
        return Told([event for event in following.events if event.seq > after])

    async def stored_after(self, after: int) -> Told:
        page = await self._look((*self._of, after))
        return Told(page.events, page.more)

    async def _read_on(self, closing: asyncio.Event) -> None:
        while True:
            self._woken.clear()
            try:
                told = await self.stored_after(self._head)
            except Exception as failure:  # the top of a loop: nobody else reads on for those who follow
                log.warning("trace.unread", extra={"error": f"{type(failure).__name__}: {failure}".strip()})
                told = Told()
            if told:
                self._keep(told)
            elif closing.is_set():
                self._tell()
            if not told.more:
                await _within(self._limits.poll_seconds, self._woken)

    def _keep(self, told: Told) -> None:
        self.kept.append(told)
        self._head = told.events[-1].seq
        while len(self.kept) > 1 and self._is_too_much():  # many may want the newest
            self.floor = self.kept.popleft().events[-1].seq
        self._tell()

    def _is_too_much(self) -> bool:
        if sum(len(each.events) for each in self.kept) > self._limits.kept:
            return True
        return sum(map(Told.size, self.kept)) > self._limits.kept_bytes

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
