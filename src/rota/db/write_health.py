"""Whether writes succeed: noted where one fails, and asked of the database only while they may still fail."""

import asyncio
import time
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.errors import DiskFull, LockNotAvailable, ReadOnlySqlTransaction

UNWRITABLE = (DiskFull, ReadOnlySqlTransaction, LockNotAvailable)
HOLD_SECONDS = 5.0  # after a failure: a small write may still succeed where a larger one fails
PROBE_SECONDS = 2.0

SPILL = """
-- More than fits into this memory goes to a temporary file beside the tables of the database, which needs space there.
SELECT set_config('work_mem', '64kB', true), set_config('temp_tablespaces', '', true)
"""
NEED_SPACE = "SELECT count(*) FROM generate_series(1, 20000)"
WRITE_NOTHING = "UPDATE migrations SET name = name WHERE false"  # refused where nothing may be written

LOCKED = """
-- Tables that nobody can write to. A locked row is not among them: all others can be written.
SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
 WHERE l.granted AND l.locktype = 'relation' AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND c.relkind IN ('r', 'p') AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'migrations'::regclass)
 ORDER BY 1 LIMIT 1
"""


class WriteHealth:
    """Of one process. However often it is asked, the database is asked once in PROBE_SECONDS, and never while all is well."""

    def __init__(self) -> None:
        self._failures: dict[type[psycopg.Error], tuple[psycopg.Error, float]] = {}
        self._probing = asyncio.Lock()
        self._probed_at = -PROBE_SECONDS
        self._answer: psycopg.Error | None = None

    def note(self, failure: psycopg.Error) -> None:
        kind = next(each for each in UNWRITABLE if isinstance(failure, each))
        self._failures[kind] = (failure, time.monotonic())

    async def failure(self, conn: AsyncConnection[Any]) -> psycopg.Error | None:
        """Why writes fail at present; None if they may succeed."""
        for kind, (failure, at) in self._failures.items():
            if kind is not LockNotAvailable and time.monotonic() - at < HOLD_SECONDS:
                return failure
        if not self._failures:
            return None
        async with self._probing:
            if time.monotonic() - self._probed_at >= PROBE_SECONDS:
                self._answer = await self._probe(conn)
                self._probed_at = time.monotonic()
            return self._answer

    async def _probe(self, conn: AsyncConnection[Any]) -> psycopg.Error | None:
        """The failure that is still there; the others are forgotten."""
        for kind, (failure, at) in list(self._failures.items()):
            try:
                await _try_again(conn, kind)
            except UNWRITABLE:
                return failure
            if self._failures[kind][1] == at:  # none came meanwhile
                del self._failures[kind]
        return None


async def _try_again(conn: AsyncConnection[Any], kind: type[psycopg.Error]) -> None:
    async with conn.transaction():
        if kind is DiskFull:
            await conn.execute(SPILL)
            await conn.execute(NEED_SPACE)
        elif kind is ReadOnlySqlTransaction:
            await conn.execute(WRITE_NOTHING)
        elif row := await (await conn.execute(LOCKED)).fetchone():
            raise LockNotAvailable(f"the table {row[0]} is locked")
