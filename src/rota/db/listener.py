"""NOTIFY only wakes: one LISTEN connection for each process, and one coalescing sender."""

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from itertools import filterfalse
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, sql

from rota.db.pool import ANSWER, CONNECT_SECONDS, Connection, Database, PatientConnection

log = logging.getLogger(__name__)

TRIGGERS = "rota_triggers"
RUNS = "rota_runs"
CANCELS = "rota_cancels"
ANSWERS = "rota_answers"
OUTWARD = "rota_outward"
BELL = "rota_bell"
SCHEMA = "rota_schema"

WINDOW_SECONDS = 0.001
RETRY = timedelta(seconds=0.5)
PING_SECONDS = 30.0

Handler = Callable[[str], None]

NOTIFY = """
-- A notification makes its transaction one that is written to disk. Nobody waits for that: it need not survive a crash,
-- after which everybody reads the tables anyway.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, payload)
  FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS n(channel, payload)
"""


# A topic is a channel, or one thing on it after a colon. A notification names many things at once: a batch of runs in as
# many sessions is one NOTIFY, not one for each.
LONGEST_NAMES = 7_960  # PostgreSQL takes less than 8,000 bytes, and the sender comes behind them
MOST_SESSIONS = LONGEST_NAMES // 33  # each by 32 digits and a comma


SESSIONS = "rota_sessions"


def session_channel(session_id: UUID) -> str:
    return f"{SESSIONS}:{session_id.hex}"


def _channel(topic: str) -> str:
    return topic.partition(":")[0]


class Wakes:
    """Tells other processes that something changed: after the commit, many at once, in a statement of its own.

    What a connection of this database is to wake (`Connection.wake`) is sent here once it is committed. Those who listen
    in this process are told at once. A lost notification costs time, never truth.
    """

    def __init__(self, db: Database, listener: "Listener") -> None:
        self.listener = listener
        self._db = db
        db.waker, db.tell = self.send, self._tell_by
        self._pending: dict[str, dict[str, None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._sent_at = 0.0

    def send(self, topic: str, payloads: Iterable[object] = ("",)) -> None:
        channel, _, about = topic.partition(":")
        self._tell(channel, [about] if about else map(str, payloads))

    def tell_sessions(self, session_ids: Iterable[UUID]) -> None:
        """As `send` to the channel of each, for many at once."""
        self._tell(SESSIONS, [each.hex for each in session_ids])

    def _tell(self, channel: str, named: Iterable[str]) -> None:
        names = dict.fromkeys(named)
        if names:
            self.listener.hear(channel, names)
            self._send_soon({channel: names})

    def _send_soon(self, named: Mapping[str, dict[str, None]]) -> None:
        for channel, names in named.items():
            self._pending.setdefault(channel, {}).update(names)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        """The first goes out at once; what follows within the window goes together."""
        while self._pending:
            await asyncio.sleep(max(0.0, self._sent_at + WINDOW_SECONDS - time.monotonic()))
            if self._pending:
                await self._notify(self._db.connection())

    async def _tell_by(self, conn: Connection) -> None:
        """On the connection that has just committed, which is awake, if the first goes out now; otherwise it waits for
        those that follow."""
        if self._pending and time.monotonic() >= self._sent_at + WINDOW_SECONDS:
            await self._notify(nullcontext(conn))

    async def _notify(self, connection: AbstractAsyncContextManager[Connection]) -> None:
        sent, self._pending = self._pending, {}
        self._sent_at = time.monotonic()
        told = [(channel, names) for channel, named in sent.items() for names in _together(named)]
        payloads = [f"{names} {self.listener.sender}" for _, names in told]
        try:
            async with connection as conn:
                await conn.execute(NOTIFY, {"channels": [channel for channel, _ in told], "payloads": payloads})
        except asyncio.CancelledError:  # who committed is gone; who is to be told is not
            self._send_soon(sent)
            raise
        except Exception as failure:  # polling is the net under every notification
            log.warning("wake.failed", extra={"error": str(failure)})

    async def close(self) -> None:
        if self._task:
            await self._task


def _together(names: Iterable[str]) -> Iterator[str]:
    given = list(names)
    most = LONGEST_NAMES // (max(map(len, given)) + 1)
    return (",".join(given[at : at + most]) for at in range(0, len(given), most))


def _told(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}".strip()


class Listener:
    """The process's one LISTEN connection. After every (re)connect it wakes everybody, who then read the tables.

    A notification ends with its sender: what this process sends, it was told before, and is not told again."""

    def __init__(self, url: str, *, answer: timedelta = ANSWER, retry: timedelta = RETRY) -> None:
        """After a lost connection, the next attempt comes after `retry`."""
        self.sender = secrets.token_hex(4)
        self._url = url
        self._answer = answer.total_seconds()
        self._retry = retry.total_seconds()
        self._handlers: dict[str, list[Handler]] = defaultdict(list)
        self._named: Counter[str] = Counter()  # how many on each channel mean one thing only
        self._conn: AsyncConnection[tuple[object, ...]] | None = None
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._listening: set[str] = set()
        self._watched: int | None = None

    def listens_to(self, channel: str) -> bool:
        """Whether notifications on this channel arrive, because PostgreSQL has confirmed LISTEN."""
        return channel in self._listening

    def on(self, channel: str, handler: Handler) -> None:
        self._handlers[channel].append(handler)
        self._named[_channel(channel)] += ":" in channel
        self._changed.set()

    def off(self, channel: str, handler: Handler) -> None:
        self._handlers[channel].remove(handler)
        self._named[_channel(channel)] -= ":" in channel
        if not self._handlers[channel]:
            del self._handlers[channel]
            self._changed.set()

    def handler_counts(self) -> dict[str, int]:
        """How many handlers wait for each channel."""
        return {channel: len(handlers) for channel, handlers in self._handlers.items()}

    @asynccontextmanager
    async def subscribed(self, channel: str, handler: Handler) -> AsyncIterator[None]:
        self.on(channel, handler)
        try:
            yield
        finally:
            self.off(channel, handler)

    def dispatch(self, channel: str, payload: str) -> None:
        if handlers := self._handlers.get(channel):
            for handler in tuple(handlers):
                try:
                    handler(payload)
                except Exception as failure:  # anybody may notify, with any words: one who balks costs nobody a wake
                    log.warning("wake.unheard", extra={"channel": channel, "error": _told(failure)})

    def hear(self, channel: str, names: Collection[str]) -> None:
        """Something happened to each of these."""
        if channel in self._handlers:
            for name in names:
                self.dispatch(channel, name)
        if self._named[channel]:
            for topic in [f"{channel}:{name}" for name in names]:
                self.dispatch(topic, "")

    def _notified(self, channel: str, payload: str) -> None:
        names, _, sender = payload.partition(" ")
        if sender != self.sender:
            self.hear(channel, names.split(","))

    async def run(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as failure:  # the top of a loop: nobody else would listen
                log.warning("listener.lost", extra={"error": _told(failure)})
            await asyncio.sleep(self._retry)

    async def _listen(self) -> None:
        options = {"autocommit": True, "application_name": "rota listener", "connect_timeout": CONNECT_SECONDS}
        async with await PatientConnection.connect(self._url, **options) as conn:  # type: ignore[arg-type]
            conn.patience = self._answer
            conn.add_notify_handler(lambda told: self._notified(told.channel, told.payload))
            self._conn, self._listening = conn, set()
            self._lost.clear()
            try:
                await self._follow_handlers()
                log.debug("listener.connected")
                while not self._lost.is_set():
                    await self._wait_for_change()
                    await self._follow_handlers()
            finally:
                self._unwatch()
                self._conn, self._listening = None, set()

    async def _wait_for_change(self) -> None:
        """Sleep until the set of channels changed; now and then ask the server whether it still lives."""
        assert self._conn
        self._watch()
        try:
            async with asyncio.timeout(min(PING_SECONDS, self._answer)):
                await self._changed.wait()
        except TimeoutError:
            self._unwatch()
            await self._conn.execute("SELECT 1")

    async def _follow_handlers(self) -> None:
        assert self._conn
        self._unwatch()
        self._changed.clear()
        wanted = set(self.handler_counts())
        now, before = {_channel(topic) for topic in wanted}, {_channel(topic) for topic in self._listening}
        for channel in now - before:
            await self._conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        for channel in before - now:
            await self._conn.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
        for topic in filterfalse(self.listens_to, wanted):
            self.dispatch(topic, "")  # what was committed before LISTEN is found by reading once
        self._listening = wanted
        self._drain()

    # psycopg reads the socket while a statement runs, and tells its notify handler what it found; in between we do, so
    # that LISTEN can follow the handlers.
    def _watch(self) -> None:
        assert self._conn
        self._watched = self._conn.fileno()
        asyncio.get_running_loop().add_reader(self._watched, self._readable)

    def _unwatch(self) -> None:
        """Also when the connection is gone: the number of its closed socket soon belongs to somebody else."""
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _readable(self) -> None:
        assert self._conn
        try:
            self._conn.pgconn.consume_input()
        except psycopg.Error:
            self._unwatch()
            self._lost.set()
            self._changed.set()
            return
        self._drain()

    def _drain(self) -> None:
        assert self._conn
        while notification := self._conn.pgconn.notifies():
            self._notified(notification.relname.decode(), notification.extra.decode())
