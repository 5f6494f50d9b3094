"""Brings the schema up to date: forward-only SQL files, one transaction each, one process at a time."""

import logging
import re
from dataclasses import dataclass
from importlib.resources import files

import psycopg
from psycopg import AsyncConnection, sql

from rota.db.pool import Connection
from rota.errors import CannotStart

log = logging.getLogger(__name__)

LOCK = 0x526F7461  # "Rota": the advisory lock under which migrations run
LOCK_TIMEOUT = "5s"

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
    async with await AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute("SELECT pg_advisory_lock(%s)", [LOCK])  # freed with the connection, also after a crash
        await conn.execute(TABLE)
        present = await applied(conn)
        chain = migrations()
        _refuse_newer(present, chain)
        return [await _apply(conn, each) for each in chain if each.number not in present]


async def applied(conn: Connection) -> set[int]:
    rows = await conn.execute("SELECT number FROM migrations")
    return {number for (number,) in await rows.fetchall()}


async def missing(conn: Connection) -> list[str]:
    """Names of the migrations that this database still lacks."""
    try:
        present = await applied(conn)
    except psycopg.errors.UndefinedTable:
        present = set()
    return [each.name for each in migrations() if each.number not in present]


async def _apply(conn: Connection, migration: Migration) -> str:
    async with conn.transaction():
        await conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT))
        await conn.execute(migration.script.encode())
        await conn.execute("INSERT INTO migrations (number, name) VALUES (%s, %s)", [migration.number, migration.name])
    log.info("schema.migrated", extra={"migration": f"{migration.number:04}_{migration.name}"})
    return migration.name


def _refuse_newer(present: set[int], chain: list[Migration]) -> None:
    newest = max((each.number for each in chain), default=0)
    if ahead := [number for number in present if number > newest]:
        raise CannotStart(
            f"The database is at schema {max(ahead)}, this Rota knows {newest}: it was used by a newer Rota. Update this one."
        )
