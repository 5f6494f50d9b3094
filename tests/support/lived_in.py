"""Rows for every table as older versions of Rota wrote them: `tests/db/lived_in` has a file for each migration behind which
Rota began to write something new."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from rota.db.migrate import TABLE, Migration

LIVED_IN = Path(__file__).parents[1] / "db" / "lived_in"

# Ids by name, as Rota makes them: they begin with the milliseconds of their making, here noon of 2026-06-01.
KNOWN = """
CREATE SCHEMA known;
CREATE FUNCTION known.id(name text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(1780315200000), 12, '0') || '7' || left(md5(name), 3) || '8' || substr(md5(name), 4, 15))::uuid $$;
CREATE FUNCTION known.hash(secret text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(convert_to(secret, 'UTF8')) $$;
SET search_path = public, known;
"""

TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'migrations'"

Rows = dict[str, list[dict[str, Any]]]


def rows(conn: psycopg.Connection[Any]) -> Rows:
    """Every row of every table, as JSON."""
    tables = [table for (table,) in conn.execute(TABLES)]
    return {table: [row for (row,) in conn.execute(f"SELECT to_jsonb(t) FROM {table} t".encode())] for table in tables}


def live_in(url: str, chain: Sequence[Migration]) -> None:
    """Give an empty database the schema of these migrations, and the rows that were written behind each."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(KNOWN)
        conn.execute(TABLE.encode())
        for each in chain:
            with conn.transaction():
                conn.execute(each.script.encode())
                conn.execute("INSERT INTO migrations (number, name) VALUES (%s, %s)", [each.number, each.name])
            if (life := LIVED_IN / f"{each.number:04}_{each.name}.sql").exists():
                conn.execute(life.read_bytes())
