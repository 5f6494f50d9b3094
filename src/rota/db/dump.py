"""Whole tables as text with named columns, out of one snapshot of a database and into an empty one.

The text is that of COPY, which PostgreSQL reads in every version and which does not depend on how it stores rows.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, sql
from psycopg.rows import TupleRow

from rota.errors import CannotStart, Conflict

# A trigger of `runs` writes these three. The migrations of a database are written by those who apply them.
DERIVED = ("live_runs", "ready_runs", "taken_runs", "migrations")

OPTIONS: dict[str, Any] = {
    "autocommit": True, "prepare_threshold": None, "client_encoding": "UTF8", "application_name": "rota",
    "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,  # to notice a server that is gone
}  # fmt: skip

TABLES = """
SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum), greatest(c.reltuples, 0)::bigint,
       row_security_active(c.oid) AND NOT EXISTS (
           SELECT FROM pg_policy p
            WHERE p.polrelid = c.oid AND p.polname = 'house'
              AND EXISTS (SELECT FROM unnest(p.polroles) role WHERE pg_has_role(role, 'USAGE')))
  FROM pg_class m
       JOIN pg_class c ON c.relnamespace = m.relnamespace AND c.relkind = 'r' AND NOT c.relname = ANY(%s)
       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 WHERE m.oid = to_regclass('migrations')
 GROUP BY c.oid, c.relname, c.reltuples
 ORDER BY c.relname
"""

REFERENCES = """
SELECT c.relname, r.relname
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class r ON r.oid = k.confrelid
 WHERE k.contype = 'f' AND c.oid <> r.oid AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('migrations'))
"""

OTHER_TABLES = """
SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
"""

SCHEMA_OF = "SELECT number, name FROM migrations ORDER BY number"

CONTENTS = "SELECT DISTINCT workspace_id, sha256, size FROM artifacts WHERE sha256 IS NOT NULL"

# As every PostgreSQL reads it, whatever the server or its administrator has chosen, and in the order of storage.
WRITTEN_PLAINLY = """
SELECT set_config(name, value, false)
  FROM (VALUES ('TimeZone', 'UTC'), ('DateStyle', 'ISO'), ('IntervalStyle', 'postgres'), ('bytea_output', 'hex'),
               ('extra_float_digits', '1'), ('synchronize_seqscans', 'off')) AS settings(name, value)
"""

Connection = AsyncConnection[TupleRow]
Schema = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table and those of its columns that are written, not computed."""

    name: str
    columns: list[str]
    estimated_rows: int = 0


@asynccontextmanager
async def connected(owner_url: str) -> AsyncIterator[Connection]:
    """A connection of its own, as the owner of the tables. It waits for as long as a large table takes to be copied,
    indexed and checked."""
    async with await AsyncConnection.connect(owner_url, **OPTIONS) as conn:
        await conn.execute(WRITTEN_PLAINLY)
        yield conn


@asynccontextmanager
async def snapshot(conn: Connection) -> AsyncIterator[Schema]:
    """A transaction that sees the database as it is now, with the migrations that its schema has. Raises if these are
    not the same at the end: rows of a table that was rewritten meanwhile may be missing."""
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        schema = await schema_of(conn)
        yield schema
    if await schema_of(conn) != schema:
        raise Conflict("The schema was brought up to date meanwhile. Back up again.", code="schema_changed")


async def schema_of(conn: Connection) -> Schema:
    """Numbers and names of the migrations; none if this is no database of Rota."""
    [(known,)] = await _rows(conn, "SELECT to_regclass('migrations') IS NOT NULL")
    return [(number, name) for number, name in await _rows(conn, SCHEMA_OF)] if known else []


async def tables(conn: Connection) -> list[Table]:
    """All tables that hold something of their own, each after those that it refers to."""
    found = await _rows(conn, TABLES, [list(DERIVED)])
    if hidden := [name for name, _, _, hides in found if hides]:
        raise CannotStart(
            f"Row-level security hides rows of {', '.join(hidden)} from this user of the database. "
            "Use the URL of the user who owns the tables (ROTA_DATABASE_URL).",
            code="rows_hidden",
            field="ROTA_DATABASE_URL",
        )
    by_name = {name: Table(name, columns, rows) for name, columns, rows, _ in found}
    order = TopologicalSorter[str](dict.fromkeys(by_name, ()))
    for table, referred in await _rows(conn, REFERENCES):
        if table in by_name and referred in by_name:
            order.add(table, referred)
    return [by_name[name] for name in order.static_order()]


async def refuse_if_not_empty(conn: Connection, where: str) -> None:
    """Raise unless there is no table at all."""
    [(count,)] = await _rows(conn, OTHER_TABLES)
    if count:
        raise Conflict(
            f"The database {where} is not empty: it has {count} tables. Rota restores into an empty database only: "
            "name a new home with --home, or a new database with ROTA_DATABASE_URL.",
            code="not_empty",
        )


async def copy_out(conn: Connection, table: Table) -> AsyncIterator[bytes]:
    """The rows as lines of COPY text, in pieces that end with a line."""
    query = sql.SQL("COPY (SELECT {} FROM ONLY {}) TO STDOUT").format(_names(table), sql.Identifier(table.name))
    async with conn.cursor() as cursor, cursor.copy(query) as copy:
        async for piece in copy:
            yield bytes(piece)


async def copy_in(conn: Connection, table: Table, pieces: Iterable[bytes]) -> int:
    """Write lines of COPY text; how many rows these were."""
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), _names(table))
    cursor: AsyncCursor[TupleRow]
    async with conn.cursor() as cursor:
        async with cursor.copy(query) as copy:
            for piece in pieces:
                await copy.write(piece)
        return cursor.rowcount


async def contents(conn: Connection) -> list[tuple[Any, bytes, int]]:
    """Workspace, hash and size of every content that an artifact refers to."""
    return [(workspace_id, bytes(sha256), size) for workspace_id, sha256, size in await _rows(conn, CONTENTS)]


async def sealing_keys(conn: Connection, among: Iterable[Table]) -> set[str]:
    """Ids of the vault's keys with which anything is sealed."""
    sealed = [sql.Identifier(each.name) for each in among if "sealed" in each.columns]
    if not sealed:
        return set()
    ids = sql.SQL(" UNION ").join(
        sql.SQL("SELECT encode(substr(sealed, 2, get_byte(sealed, 0)), 'escape') FROM {}").format(each)
        for each in sealed
    )
    return {key_id for (key_id,) in await (await conn.execute(ids)).fetchall()}


async def analyze(conn: Connection) -> None:
    """Have the planner know how large the tables are."""
    await conn.execute("ANALYZE")


def _names(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(each) for each in table.columns)


async def _rows(conn: Connection, query: str, values: Sequence[Any] = ()) -> list[TupleRow]:
    return await (await conn.execute(query.encode(), values)).fetchall()
