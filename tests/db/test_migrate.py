"""Migrations: one process at a time, all or nothing, and one schema whether it is read in the chain or in one piece."""

import asyncio
import importlib.util
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from rota.db import isolation
from rota.db import migrate as chain
from rota.db.embedded import find_binaries
from rota.db.migrate import LOCK, Migration, migrate, migrations, missing
from rota.errors import CannotStart, NotYet
from support.waiting import until

ROOT = Path(__file__).parents[2]
MIGRATING = "import asyncio, sys; from rota.db.migrate import migrate; print(*asyncio.run(migrate(sys.argv[1])))"
NAMES = [each.name for each in migrations()]

WAITING = """
SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
 WHERE NOT l.granted AND l.locktype = %s AND d.datname = current_database()
"""

CUT_OFF = """
SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
 WHERE NOT l.granted AND l.locktype = 'advisory' AND d.datname = current_database()
"""

# Everything that makes two schemas the same, told by the catalog, so that no server's way to print it matters.
CATALOG = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
               LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0
           AND NOT a.attisdropped""",
    "relations": """
        SELECT relname, relkind, relrowsecurity, relforcerowsecurity, reloptions
          FROM pg_class WHERE relnamespace = 'public'::regnamespace""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid)
          FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal""",
    "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
    "policies": "SELECT tablename, policyname, permissive, cmd, qual, with_check FROM pg_policies WHERE schemaname = 'public'",
    "types": "SELECT typname, typtype FROM pg_type WHERE typnamespace = 'public'::regnamespace",
}


def catalog(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(url) as conn:
        return {what: sorted(conn.execute(query).fetchall(), key=repr) for what, query in CATALOG.items()}


@pytest.fixture
def conn(empty_database_url: str) -> Iterator[psycopg.Connection]:
    """Another session of the same database."""
    with psycopg.connect(empty_database_url, autocommit=True) as other:
        yield other


def waiting(conn: psycopg.Connection, lock: str, count: int) -> Any:
    async def check() -> bool:
        row = conn.execute(WAITING, [lock]).fetchone()
        return row == (count,)

    return check


@pytest.fixture
def add_migration(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Append one to the chain."""

    def add(script: str, name: str = "change_something") -> Migration:
        before = chain.migrations()
        added = Migration(before[-1].number + 1, name, script)
        monkeypatch.setattr(chain, "migrations", lambda: [*before, added])
        return added

    return add


async def test_ten_processes_that_start_together_make_one_schema(
    empty_database_url: str, conn: psycopg.Connection
) -> None:
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        command = [sys.executable, "-c", MIGRATING, empty_database_url]
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(10)
        ]
        try:
            await until(waiting(conn, "advisory", 10), within=60)
        except BaseException:
            for each in started:
                each.kill()
            raise
    ended = [each.communicate(timeout=60) for each in started]
    assert [each.returncode for each in started] == [0] * 10, [told for _, told in ended]
    applied = sorted(name for told, _ in ended for name in told.split())
    assert applied == sorted(NAMES), "each was applied by one process, once"
    assert conn.execute("SELECT count(*) FROM migrations").fetchone() == (len(NAMES),)


async def test_a_second_start_changes_nothing(database_url: str) -> None:
    before = catalog(database_url)
    assert await migrate(database_url) == []
    assert catalog(database_url) == before


async def test_a_process_that_waited_for_its_turn_does_not_apply_what_another_one_did(
    empty_database_url: str, conn: psycopg.Connection
) -> None:
    await migrate(empty_database_url)
    conn.execute("CREATE TABLE told AS SELECT * FROM migrations")
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        conn.execute("DELETE FROM migrations")
        late = asyncio.create_task(migrate(empty_database_url))
        await until(waiting(conn, "advisory", 1))
        conn.execute("INSERT INTO migrations SELECT * FROM told")
    assert await late == []


async def test_a_database_of_a_newer_rota_is_refused_and_left_alone(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("INSERT INTO migrations (number, name) VALUES (9999, 'from_the_future')")
        before = catalog(database_url)
        with pytest.raises(CannotStart, match="9999") as refused:
            await migrate(database_url)
        assert refused.value.code == "schema_newer"
        assert catalog(database_url) == before


async def test_a_migration_that_fails_half_way_leaves_nothing_and_the_next_start_goes_on(
    empty_database_url: str, conn: psycopg.Connection, add_migration: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = migrations
    broken = add_migration("CREATE TABLE half (a integer); SELECT 1 / 0;")
    with pytest.raises(CannotStart, match="division by zero"):
        await migrate(empty_database_url)
    assert conn.execute("SELECT to_regclass('half'), max(number) FROM migrations").fetchone() == (
        None,
        broken.number - 1,
    )
    monkeypatch.setattr(chain, "migrations", whole)
    assert await migrate(empty_database_url) == []


async def test_a_table_that_somebody_holds_stops_the_start_in_words_instead_of_stopping_everybody(
    database_url: str, add_migration: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "LOCK_TIMEOUT", "100ms")
    added = add_migration("ALTER TABLE automations ADD COLUMN mood text;")
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM automations")
        with pytest.raises(NotYet) as refused:
            await migrate(database_url)
        assert refused.value.code == "schema_locked"
        assert "100ms" in refused.value.message
    async with await psycopg.AsyncConnection.connect(database_url) as conn:
        assert await missing(conn) == [added.name]
    assert await migrate(database_url) == [added.name]


async def test_every_migration_runs_under_a_lock_timeout_of_its_own(
    empty_database_url: str, conn: psycopg.Connection, add_migration: Any
) -> None:
    add_migration("CREATE TABLE seen AS SELECT current_setting('lock_timeout') AS timeout;")
    await migrate(empty_database_url)
    assert conn.execute("SELECT timeout FROM seen").fetchone() == (chain.LOCK_TIMEOUT,)
    assert chain.LOCK_TIMEOUT == "5s"


async def test_a_migrator_that_is_cut_off_leaves_the_way_free_for_the_next(
    empty_database_url: str, conn: psycopg.Connection, add_migration: Any
) -> None:
    add_migration("SELECT pg_advisory_xact_lock(1); CREATE TABLE done (a integer);", "wait_for_something")
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(1)")
        first = asyncio.create_task(migrate(empty_database_url))
        await until(waiting(conn, "advisory", 1))
        conn.execute(CUT_OFF)
        with pytest.raises(CannotStart):
            await first
    assert await migrate(empty_database_url) == ["wait_for_something"]


async def test_a_user_who_may_not_create_tables_is_told_so(empty_database_url: str, conn: psycopg.Connection) -> None:
    role = f"rota_guest_{secrets.token_hex(4)}"
    conn.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    conn.execute(f"CREATE ROLE {role}")
    try:
        with pytest.raises(CannotStart, match=r"permission denied for schema public\. .* OWNER TO"):
            await migrate(make_conninfo(empty_database_url, options=f"-c role={role}"))
    finally:
        conn.execute(f"DROP ROLE {role}")


async def test_an_empty_database_lacks_every_migration_and_a_migrated_one_none(
    empty_database_url: str, conn: psycopg.Connection
) -> None:
    async with await psycopg.AsyncConnection.connect(empty_database_url, autocommit=True) as other:
        assert await missing(other) == NAMES
        await migrate(empty_database_url)
        assert await missing(other) == []


def test_migrations_are_numbered_in_order_and_say_why_and_what_they_lock() -> None:
    files = sorted((ROOT / "src" / "rota" / "db" / "migrations").iterdir())
    assert [file.name for file in files] == [f"{each.number:04}_{each.name}.sql" for each in migrations()]
    assert [each.number for each in migrations()] == list(range(1, len(files) + 1))
    for each in migrations():
        assert re.match(r"-- Why: .+\n(-- .+\n)*-- Locks: .+\n", each.script), each.name


# schema.sql: the same in one piece -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> Any:
    found = importlib.util.spec_from_file_location("schema", ROOT / "scripts" / "schema.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


async def test_schema_sql_makes_what_the_migrations_make(
    schema: Any, database_url: str, empty_database_url: str, conn: psycopg.Connection
) -> None:
    conn.execute(schema.FILE.read_text().encode())
    async with await psycopg.AsyncConnection.connect(empty_database_url) as other:
        await isolation.protect(other)
    assert catalog(empty_database_url) == catalog(database_url)


def test_schema_sql_is_what_its_script_writes(schema: Any, database_url: str) -> None:
    """Run `python scripts/schema.py` after a change of a migration."""
    with psycopg.connect(database_url) as other:
        server = other.info.server_version // 10000
    told = subprocess.run([find_binaries() / "pg_dump", "--version"], capture_output=True, text=True, check=True).stdout
    if (printer := int(re.findall(r"\d+", told)[0])) != server:
        pytest.skip(
            f"PostgreSQL {server} is printed in another way than by pg_dump {printer}; its catalog was compared"
        )
    assert schema.dump(database_url) == schema.FILE.read_text()
