"""Brings the schema up to date: forward-only SQL files, one transaction each, one process at a time."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from rota.db import isolation
from rota.db.listener import SCHEMA
from rota.db.pool import passes, shown
from rota.errors import CannotStart, DatabaseAway, NotYet

log = logging.getLogger(__name__)

LOCK = 0x526F7461  # "Rota": the advisory lock under which migrations run
LOCK_TIMEOUT = "5s"
IDLE_TIMEOUT = "15s"  # a frozen process that migrates keeps no other from starting

TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    script: str


def migrations() -> list[Migration]:
    """The chain, in order. A file is `NNNN_verb_object.sql`."""
    found = [
        Migration(int(match[1]), match[2], file.read_text("utf-8"))
        for file in (files("rota.db") / "migrations").iterdir()
        if (match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name))
    ]
    return sorted(found, key=lambda each: each.number)


async def migrate(url: str) -> list[str]:
    """Apply what is missing and return its names. Safe when many processes start together."""
    with _explaining(url):
        # Nothing here outlives its transaction, so that it also works behind PgBouncer.
        options = {"autocommit": True, "prepare_threshold": None, "client_encoding": "UTF8"}
        async with await AsyncConnection.connect(url, **options) as conn:  # type: ignore[arg-type]
            chain = migrations()
            present = await _begin(conn)
            _refuse_newer(present)
            missing = [each for each in chain if each.number not in present]
            if present and missing:  # restored under another owner, its rows would be hidden from what migrates them
                await _protect(conn)
            done = [each for each in missing if await _apply(conn, each)]
            await _protect(conn)
            if done and present:
                await _say_so(conn)
            _tell(done, new=not present)
            return [each.name for each in done]


async def create(conn: AsyncConnection[TupleRow], names: Sequence[tuple[int, str]]) -> None:
    """Give an empty database the schema that consists of these migrations, within the transaction of the caller."""
    known = {(each.number, each.name): each for each in migrations()}
    await conn.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
    await conn.execute(TABLE)
    for each in names:
        await _run(conn, known[each])


async def complete(conn: AsyncConnection[TupleRow]) -> None:
    """Apply whatever is missing after `create`, and row-level security, within the same transaction."""
    present = await applied(conn)
    for each in migrations():
        if each.number not in present:
            await _run(conn, each)
    await isolation.protect(conn)


async def _begin(conn: AsyncConnection[TupleRow]) -> set[int]:
    """What is there already, in a table that is made first if need be."""
    async with conn.transaction():
        await _take_turn(conn)
        await conn.execute(TABLE)
        return await applied(conn)


async def _take_turn(conn: AsyncConnection[TupleRow]) -> None:
    """Wait until no other process migrates. The limit ends with the transaction, so that it also works behind PgBouncer."""
    await conn.execute(sql.SQL("SET LOCAL idle_in_transaction_session_timeout = {}").format(IDLE_TIMEOUT))
    await conn.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])


@contextmanager
def _explaining(url: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise NotYet(
            f"The schema of {shown(url)} must be brought up to date, but somebody holds a table of it locked for longer "
            f"than {LOCK_TIMEOUT}. Nothing was changed. Start again when they are done.",
            code="schema_locked",
        ) from None
    except psycopg.Error as failure:
        reason = str(failure).strip().splitlines()[0]
        if isinstance(failure, psycopg.errors.InsufficientPrivilege):
            reason += ". Rota's user must own the database (ALTER DATABASE … OWNER TO …) and whatever tables are in it."
        error = DatabaseAway if passes(failure) else CannotStart
        raise error(f"Cannot bring the schema of {shown(url)} up to date: {reason}") from failure


async def applied(conn: AsyncConnection[TupleRow]) -> set[int]:
    rows = await conn.execute("SELECT number FROM migrations")
    return {number for (number,) in await rows.fetchall()}


async def missing(conn: AsyncConnection[TupleRow]) -> list[str]:
    """Names of the migrations that this database still lacks."""
    try:
        present = await applied(conn)
    except psycopg.errors.UndefinedTable:
        present = set()
    return [each.name for each in migrations() if each.number not in present]


async def _apply(conn: AsyncConnection[TupleRow], migration: Migration) -> bool:
    """Apply one, unless another process did so while this one waited for its turn."""
    async with conn.transaction():
        await _take_turn(conn)
        if migration.number in await applied(conn):
            return False
        await conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT))
        await _run(conn, migration)
    return True


async def _run(conn: AsyncConnection[TupleRow], migration: Migration) -> None:
    await conn.execute(migration.script.encode())
    await conn.execute("INSERT INTO migrations (number, name) VALUES (%s, %s)", [migration.number, migration.name])


def _tell(done: list[Migration], *, new: bool) -> None:
    """A database that was empty got all of it, which is one piece of news; else each change is one."""
    if new and done:
        log.info("schema.created", extra={"migrations": len(done)})
        return
    for each in done:
        log.info("schema.migrated", extra={"migration": f"{each.number:04}_{each.name}"})


async def _protect(conn: AsyncConnection[TupleRow]) -> None:
    """Whatever the chain made, no table with a workspace stays open to all."""
    async with conn.transaction():
        await _take_turn(conn)
        await conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT))
        await isolation.protect(conn)


async def _say_so(conn: AsyncConnection[TupleRow]) -> None:
    """To older processes, whose tables these were."""
    await conn.execute(sql.SQL("NOTIFY {}").format(sql.Identifier(SCHEMA)))


async def refuse_newer(conn: AsyncConnection[TupleRow]) -> None:
    """Raise if the schema is newer than what this Rota knows."""
    _refuse_newer(await applied(conn))


def _refuse_newer(present: set[int]) -> None:
    known = newest()
    if ahead := [number for number in present if number > known]:
        raise CannotStart(
            f"The database is at schema {max(ahead)}, this Rota knows {known}: it was used by a newer Rota. Update this one.",
            code="schema_newer",
        )


@cache
def newest() -> int:
    """The last migration that this Rota knows."""
    return max((each.number for each in migrations()), default=0)
