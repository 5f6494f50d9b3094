"""Several statements in one round trip: planned once, whole or not at all, and one by one behind a pooler."""

import asyncio
import contextlib
from uuid import UUID

import psycopg
import pytest

from rota.db import at_once
from rota.db.arrays import Integers
from rota.db.pool import PASSING, Connection, Database
from support.postgres_proxy import Proxy
from support.waiting import until

SUM = "SELECT %(a)s::bigint + %(b)s::bigint, %(text)s::text || '%%', %(a)s::bigint"
NAMED = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'rota\\_%'"
WAITS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
SAID = "it's 100 %\\ \n“so”; DROP TABLE events; --"


async def test_each_gives_its_rows_and_values_are_only_values(db: Database) -> None:
    async with db.connection() as conn:
        for _ in range(7):  # more often than psycopg takes to prepare what repeats
            found = await at_once.run(
                conn, "BEGIN", (SUM, {"a": 1, "b": 2, "text": SAID}), "CREATE TEMPORARY TABLE x ON COMMIT DROP AS SELECT 7",
                "SELECT * FROM x", ("SELECT %(id)s::uuid", {"id": UUID(int=1)}), "COMMIT",
            )  # fmt: skip
            assert found == [[], [(3, SAID + "%", 1)], [], [(7,)], [(UUID(int=1),)], []]
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        plans = await conn.execute(
            "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE name ~ '^rota_'"
        )
        assert await plans.fetchall() == [(7,), (7,)]


async def test_what_fails_is_undone_and_the_connection_goes_on(db: Database) -> None:
    async def fail(conn: Connection, divisor: int | None) -> None:
        async with at_once.undone_if_it_fails(conn):
            await at_once.run(conn, "BEGIN", "INSERT INTO kept VALUES (1)")
            if divisor is None:
                raise KeyError  # in between
            await at_once.run(conn, ("SELECT 1 / %(divisor)s::int", {"divisor": divisor}), "COMMIT")

    async with db.connection() as conn:
        await conn.execute("CREATE TEMPORARY TABLE kept (number integer)")
        for divisor, failure in ((0, psycopg.errors.DivisionByZero), (None, KeyError)):
            with pytest.raises(failure):
                await fail(conn, divisor)
            found = await at_once.run(conn, "BEGIN", "SELECT count(*) FROM kept", "COMMIT")
            assert found[1] == [(0,)]


async def test_what_psycopg_forgets_when_it_rolls_back_is_prepared_anew_also_in_the_middle(db: Database) -> None:
    steps = [("SELECT %(a)s::int", {"a": 1}), ("SELECT %(a)s::int + 1", {"a": 1})]
    async with db.connection() as conn:
        await at_once.run(conn, *steps)
        for _ in range(7):  # until it has something to forget
            await conn.execute("SELECT 1")
        with contextlib.suppress(KeyError):
            async with conn.transaction():
                raise KeyError
        assert await _found(conn, "SELECT FROM pg_prepared_statements WHERE name LIKE 'rota\\_%'") is False
        async with conn.transaction():
            assert await at_once.run(conn, *steps) == [[(1,)], [(2,)]]


async def test_an_end_that_fails_wakes_nobody_later(db: Database) -> None:
    woken: list[str] = []
    db.waker = lambda topic, _: woken.append(topic)
    deferred = "CREATE TEMPORARY TABLE once (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    twice = "INSERT INTO once VALUES (1), (1)"

    async def fail(conn: Connection) -> None:
        async with at_once.transaction(conn):
            conn.wake("news")
            await at_once.commit(conn, twice)

    async with db.connection() as conn:
        await conn.execute(deferred)
        with pytest.raises(psycopg.errors.UniqueViolation):
            await fail(conn)
        async with at_once.transaction(conn):
            pass
        assert woken == []
        async with at_once.transaction(conn):
            conn.wake("news")
            await at_once.commit(conn, "SELECT 1")
        assert woken == ["news"]


async def test_who_is_cancelled_in_the_middle_leaves_a_connection_that_goes_on(db: Database) -> None:
    async with db.connection() as conn, db.connection() as other:
        await conn.execute("CREATE TABLE kept (number integer)")
        async with other.transaction():
            await other.execute("LOCK TABLE kept")
            waiting = asyncio.create_task(at_once.run(conn, "BEGIN", "INSERT INTO kept VALUES (1)", "COMMIT"))
            await until(lambda: _found(other, WAITS))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await conn.rollback()
        assert await at_once.run(conn, "BEGIN", "SELECT count(*) FROM kept", "COMMIT") == [[], [(0,)], []]


async def test_a_server_that_hangs_up_in_the_middle_is_an_error_that_passes(db: Database) -> None:
    async with db.connection() as other:
        async with db.connection() as conn:
            waiting = asyncio.create_task(at_once.run(conn, "BEGIN", "SELECT pg_sleep(60)", "COMMIT"))
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            await until(lambda: _found(other, ended))
            with pytest.raises(PASSING):
                await asyncio.wait_for(waiting, 10)
        assert await at_once.run(other, "BEGIN", "SELECT 1", "COMMIT") == [[], [(1,)], []]


async def _found(conn: Connection, query: str) -> bool:
    return (await conn.execute(query.encode())).rowcount > 0


async def test_more_than_the_line_holds_goes_both_ways(db: Database) -> None:
    """The server stops reading while nobody reads what it says."""
    many, long = Integers.of(range(400_000)), "a" * 2_000_000
    echo = "SELECT cardinality(%(many)s::integer[]), %(long)s::text"
    async with db.connection() as conn, asyncio.timeout(30):
        found = await at_once.run(conn, "BEGIN", *5 * [(echo, {"many": many, "long": long})], "COMMIT")
        assert found == [[], *5 * [[(400_000, long)]], []]


async def test_a_transaction_wakes_others_when_it_is_committed_and_nobody_when_it_is_not(db: Database) -> None:
    woken: list[str] = []
    db.waker = lambda topic, payloads: woken.append(topic)
    async with db.connection() as conn:
        with contextlib.suppress(KeyError):
            async with at_once.transaction(conn, ("SELECT %(n)s::int", {"n": 1})):
                conn.wake("lost")
                raise KeyError
        async with at_once.transaction(conn, ("SELECT %(n)s::int", {"n": 1}), ("SELECT %(n)s::int", {"n": 2})) as found:
            conn.wake("kept")
            assert (found, woken) == ([[(1,)], [(2,)]], [])
        assert woken == ["kept"]


async def test_what_was_prepared_and_is_gone_is_prepared_again(db: Database) -> None:
    """psycopg takes back all that is prepared whenever a transaction is rolled back."""
    async with db.connection() as conn:
        for _ in range(3):
            found = await at_once.run(conn, "BEGIN", (SUM, {"a": 1, "b": 2, "text": ""}))
            assert found == [[], [(3, "%", 1)]]
            await at_once.run(conn, ("SELECT %(n)s::int", {"n": 1}), "COMMIT")
            for _ in range(6):
                await conn.execute("SELECT 1")
            async with conn.transaction(force_rollback=True):
                await conn.execute("SELECT 1")
            assert await (await conn.execute(NAMED)).fetchone() == (0,)


@pytest.mark.parametrize("pooled", [True, False])
async def test_behind_a_pooler_nothing_is_left_on_a_server_that_may_be_anothers(
    database_url: str, pooled: bool
) -> None:
    proxy = Proxy(database_url)
    proxy.hides_the_server = pooled
    async with proxy.open(database_url) as url:
        db = Database(url)
        await db.open()
        async with db.connection() as conn:
            found = await at_once.run(conn, "BEGIN", (SUM, {"a": 1, "b": 2, "text": SAID}), "COMMIT")
            assert found == [[], [(3, SAID + "%", 1)], []]
            assert await (await conn.execute(NAMED)).fetchone() == (0 if pooled else 1,)
        await db.close()


async def test_where_nothing_may_be_prepared_nothing_is(database_url: str) -> None:
    db = Database(database_url, prepared=False)
    await db.open()
    async with db.connection() as conn:
        await at_once.run(conn, "BEGIN", (SUM, {"a": 1, "b": 2, "text": ""}), "COMMIT")
        assert await (await conn.execute(NAMED)).fetchone() == (0,)
    await db.close()
