"""NOTIFY only wakes: who listens hears of it, also after the connection was lost, and a burst is one statement."""

import asyncio
import os
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql

from rota.db import listener as listener_module
from rota.db.listener import Listener, Wakes, session_channel
from rota.db.pool import Database
from rota.model.ids import new_id
from support.waiting import until

LISTENING = "SELECT pid FROM pg_stat_activity WHERE application_name = 'rota listener' AND datname = current_database()"


class Ear:
    """A handler that keeps what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, payload: str) -> None:
        self.heard.append(payload)

    async def hears(self, payload: str) -> None:
        async def told() -> bool:
            return payload in self.heard

        await until(told)


def named(payload: str) -> str:
    """Without its sender."""
    names, _, sender = payload.partition(" ")
    assert sender
    return names


@pytest.fixture
def notify(database_url: str) -> Any:
    """Notify from another connection, at once and without giving the event loop a turn."""

    def send(channel: str, payload: str = "") -> None:
        with psycopg.connect(database_url, autocommit=True) as conn:
            conn.execute("SELECT pg_notify(%s, %s)", [channel, payload])

    return send


async def listening_pid(db: Database) -> int | None:
    async with db.connection() as conn:
        row = await (await conn.execute(LISTENING)).fetchone()
    return row[0] if row else None


async def cut(db: Database) -> int:
    """Cut the listening connection, and only that one; the process it had on the server."""
    pid = await until(lambda: listening_pid(db))
    async with db.connection() as conn:
        await conn.execute("SELECT pg_terminate_backend(%s)", [pid])
    return pid


def reconnected(db: Database, before: int) -> Any:
    async def check() -> bool:
        return await listening_pid(db) not in {None, before}

    return check


async def test_a_notification_reaches_its_handler_and_no_other(listener: Listener, notify: Any) -> None:
    one, other = Ear(), Ear()
    async with listener.subscribed("rota_one", one), listener.subscribed("rota_other", other):
        await one.hears("")  # LISTEN is in force: it reads once
        await other.hears("")
        notify("rota_one", "hello")
        await one.hears("hello")
    assert other.heard == [""]


async def test_a_subscription_added_while_connected_works(listener: Listener, notify: Any) -> None:
    first = Ear()
    async with listener.subscribed("rota_first", first):
        await first.hears("")
        late = Ear()
        async with listener.subscribed("rota_late", late):
            await late.hears("")
            notify("rota_late", "hello")
            await late.hears("hello")
            notify("rota_first", "still-here")
            await first.hears("still-here")


async def test_what_is_committed_before_listen_is_found_by_reading_once(listener: Listener) -> None:
    ear = Ear()
    async with listener.subscribed("rota_early", ear):
        await until(lambda: _heard(ear))
    assert ear.heard == [""]


async def _heard(ear: Ear) -> bool:
    return bool(ear.heard)


async def test_two_handlers_of_one_channel_are_both_told_and_the_last_one_to_leave_ends_it(
    listener: Listener, notify: Any
) -> None:
    channel = "rota_shared"
    one, two = Ear(), Ear()
    async with listener.subscribed(channel, one):
        async with listener.subscribed(channel, two):
            await one.hears("")
            notify(channel, "both")
            await one.hears("both")
            await two.hears("both")
        notify(channel, "one")
        await one.hears("one")
    assert "one" not in two.heard
    await until(lambda: _unlistened(listener, channel))


async def _unlistened(listener: Listener, channel: str) -> bool:
    return not listener.listens_to(channel)


async def test_a_notification_that_arrives_while_another_channel_is_added_is_not_swallowed(
    listener: Listener, notify: Any
) -> None:
    """psycopg reads the socket during LISTEN; what it finds there is ours too."""
    ear = Ear()
    async with listener.subscribed("rota_busy", ear):
        await ear.hears("")
        listener.on("rota_more", Ear())  # the next step of the loop runs LISTEN …
        notify("rota_busy", "meanwhile")  # … and this is on the socket before it
        await ear.hears("meanwhile")


async def test_who_balks_at_a_notification_keeps_it_from_nobody(
    listener: Listener, notify: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who may connect may notify, with any words."""
    ear = Ear()

    def balk(payload: str) -> None:
        int(payload, 16)  # at once, with nothing to read

    listener.on("rota_test_ids", balk)
    listener.on("rota_test_ids", ear)
    await ear.hears("")
    for payload in ("no id", "ab12"):
        notify("rota_test_ids", payload)
    await ear.hears("ab12")
    assert ear.heard == ["", "no", "ab12"]
    assert caplog.messages.count("wake.unheard") == 2


async def test_a_cut_connection_is_opened_again_and_everybody_is_woken_once(
    db: Database, listener: Listener, notify: Any
) -> None:
    ears = {f"rota_{number}": Ear() for number in range(3)}
    for channel, ear in ears.items():
        listener.on(channel, ear)
    for ear in ears.values():
        await ear.hears("")
        ear.heard.clear()
    before = await cut(db)
    await until(reconnected(db, before))
    for ear in ears.values():
        await ear.hears("")
    for channel, ear in ears.items():
        notify(channel, "after")
        await ear.hears("after")
    assert {channel: ear.heard for channel, ear in ears.items()} == {channel: ["", "after"] for channel in ears}


async def test_the_number_of_a_lost_socket_is_free_for_others(db: Database, database_url: str) -> None:
    """A reader left behind on a closed socket would leave the next one with that number deaf."""
    listener = Listener(database_url, retry=timedelta(minutes=1))
    listening, ear = asyncio.create_task(listener.run()), Ear()
    listener.on("rota_numbered", ear)
    await ear.hears("")  # it waits for what comes
    assert listener._conn
    number, arrived, loop = listener._conn.fileno(), asyncio.Event(), asyncio.get_running_loop()
    await cut(db)
    await until(lambda: _unlistened(listener, "rota_numbered"))
    reading, writing = os.pipe()
    os.dup2(reading, number)
    loop.add_reader(number, arrived.set)
    try:
        os.write(writing, b"hello")
        async with asyncio.timeout(20):
            await arrived.wait()
    finally:
        loop.remove_reader(number)
        for each in {reading, writing, number}:
            os.close(each)
        listening.cancel()


async def test_it_comes_back_however_often_it_is_cut(db: Database, database_url: str, notify: Any) -> None:
    listener = Listener(database_url, retry=timedelta(seconds=0.05))
    listening, ear = asyncio.create_task(listener.run()), Ear()
    listener.on("rota_tough", ear)
    await ear.hears("")
    for number in range(3):
        ear.heard.clear()
        await cut(db)
        await ear.hears("")  # it listens again
        notify("rota_tough", str(number))
        await ear.hears(str(number))
    listening.cancel()


async def test_many_wakes_become_few_notifications_in_one_statement(
    db: Database, wakes: Wakes, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: Counter[str] = Counter()
    statements = 0
    connection = db.connection

    def counted() -> Any:
        nonlocal statements
        statements += 1
        return connection()

    monkeypatch.setattr(db, "connection", counted)
    async with await AsyncConnection.connect(database_url, autocommit=True) as other:
        other.add_notify_handler(lambda told: heard.update([named(told.payload)]))
        await other.execute(sql.SQL("LISTEN {}").format(sql.Identifier("rota_burst")))
        for number in range(1000):
            wakes.send("rota_burst", [number % 4])
        await wakes.close()
        await other.execute("SELECT 1")
    assert heard == {"0,1,2,3": 1}
    assert statements == 1


async def test_a_burst_over_many_sessions_is_one_notification_and_reaches_each_of_them(
    listener: Listener, wakes: Wakes, database_url: str
) -> None:
    sessions, heard = [new_id() for _ in range(150)], []
    near, far = Ear(), Ear()
    async with await AsyncConnection.connect(database_url, autocommit=True) as other:
        other.add_notify_handler(lambda told: heard.append(named(told.payload)))
        await other.execute("LISTEN rota_sessions")
        elsewhere = Listener(database_url)
        listening = asyncio.create_task(elsewhere.run())
        async with elsewhere.subscribed(session_channel(sessions[7]), far):
            await far.hears("")
            far.heard.clear()
            async with listener.subscribed(session_channel(new_id()), near):
                for session_id in sessions:
                    wakes.send(session_channel(session_id))
                await wakes.close()
                await far.hears("")
        listening.cancel()
        await other.execute("SELECT 1")
    assert [sorted(payload.split(",")) for payload in heard] == [sorted(each.hex for each in sessions)]
    assert set(near.heard) <= {""}  # told once that LISTEN is in force, and nothing of others


async def test_more_names_than_fit_into_one_notification_are_all_told(wakes: Wakes, database_url: str) -> None:
    names, heard = [str(new_id()) for _ in range(450)], []
    async with await AsyncConnection.connect(database_url, autocommit=True) as other:
        other.add_notify_handler(lambda told: heard.append(named(told.payload)))
        await other.execute("LISTEN rota_many")
        wakes.send("rota_many", names)
        await wakes.close()
        await other.execute("SELECT 1")
    assert [name for payload in heard for name in payload.split(",")] == names
    assert len(heard) == 3


async def test_wakes_of_different_moments_are_all_sent(wakes: Wakes, database_url: str) -> None:
    heard: list[str] = []
    async with await AsyncConnection.connect(database_url, autocommit=True) as other:
        other.add_notify_handler(lambda told: heard.append(named(told.payload)))
        await other.execute("LISTEN rota_steps")
        for number in range(5):
            wakes.send("rota_steps", [number])
            await wakes.close()
        await other.execute("SELECT 1")
    assert heard == ["0", "1", "2", "3", "4"]


async def test_who_commits_has_told_other_processes_before_they_go_on(
    db: Database, wakes: Wakes, database_url: str
) -> None:
    """What follows at once waits for the others that do."""
    heard: list[str] = []
    async with await AsyncConnection.connect(database_url, autocommit=True) as other:
        other.add_notify_handler(lambda told: heard.append(named(told.payload)))
        await other.execute("LISTEN rota_steps")
        async with db.transaction() as conn:
            conn.wake("rota_steps", [1])
        await other.execute("SELECT 1")
        assert heard == ["1"]
        wakes._sent_at = time.monotonic() + 3600  # they follow within the window
        for number in (2, 3):
            async with db.transaction() as conn:
                conn.wake("rota_steps", [number])
        await other.execute("SELECT 1")
        assert heard == ["1"]
        assert wakes._task
        wakes._task.cancel()  # it would tell them in an hour
        wakes._task, wakes._sent_at = None, 0.0
        async with db.transaction() as conn:
            conn.wake("rota_steps", [4])
        await other.execute("SELECT 1")
    assert heard == ["1", "2,3,4"]


async def test_a_notification_that_fails_after_the_commit_costs_a_wake_and_nothing_else(
    db: Database, wakes: Wakes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "NOTIFY", "SELECT 1 / 0")
    async with db.transaction() as conn:
        await conn.execute("CREATE TABLE kept ()")
        conn.wake("rota_lost", [1])
    assert [record.message for record in caplog.records if record.name == "rota.db.listener"] == ["wake.failed"]
    async with db.connection() as conn:
        await conn.execute("DROP TABLE kept")


async def test_who_is_cancelled_after_the_commit_costs_nobody_a_wake(
    db: Database, wakes: Wakes, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def commit() -> None:
        async with db.transaction() as conn:
            conn.wake("rota_steps", [1])

    async with await AsyncConnection.connect(database_url, autocommit=True) as other:

        async def telling() -> bool:
            rows = await other.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
            )
            return rows.rowcount > 0

        heard: list[str] = []
        other.add_notify_handler(lambda told: heard.append(named(told.payload)))
        await other.execute("LISTEN rota_steps")
        with monkeypatch.context() as patched:
            patched.setattr(
                listener_module, "NOTIFY", "SELECT pg_sleep(60), %(channels)s::text[], %(payloads)s::text[]"
            )
            asking = asyncio.create_task(commit())
            await until(telling)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()
        await wakes.close()
        await other.execute("SELECT 1")
    assert heard == ["1"]


async def test_who_listens_in_this_process_is_told_at_once(listener: Listener, wakes: Wakes) -> None:
    ear = Ear()
    listener.on("rota_near", ear)
    wakes.send("rota_near", ["now"])
    assert ear.heard == ["now"]


async def test_what_this_process_sends_is_told_here_once_and_in_another_too(
    db: Database, listener: Listener, database_url: str
) -> None:
    elsewhere = Listener(database_url)
    listening = asyncio.create_task(elsewhere.run())
    here, there = Ear(), Ear()
    async with listener.subscribed("rota_near", here), elsewhere.subscribed("rota_near", there):
        await here.hears("")
        await there.hears("")
        await sent(Wakes(db, listener), "first")
        await there.hears("first")
        await sent(Wakes(db, elsewhere), "second")
        await here.hears("second")
    assert here.heard == ["", "first", "second"]  # the first notification has passed by now, and was not told again
    listening.cancel()


async def sent(wakes: Wakes, name: str) -> None:
    wakes.send("rota_near", [name])
    await wakes.close()


async def test_a_database_that_does_not_answer_costs_a_wake_and_nothing_else(
    db: Database, wakes: Wakes, caplog: pytest.LogCaptureFixture
) -> None:
    await db.close()
    wakes.send("rota_lost", [1])
    await wakes.close()
    assert [record.message for record in caplog.records if record.name == "rota.db.listener"] == ["wake.failed"]
