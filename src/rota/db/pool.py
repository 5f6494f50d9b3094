"""Connections: a pool for the work of a process, and single ones for what must never wait for a place in it."""

import asyncio
import os
import re
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import orjson
import psycopg
from psycopg import AsyncConnection, AsyncTransaction
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests

from rota.db.write_health import UNWRITABLE, WriteHealth
from rota.errors import Busy, CannotStart, DatabaseAway
from rota.timeouts import keepalives, session_limits, transaction_limits

Wake = Callable[[str, Iterable[object]], None]  # a topic, and what happened there
Tell = Callable[["Connection"], Awaitable[None]]

OLDEST = 140_000
LONGEST_REMEMBERED = 4096
CONNECT_SECONDS = 10
FIRST_PLANNED_FOR = 100  # rows
WAIT = timedelta(seconds=2)  # for a free connection; then whoever asked is told to come again
MOST_WAITING = 500
ANSWER = timedelta(seconds=30)
# Text as psycopg reads it, whatever the server or its administrator has chosen for this user; times in UTC.
READABLE = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}
PLAN_ONCE = """
SELECT set_config(name, given, false) FROM (VALUES ('plan_cache_mode', 'force_generic_plan'),
       ('enable_seqscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off')) AS settings(name, given)
"""

_NO_URL = "not a URL like postgresql://user:password@host:5432/database"

# What ends by itself: the server restarts, a deadlock is broken, a place in the pool becomes free.
PASSING = (
    psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.ReadOnlySqlTransaction, Busy, OSError,
)  # fmt: skip
# Another was first: who looks again sees it, and writes something else.
OVERTAKEN = (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)
MOST_OVERTAKEN = 3  # times, of one who does not give up at once

# PostgreSQL writes 1e300 in full; json would make of it a whole number that orjson refuses to write again.
set_json_loads(orjson.loads)


def short(statement: str) -> str:
    """Without comments and indentation: psycopg remembers how it has read a statement up to 4,096 characters only."""
    lines = (line.strip() for line in statement.splitlines())
    shortened = "\n".join(line for line in lines if line and not line.startswith("--"))
    assert len(shortened) <= LONGEST_REMEMBERED, f"it has {len(shortened)} characters: {shortened[:80]}"
    return shortened


class PatientConnection(AsyncConnection[TupleRow]):
    """Hangs up when the database says nothing for too long. TCP alone would wait for a quarter of an hour, and for ever
    if something in between still answers for it."""

    patience = ANSWER.total_seconds()
    hung_up = False

    async def wait(self, *args: Any, **options: Any) -> Any:
        # Not by a cancellation: psycopg would first ask the server, through the same silence, to end the statement.
        self._set_alarm()
        try:
            return await super().wait(*args, **options)
        finally:
            self._alarm.cancel()

    def _set_alarm(self) -> None:
        self._alarm = asyncio.get_running_loop().call_later(self.patience, self._hang_up)

    def _hang_up(self) -> None:
        """Unless the server has answered, and it is this process that slept."""
        if self.closed:
            return
        if _has_input(self.fileno()):
            self._set_alarm()
        else:
            self.hung_up = True
            with socket.socket(fileno=os.dup(self.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)


def _prepare_session(answer: timedelta) -> str:
    """Set what holds for the session; the limits only where it is the server's own. Behind a pooler, which tells a number
    of its own for the server's process, they would stay with a server connection that anybody may use next: then the
    first column is false."""
    direct = "pg_backend_pid() = %(pid)s"
    limits = [f"CASE WHEN {direct} THEN {_set(*each, 'false')} END" for each in session_limits(answer).items()]
    return f"SELECT {direct}, {', '.join([*(_set(*each, 'false') for each in READABLE.items()), *limits])}"


def _limit_transaction(answer: timedelta) -> str:
    return f"SELECT {', '.join(_set(*each, 'true') for each in transaction_limits(answer).items())}"


def _set(name: str, value: str, local: str) -> str:
    return f"set_config('{name}', '{value}', {local})"


def _has_input(file: int) -> bool:
    look = select.poll()
    look.register(file, select.POLLIN)
    return bool(look.poll(0))


class Connection(PatientConnection):
    """Wakes others once what it wrote is committed: whoever changes something says so where it does, and whoever commits
    cannot forget it. What is rolled back wakes nobody."""

    database: "Database"
    transaction_limits = ""  # the statement with which each transaction sets them for itself behind a pooler
    tells_at_once = True  # other processes, before whoever committed goes on

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._wakes: list[tuple[str, object]] = []
        self.rollbacks = 0  # with each, psycopg forgets all that is prepared
        self._afterwards: list[Callable[[], None]] = []

    @property
    def was_ended(self) -> bool:
        """Whether the server or the network ended it, and not our own patience."""
        return self.broken and not self.hung_up

    async def is_direct(self) -> bool:
        """Whether what is prepared or set here stays here. Behind a pooler the next transaction may be another server's, and
        this one's next may be anybody's; it tells a number of its own for the server's process."""
        if self.prepare_threshold is None:
            return False
        row = await (await self.execute("SELECT pg_backend_pid()", prepare=False)).fetchone()
        return row == (self.info.backend_pid,)

    async def wait(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().wait(*args, **options)
        except UNWRITABLE as failure:
            self.note(failure)
            raise

    def note(self, failure: psycopg.Error) -> psycopg.Error:
        """For `/readyz`, if it is of the kind that other writes would meet too."""
        if isinstance(failure, UNWRITABLE):
            self.database.write_health.note(failure)
        return failure

    def afterwards(self, call: Callable[[], None]) -> None:
        """Call this at the end of the transaction if it is kept, or at once if none is open."""
        self._afterwards.append(call)
        if self._idle():
            self._call_afterwards()

    def wake(self, topic: str, payloads: Iterable[object] = ("",)) -> None:
        """At the end of the transaction, or at once if none is open."""
        self._wakes += [(topic, payload) for payload in payloads]
        if self._idle():
            self._send_wakes()

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[AsyncTransaction]:
        before, kept = (len(self._wakes), len(self._afterwards)), False
        try:
            outermost = self._idle()
            async with super().transaction(savepoint_name, force_rollback) as transaction:
                if outermost:
                    await self.limit_transaction()
                yield transaction
                kept = not force_rollback
        except BaseException:
            kept = False
            raise
        finally:
            if not kept:
                del self._wakes[before[0] :], self._afterwards[before[1] :]
                self.rollbacks += 1
        await self.tell()

    async def limit_transaction(self) -> None:
        """Bound the transaction that has just begun, unless its session is bounded."""
        if self.transaction_limits:
            await self.execute(self.transaction_limits.encode())

    async def commit(self) -> None:
        await super().commit()
        await self.tell()

    async def rollback(self) -> None:
        self._wakes.clear()
        self._afterwards.clear()
        self.rollbacks += 1
        await super().rollback()

    async def tell(self) -> None:
        """Those who are to hear of it, if it is committed."""
        if self._afterwards and self._idle():
            self._call_afterwards()
        if self._idle() and self._wakes:
            self._send_wakes()
            if self.tells_at_once:
                await self.database.tell(self)

    def _idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    def _call_afterwards(self) -> None:
        calls, self._afterwards = self._afterwards, []
        for call in calls:
            call()

    def _send_wakes(self) -> None:
        sent, self._wakes = self._wakes, []
        for topic in dict.fromkeys(topic for topic, _ in sent):
            self.database.waker(topic, [payload for about, payload in sent if about == topic])


def _wake_nobody(topic: str, payloads: Iterable[object]) -> None:
    """Polling finds it too."""


async def _tell_nobody(conn: Connection) -> None:
    """As above."""


class Database:
    """One process's way to PostgreSQL. Connections commit each statement unless a transaction is open."""

    def __init__(
        self, url: str, *, size: int = 10, prepared: bool = True, answer: timedelta = ANSWER, wait: timedelta = WAIT
    ) -> None:
        """A caller gets an error after it waited for a free connection for `wait`."""
        self.url = url
        self.answer = answer  # a connection on which the database says nothing for so long is hung up
        self._prepare_session = _prepare_session(answer)
        self.waker: Wake = _wake_nobody  # until rota.db.listener.Wakes does
        self.tell: Tell = _tell_nobody
        self.api_role: str | None = None  # found by rota.db.isolation at its first use
        self.knows_api_role = False
        self.write_health = WriteHealth()
        self._options: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": 5 if prepared else None,
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "rota",
            "client_encoding": "UTF8",  # else PGCLIENTENCODING or the database's own choice counts
            **keepalives(answer),
        }
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url, connection_class=Connection, kwargs=self._options, min_size=1, max_size=max(size, 2),
            timeout=wait.total_seconds(), max_waiting=MOST_WAITING, open=False, configure=self._prepare,
        )  # fmt: skip

    async def open(self) -> None:
        await check(self.url)
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close(timeout=5)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        try:
            conn = await self._pool.getconn()
        except (PoolTimeout, TooManyRequests):
            raise Busy("No database connection became free; try again in a moment.") from None
        try:
            yield conn
        finally:
            await self._pool.putconn(conn)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.connection() as conn, conn.transaction():
            yield conn

    async def reserve(self) -> Connection:
        """A connection of its own, outside the pool."""
        conn = await Connection.connect(self.url, **self._options)
        conn.tells_at_once = False
        await self._prepare(conn)
        return conn

    async def _prepare(self, conn: Connection) -> None:
        conn.patience = self.answer.total_seconds()
        conn.database = self
        cursor = await conn.execute(self._prepare_session.encode(), {"pid": conn.info.backend_pid}, prepare=False)
        row = await cursor.fetchone()
        if row and not row[0]:
            conn.transaction_limits = _limit_transaction(self.answer)


class Reserved:
    """One connection outside the pool for work that never waits behind other work. Opened when it is first needed, and
    again after anything went wrong on it. Its statements are always the same: planned once, for any values, and by the
    indexes also while the tables are small, because the plan is kept when they have grown. While they are nearly empty
    any index is as good as another, so after the first hundred rows, the first thousand and so on it plans anew. Behind a
    pooler they are planned as all others."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._plans = False
        self._conn: Connection | None = None
        self._taken = asyncio.Lock()
        self._written, self._planned_for = 0, FIRST_PLANNED_FOR

    def wrote(self, rows: int) -> None:
        """So much was written here."""
        self._written += rows

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._taken:
            if self._conn is None or self._conn.closed:
                self._conn = await self._db.reserve()
                self._plans = await self._conn.is_direct()
                if self._plans:
                    await self._plan_once(self._conn)
            try:
                if self._plans and self._written >= self._planned_for:
                    await self._plan_anew(self._conn)
                yield self._conn
            except BaseException:
                await self._forget()
                raise

    async def _plan_once(self, conn: Connection) -> None:
        conn.prepare_threshold = 0
        await conn.execute(PLAN_ONCE)

    async def _plan_anew(self, conn: Connection) -> None:
        self._planned_for = 10 * self._written
        await conn.execute("DISCARD PLANS")

    async def _forget(self) -> None:
        conn, self._conn = self._conn, None
        if conn:
            await conn.close()

    async def close(self) -> None:
        async with self._taken:
            await self._forget()


def must_be_url(url: str, *, field: str) -> None:
    """Refuse what is no URL of a database at all."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        raise CannotStart(f"{field} is {_NO_URL}.", code="invalid_setting", field=field) from None


async def check(url: str, *, field: str = "ROTA_DATABASE_URL") -> None:
    """Refuse a database that cannot be reached, is too old or cannot hold every text, in words, without the password."""
    try:
        async with await AsyncConnection.connect(url, connect_timeout=CONNECT_SECONDS) as conn:
            version, encoding = conn.info.server_version, conn.info.parameter_status("server_encoding")
    except (psycopg.Error, UnicodeError) as failure:  # a host's name that is no name at all is a UnicodeError
        error = DatabaseAway if passes(failure) else CannotStart
        raise error(f"Cannot use the database {shown(url)}: {_reason(failure, url)}", field=field) from None
    if version < OLDEST:
        raise CannotStart(
            f"The database {shown(url)} is PostgreSQL {version // 10000}; Rota needs {OLDEST // 10000} or newer.",
            field=field,
        )
    if encoding not in {"UTF8", None}:  # a pooler between may not tell
        raise CannotStart(
            f"The database {shown(url)} has the encoding {encoding}; Rota needs UTF8, as from "
            "CREATE DATABASE rota ENCODING 'UTF8' TEMPLATE template0.",
            field=field,
        )


def passes(failure: Exception) -> bool:
    """Whether nobody answered, or a server that cannot yet; not one that answered that it will never let us in. Only the
    text tells: the code of an error does not reach us before there is a connection."""
    told = str(failure)
    passing = (
        "starting up|shutting down|recovery mode|not yet accepting|too many|slots are reserved|terminating connection"
    )
    final = "FATAL" in told and not re.search(passing, told)
    return isinstance(failure, psycopg.OperationalError) and not final


def shown(url: str) -> str:
    """The database as it may stand in a log: where and who, never the password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "(not a PostgreSQL URL)"
    host, port = str(parts.get("host") or "localhost").rpartition("@")[2], parts.get("port")
    return f"{parts.get('user') or ''}@{host}{f':{port}' if port else ''}/{parts.get('dbname') or ''}".lstrip("@")


def _reason(failure: Exception, url: str) -> str:
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return f"it is {_NO_URL}"
    if "@" in str(parts.get("host")):  # the rest of the password: it must not be shown either
        return "an @ in the user or the password is written as %40"
    text = re.sub(r"\s+", " ", str(failure)).strip()
    password = str(parts.get("password") or "")
    return re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "…", text) if password else text
