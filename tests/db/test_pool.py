"""The way to PostgreSQL: a wrong URL is told in words, a full pool says so, and nothing shows a password."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from rota.db import at_once, pool
from rota.db.pool import PASSING, Connection, Database, Reserved, check, shown
from rota.errors import Busy, CannotStart
from rota.settings import MOST
from rota.timeouts import Timeouts, transaction_limits
from support.postgres_proxy import Proxy
from support.waiting import until

SECRET = "swordfish"  # a password
SLEEPERS = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


async def refusal(url: str) -> str:
    with pytest.raises(CannotStart) as refused:
        await check(url)
    assert refused.value.field == "ROTA_DATABASE_URL"
    assert SECRET not in refused.value.message
    assert refused.value.__context__ is None or refused.value.__suppress_context__, "a traceback would show the URL"
    return refused.value.message


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_a_server_that_nobody_runs_is_named_with_its_port(closed_port: int) -> None:
    message = await refusal(f"postgresql://ada:{SECRET}@127.0.0.1:{closed_port}/rota")
    assert f"ada@127.0.0.1:{closed_port}/rota" in message
    assert "refused" in message


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70, "ö" * 80])
async def test_a_host_that_does_not_exist_is_named(host: str) -> None:
    assert f"ada@{host}/rota" in await refusal(f"postgresql://ada:{SECRET}@{host}/rota")


async def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert str(tmp_path) in await refusal(f"host={tmp_path} dbname=rota password={SECRET}")


async def test_a_database_that_does_not_exist_is_named(server_url: str) -> None:
    message = await refusal(make_conninfo(server_url, dbname="no_such_database"))
    assert '"no_such_database" does not exist' in message


async def test_a_wrong_password_is_told_and_not_shown(server_url: str) -> None:
    assert "password authentication failed" in await refusal(make_conninfo(server_url, password=SECRET))


async def test_a_user_who_does_not_exist_is_named(server_url: str) -> None:
    assert '"nobody_at_all"' in await refusal(make_conninfo(server_url, user="nobody_at_all", password=SECRET))


async def test_a_wrong_password_is_told_without_it(asks_for_a_password: str) -> None:
    assert "password authentication failed" in await refusal(asks_for_a_password)


@pytest.fixture
async def asks_for_a_password() -> AsyncIterator[str]:
    """A stand-in for a server that wants a password in clear text and likes none; the embedded one never asks."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (size := int.from_bytes(await reader.readexactly(4))) == 8:  # "may we speak TLS?" and the like
            await reader.readexactly(4)
            writer.write(b"N")
        await reader.readexactly(size - 4)
        writer.write(b"R\0\0\0\x08\0\0\0\x03")
        assert (await reader.readexactly(1)) == b"p"
        said = b'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "ada"\0\0'
        writer.write(b"E" + (len(said) + 4).to_bytes(4) + said)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        yield f"postgresql://ada:{SECRET}@127.0.0.1:{server.sockets[0].getsockname()[1]}/rota"


@pytest.mark.parametrize(
    "url",
    [
        SECRET,
        f"mysql://ada:{SECRET}@host/rota",
        f"postgresql://ada:{SECRET}@[::1/rota",
        f"postgresql://ada:{SECRET}%ZZ@host/rota",
        f"postgresql://ada:{SECRET}%00@host/rota",
        f"postgresql://ada:{SECRET}@host/rota?no_such_option=1",
    ],
)
async def test_what_is_no_url_is_told_with_an_example(url: str) -> None:
    assert "postgresql://user:password@host:5432/database" in await refusal(url)


async def test_an_unescaped_at_in_the_password_is_explained_and_not_shown() -> None:
    message = await refusal(f"postgresql://ada:sword@fish-{SECRET}@db.invalid:5432/rota")
    assert "%40" in message
    assert "fish" not in message


async def test_a_short_password_does_not_garble_the_message(closed_port: int) -> None:
    assert "Connection refused" in await refusal(f"postgresql://ada:e@127.0.0.1:{closed_port}/rota")


async def test_an_old_server_is_told_which_version_is_needed(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "OLDEST", 990_000)
    message = await refusal(server_url)
    assert "Rota needs 99 or newer" in message


async def test_a_database_of_another_encoding_is_told_which_is_needed(server_url: str) -> None:
    """Texts would come back as bytes, and every page would break."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute("CREATE DATABASE old_text ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            message = await refusal(make_conninfo(server_url, dbname="old_text"))
        finally:
            conn.execute("DROP DATABASE old_text")
    assert "the encoding SQL_ASCII; Rota needs UTF8" in message


def test_a_url_is_shown_without_its_password() -> None:
    assert shown(f"postgresql://ada:{SECRET}@db.example:5433/rota?sslmode=require") == "ada@db.example:5433/rota"
    assert shown(f"dbname=rota password={SECRET}") == "localhost/rota"
    assert SECRET not in shown(f"postgresql://ada:x@{SECRET}@db.example/rota")


async def test_a_caller_who_finds_no_free_connection_is_told_to_come_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Database(database_url, size=2)
    await db.open()
    try:
        async with db.connection(), db.connection():
            monkeypatch.setattr(db._pool, "timeout", 0.05)
            with pytest.raises(Busy):
                async with db.connection():
                    pass
            monkeypatch.undo()
        async with db.connection() as conn:
            await conn.execute("SELECT 1")
    finally:
        await db.close()


async def test_a_transaction_that_fails_leaves_nothing_and_gives_its_connection_back(db: Database) -> None:
    async with db.connection() as conn:
        await conn.execute("CREATE TABLE notes (note text)")

    async def fail() -> None:
        async with db.transaction() as conn:
            await conn.execute("INSERT INTO notes VALUES ('half')")
            await conn.execute("SELECT 1 / 0")

    for _ in range(20):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await fail()
    async with db.connection() as conn:
        assert await (await conn.execute("SELECT count(*) FROM notes")).fetchone() == (0,)


async def test_a_cancelled_caller_leaves_no_transaction_open(db: Database) -> None:
    async def work() -> None:
        async with db.transaction() as conn:
            await conn.execute("CREATE TABLE half (note text)")
            await conn.execute("SELECT pg_sleep(60)")

    async def asleep() -> bool:
        async with db.connection() as conn:
            rows = await conn.execute(SLEEPERS)
            return await rows.fetchone() is not None

    task = asyncio.create_task(work())
    await until(asleep)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with db.connection() as conn:
        assert await (await conn.execute("SELECT to_regclass('half')")).fetchone() == (None,)


async def test_a_reserved_connection_is_outside_the_pool(database_url: str) -> None:
    db = Database(database_url, size=2)
    await db.open()
    reserved = await db.reserve()
    try:
        async with db.connection(), db.connection():
            assert await (await reserved.execute("SELECT 1")).fetchone() == (1,)
    finally:
        await reserved.close()
        await db.close()


@pytest.mark.parametrize(("pooled", "seqscan"), [(True, "on"), (False, "off")])
async def test_how_a_worker_has_its_statements_planned_is_set_on_no_server_that_may_be_anothers(
    database_url: str, pooled: bool, seqscan: str
) -> None:
    proxy = Proxy(database_url)
    proxy.hides_the_server = pooled
    async with proxy.open(database_url) as url:
        line = Reserved(Database(url))
        line.wrote(pool.FIRST_PLANNED_FOR)
        async with line.connection() as conn:
            assert await (await conn.execute("SHOW enable_seqscan")).fetchone() == (seqscan,)
        await line.close()


async def test_times_and_spans_are_read_whatever_an_administrator_chose_for_this_user(database_url: str) -> None:
    chosen = "-c datestyle=German -c intervalstyle=iso_8601 -c timezone=Asia/Kathmandu"
    db = Database(make_conninfo(database_url, options=chosen))
    await db.open()
    async with db.connection() as conn:
        row = await (await conn.execute("SELECT timestamptz '2027-02-01 09:00Z', interval '90 s'")).fetchone()
    assert row == (datetime(2027, 2, 1, 9, tzinfo=UTC), timedelta(seconds=90))
    await db.close()


@pytest.mark.parametrize("chosen", ["LATIN1", "SQL_ASCII"])
async def test_every_text_is_kept_whatever_encoding_the_environment_asks_for(
    database_url: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", chosen)
    async with await Database(database_url).reserve() as conn:
        assert await (await conn.execute("SELECT %s || 'ö'", ["5 €, 漢字"])).fetchone() == ("5 €, 漢字ö",)


async def test_the_longest_lease_still_reaches_its_database(database_url: str) -> None:
    longest = Timeouts(timedelta(seconds=MOST), timedelta(seconds=1), timedelta(seconds=1), 1).answer
    async with (
        Proxy(database_url).open(database_url) as by_tcp,
        await Database(by_tcp, answer=longest).reserve() as conn,
    ):
        assert await (await conn.execute("SELECT 1")).fetchone() == (1,)


async def test_a_database_that_says_nothing_is_hung_up_on(database_url: str) -> None:
    db = Database(database_url, answer=timedelta(seconds=0.2))
    await db.open()
    with pytest.raises(psycopg.OperationalError):
        async with asyncio.timeout(10), db.connection() as conn:
            await conn.execute("SELECT pg_sleep(60)")
    async with db.connection() as conn:
        assert await (await conn.execute("SELECT 1")).fetchone() == (1,)
    await db.close()


class Woken:
    """Whom a database's connections woke."""

    def __init__(self, db: Database) -> None:
        self.told: list[tuple[str, list[object]]] = []
        db.waker = lambda topic, payloads: self.told.append((topic, list(payloads)))


async def test_a_transaction_wakes_others_once_it_is_committed_and_not_before(db: Database) -> None:
    woken = Woken(db)
    async with db.transaction() as conn:
        conn.wake("rota_runs", ["a"])
        async with conn.transaction():
            conn.wake("rota_cancels", ["b"])
        conn.wake("rota_runs", ["c"])
        assert woken.told == []
    assert woken.told == [("rota_runs", ["a", "c"]), ("rota_cancels", ["b"])]


async def test_without_a_transaction_others_are_woken_at_once(db: Database) -> None:
    woken = Woken(db)
    async with db.connection() as conn:
        conn.wake("rota_runs")
        assert woken.told == [("rota_runs", [""])]


async def give_up(conn: Connection, about: str, error: type[Exception] = ZeroDivisionError) -> None:
    async with conn.transaction():
        conn.wake("rota_runs", [about])
        raise error


async def test_what_is_rolled_back_wakes_nobody(db: Database) -> None:
    woken = Woken(db)
    async with db.connection() as conn:
        with pytest.raises(ZeroDivisionError):
            await give_up(conn, "failed")
        await give_up(conn, "taken back", psycopg.Rollback)
        async with conn.transaction():
            with pytest.raises(ZeroDivisionError):
                await give_up(conn, "inner")
            conn.wake("rota_runs", ["outer"])
    assert woken.told == [("rota_runs", ["outer"])]


async def test_a_commit_that_fails_wakes_nobody(db: Database) -> None:
    async def write_twice(conn: Connection) -> None:
        async with conn.transaction():
            await conn.execute("INSERT INTO t VALUES (1), (1)")
            conn.wake("rota_runs", ["never"])

    woken = Woken(db)
    async with db.connection() as conn:
        await conn.execute("CREATE TEMPORARY TABLE t (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            await write_twice(conn)
        async with conn.transaction():
            pass
    assert woken.told == []


LIMITS = """
SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),
       current_setting('statement_timeout')
"""


@pytest.mark.parametrize("pooled", [True, False])
async def test_the_server_bounds_every_transaction_and_nothing_is_left_behind_a_pooler(
    database_url: str, pooled: bool
) -> None:
    limits, none = ("3s", "3s", "3600ms"), ("0", "0", "0")
    proxy = Proxy(database_url)
    proxy.hides_the_server = pooled
    async with proxy.open(database_url) as url:
        db = Database(url, answer=timedelta(seconds=4))
        await db.open()
        async with db.connection() as conn:
            async with conn.transaction():
                assert await (await conn.execute(LIMITS)).fetchone() == limits
            async with at_once.transaction(conn, LIMITS.strip()) as found:
                assert (found[0][0] if not pooled else await (await conn.execute(LIMITS)).fetchone()) == limits
            assert await (await conn.execute(LIMITS)).fetchone() == (none if pooled else limits)
        async with await db.reserve() as own, own.transaction():
            assert await (await own.execute(LIMITS)).fetchone() == limits
        await db.close()


async def test_a_transaction_that_stays_idle_is_ended_by_the_server_and_its_connection_replaced(db: Database) -> None:
    quick = Database(db.url, answer=timedelta(seconds=0.4))
    await quick.open()
    async with quick.connection() as conn:
        pid = conn.info.backend_pid
        await conn.execute("BEGIN")
        await until(lambda: _is_gone(db, pid))
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            await conn.execute("SELECT 1")
    async with quick.connection() as conn:
        assert await (await conn.execute("SELECT pg_backend_pid()")).fetchone() != (pid,)
    assert issubclass(psycopg.errors.IdleInTransactionSessionTimeout, PASSING)
    await quick.close()


async def _is_gone(db: Database, pid: int) -> bool:
    async with db.connection() as conn:
        return (await conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid])).rowcount == 0


def test_a_transaction_of_a_frozen_process_ends_long_before_a_lease_does() -> None:
    for lease in (timedelta(seconds=2), timedelta(seconds=60), timedelta(hours=1)):
        answer = Timeouts(lease, lease / 6, lease / 4, 2).answer
        limits = [int(value.removesuffix("ms")) for value in transaction_limits(answer).values()]
        assert max(limits) < answer / timedelta(milliseconds=1) < lease / timedelta(milliseconds=1)
        assert limits[0] <= 15_000
