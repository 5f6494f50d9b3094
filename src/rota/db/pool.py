"""Connections: a pool for the work of a process, and single ones for what must never wait for a place in it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import orjson
import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from rota.errors import Busy, CannotStart

Connection: TypeAlias = AsyncConnection[TupleRow]

OLDEST = 140_000
CONNECT_SECONDS = 10
WAIT_SECONDS = 5.0

# What ends by itself: the server restarts, a deadlock is broken, a place in the pool becomes free.
PASSING = (psycopg.OperationalError, psycopg.InterfaceError, Busy, OSError)

# PostgreSQL writes 1e300 in full; json would make of it a whole number that orjson refuses to write again.
set_json_loads(orjson.loads)


class Database:
    """One process's way to PostgreSQL. Connections commit each statement unless a transaction is open."""

    def __init__(self, url: str, *, size: int = 10, prepared: bool = True) -> None:
        self.url = url
        self._options: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": 5 if prepared else None,
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "rota",
        }
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url, kwargs=self._options, min_size=1, max_size=max(size, 2), timeout=WAIT_SECONDS, open=False,
            configure=_in_utc,
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
        except PoolTimeout:
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
        conn = await AsyncConnection.connect(self.url, **self._options)
        await _in_utc(conn)
        return conn


async def _in_utc(conn: Connection) -> None:
    """Times come back in UTC, whatever the database's own zone is."""
    await conn.execute("SET TIME ZONE 'UTC'")


async def check(url: str) -> None:
    """Refuse a database that cannot be reached or is too old, in words, without the password."""
    try:
        async with await AsyncConnection.connect(url, connect_timeout=CONNECT_SECONDS) as conn:
            version = conn.info.server_version
    except (psycopg.Error, UnicodeError) as failure:  # a host's name that is no name at all is a UnicodeError
        raise CannotStart(
            f"Cannot use the database {shown(url)}: {_reason(failure, url)}", field="ROTA_DATABASE_URL"
        ) from None
    if version < OLDEST:
        raise CannotStart(
            f"The database {shown(url)} is PostgreSQL {version // 10000}; Rota needs {OLDEST // 10000} or newer.",
            field="ROTA_DATABASE_URL",
        )


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
        return "it is not a URL like postgresql://user:password@host:5432/database"
    if "@" in str(parts.get("host")):  # the rest of the password: it must not be shown either
        return "an @ in the user or the password is written as %40"
    text = re.sub(r"\s+", " ", str(failure)).strip()
    password = str(parts.get("password") or "")
    return re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "…", text) if password else text
