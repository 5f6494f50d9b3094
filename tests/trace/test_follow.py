"""Promise 7: what a reader sees over any number of turns equals the table, whoever writes and whenever they commit."""

import asyncio
import secrets
from uuid import UUID

import pytest

from rota.db import events
from rota.db.events import Event, NewEvent
from rota.db.listener import Listener, Wakes, session_channel
from rota.db.pool import PASSING
from rota.model.ids import AutomationId, SessionId
from rota.roster import running
from rota.trace import follow
from rota.trace.follow import Limits, Readers
from support.house import House
from support.waiting import until

WAITING = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
async def session(house: House) -> SessionId:
    """A session whose log holds one event: that its run is queued."""
    automation_id = AutomationId(await house.automation())
    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, automation_id)
    return SessionId(await house.value("SELECT id FROM sessions"))


def output(house: House, session: SessionId, text: str) -> NewEvent:
    return NewEvent(house.caller.workspace_id, session, "output", {"text": text})


async def write(house: House, session: SessionId, *texts: str) -> None:
    async with house.db.transaction() as conn:
        await events.append(conn, [output(house, session, text) for text in texts])


async def table(house: House, session: UUID) -> list[int]:
    async with house.db.connection() as conn:
        rows = await conn.execute("SELECT seq FROM events WHERE session_id = %s ORDER BY seq", [session])
        return [seq for (seq,) in await rows.fetchall()]


class Follower:
    """Somebody who reads on and remembers."""

    def __init__(
        self,
        house: House,
        listener: Listener,
        session: SessionId,
        after: int = 0,
        readers: Readers | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.until = asyncio.Event()
        readers = readers or Readers(house.db, listener, self.until, limits)
        self.pages = readers.follow(house.caller.workspace_id, session, after=after)
        self.seen: list[int] = []

    async def page(self) -> list[Event]:
        async with asyncio.timeout(15):
            page = list((await anext(self.pages)).events)
        self.seen += [event.seq for event in page]
        return page

    async def until_seen(self, seq: int) -> list[int]:
        while not self.seen or self.seen[-1] < seq:
            await self.page()
        return self.seen

    async def close(self) -> None:
        await self.pages.aclose()


async def test_what_is_stored_comes_first_in_pages_then_what_is_written(
    house: House, listener: Listener, wakes: Wakes, session: SessionId
) -> None:
    limits = Limits(page=2)
    await write(house, session, *"abcd")
    reader = Follower(house, listener, session, limits=limits)
    assert [len(await reader.page()) for _ in range(3)] == [2, 2, 1]
    waiting = asyncio.create_task(reader.page())
    await write(house, session, "live")
    wakes.send(session_channel(session))
    assert [event.data["text"] for event in await waiting] == ["live"]
    assert reader.seen == [1, 2, 3, 4, 5, 6]
    await reader.close()


async def test_a_number_is_not_given_out_while_an_earlier_one_is_uncommitted(
    house: House, listener: Listener, wakes: Wakes, session: SessionId
) -> None:
    """A plain sequence would let the quick one be read first, and whoever read it would never see the late one."""
    reader = Follower(house, listener, session)
    await reader.until_seen(1)
    async with house.db.connection() as slow:
        async with slow.transaction():
            await events.append(slow, [output(house, session, "late")])
            quick = asyncio.create_task(write(house, session, "quick"))
            await until(lambda: house.value(WAITING))
            assert await table(house, session) == [1]
        await quick
    wakes.send(session_channel(session))
    assert await reader.until_seen(3) == [1, 2, 3] == await table(house, session)
    await reader.close()


async def test_a_writer_that_takes_its_words_back_leaves_no_gap(
    house: House, listener: Listener, wakes: Wakes, session: SessionId
) -> None:
    async with house.db.connection() as conn, conn.transaction(force_rollback=True):
        await events.append(conn, [output(house, session, "never")])
    await write(house, session, "kept")
    reader = Follower(house, listener, session)
    assert await reader.until_seen(2) == [1, 2]
    await reader.close()


async def test_many_writers_and_readers_that_come_and_go_all_see_the_table(
    house: House, listener: Listener, wakes: Wakes, session: SessionId
) -> None:
    async def speak(number: int) -> None:
        for word in "abcde":
            await write(house, session, f"{number}{word}")
            wakes.send(session_channel(session))

    async def read_on() -> list[int]:
        seen: list[int] = []
        while not seen or seen[-1] < 41:
            reader = Follower(house, listener, session, after=seen[-1] if seen else 0)
            seen += [event.seq for event in await reader.page()]
            await reader.close()
        return seen

    *_, one, two = await asyncio.gather(*(speak(number) for number in range(8)), read_on(), read_on())
    assert one == two == await table(house, session) == list(range(1, 42))


async def test_a_write_between_the_look_and_the_sleep_is_not_slept_over(
    house: House, session: SessionId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader must listen before it looks: without polling, a wake that came just after the look has to count."""
    limits = Limits(poll_seconds=60.0)
    listener = Listener("")  # it hears nothing but what the test tells it, once
    looked = asyncio.Event()
    look = events.pages

    async def slow_look(*args: object, **given: object) -> list[events.Page]:
        found = await look(*args, **given)  # type: ignore[arg-type]
        if not looked.is_set():
            looked.set()
            await write(house, session, "just now")
            listener.dispatch(session_channel(session), "")
        return found

    monkeypatch.setattr(events, "pages", slow_look)
    reader = Follower(house, listener, session, after=1, limits=limits)
    assert [event.seq for event in await reader.page()] == [2]
    await reader.close()


async def test_without_any_notification_it_looks_for_itself(
    house: House, listener: Listener, session: SessionId
) -> None:
    limits = Limits(poll_seconds=0.02)
    reader = Follower(house, listener, session, after=1, limits=limits)
    waiting = asyncio.create_task(reader.page())
    await write(house, session, "hush")
    assert [event.seq for event in await waiting] == [2]
    await reader.close()


async def test_silence_is_broken_by_an_empty_page_now_and_then(
    house: House, listener: Listener, session: SessionId
) -> None:
    limits = Limits(poll_seconds=0.01, beat_seconds=0.03)
    reader = Follower(house, listener, session, after=1, limits=limits)
    assert [await reader.page() for _ in range(2)] == [[], []]
    await write(house, session, "at last")
    while not reader.seen:
        await reader.page()
    assert reader.seen == [2]
    await reader.close()


async def test_it_ends_when_the_server_closes_and_listens_no_more(
    house: House, listener: Listener, session: SessionId
) -> None:
    limits = Limits(poll_seconds=0.01)
    reader = Follower(house, listener, session, limits=limits)
    await reader.until_seen(1)
    waiting = asyncio.create_task(reader.page())
    reader.until.set()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert session_channel(session) not in listener.handler_counts()


async def test_another_workspaces_session_shows_nothing(house: House, listener: Listener, session: SessionId) -> None:
    async with house.db.connection() as conn:
        elsewhere = house.caller.user_id  # any id that is not the workspace's
        [page] = await events.pages(conn, elsewhere, [(session, 0)], limit=10)  # type: ignore[arg-type]
    assert page.events == []


async def test_however_many_read_a_session_a_change_costs_one_query(
    house: House, listener: Listener, wakes: Wakes, session: SessionId, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(poll_seconds=60.0)
    readers = Readers(house.db, listener, asyncio.Event(), limits)
    crowd = [Follower(house, listener, session, after=1, readers=readers) for _ in range(50)]
    waiting = [asyncio.create_task(each.page()) for each in crowd]
    await until(lambda: _true(listener.listens_to(session_channel(session)) and rests(readers)))
    looks: list[int] = []
    look = events.pages

    async def counted(*args: object, **given: object) -> list[events.Page]:
        found = await look(*args, **given)  # type: ignore[arg-type]
        looks.append(len(found[0].events))
        return found

    monkeypatch.setattr(events, "pages", counted)
    await write(house, session, "to all")
    wakes.send(session_channel(session))
    assert [[event.seq for event in page] for page in await asyncio.gather(*waiting)] == [[2]] * 50
    await wakes.close()
    assert looks == [1]
    for each in crowd:
        await each.close()
    assert session_channel(session) not in listener.handler_counts()


def rests(readers: Readers) -> bool:
    """They have looked once more since they are heard, and wait to be woken."""
    return all(feed._woken._waiters and not feed._woken.is_set() for feed in readers.feeds.values())


async def _true(value: bool) -> bool:
    return value


async def test_a_reader_who_fell_behind_what_is_kept_reads_the_table_and_misses_nothing(
    house: House, listener: Listener, wakes: Wakes, session: SessionId
) -> None:
    limits = Limits(page=3, kept=6)
    readers = Readers(house.db, listener, asyncio.Event(), limits)
    quick = Follower(house, listener, session, readers=readers)
    slow = Follower(house, listener, session, readers=readers)
    await slow.until_seen(1)
    for number in range(10):
        await write(house, session, f"{number}a", f"{number}b")
        wakes.send(session_channel(session))
        await quick.until_seen(3 + 2 * number)
    assert await slow.until_seen(21) == quick.seen == list(range(1, 22)) == await table(house, session)
    await quick.close()
    await slow.close()


async def test_what_is_held_of_large_events_is_bounded_by_bytes_and_nothing_is_missed(
    house: House, listener: Listener, session: SessionId
) -> None:
    limits = Limits(poll_seconds=60.0)
    readers = Readers(house.db, listener, asyncio.Event(), limits)
    reader, late = (Follower(house, listener, session, after=1, readers=readers) for _ in range(2))
    pages = [asyncio.create_task(each.page()) for each in (reader, late)]
    await until(lambda: _true(bool(readers.feeds) and rests(readers)))
    await write(house, session, *(secrets.token_hex(2**17) for _ in range(40)))  # a quarter of a MiB each
    listener.dispatch(session_channel(session), "")
    await asyncio.gather(*pages)
    assert await reader.until_seen(41) == list(range(2, 42))
    [feed] = readers.feeds.values()
    assert [len(told.events) for told in feed.kept] == [4, 4, 4]
    assert await late.until_seen(41) == reader.seen == (await table(house, session))[1:]
    await reader.close()
    await late.close()


async def test_who_comes_in_the_middle_of_what_is_kept_gets_only_the_rest(
    house: House, listener: Listener, wakes: Wakes, session: SessionId
) -> None:
    readers = Readers(house.db, listener, asyncio.Event())
    first = Follower(house, listener, session, readers=readers)
    await first.until_seen(1)
    await write(house, session, *"abc")
    wakes.send(session_channel(session))
    await first.until_seen(4)
    second = Follower(house, listener, session, after=2, readers=readers)
    assert await second.until_seen(4) == [3, 4]
    await first.close()
    await second.close()


async def test_what_was_pruned_is_passed_over(house: House, listener: Listener, session: SessionId) -> None:
    await write(house, session, *"abc")
    async with house.db.connection() as conn:
        await conn.execute("DELETE FROM events WHERE session_id = %s", [session])
    reader = Follower(house, listener, session)
    waiting = asyncio.create_task(reader.page())
    await write(house, session, "after all")
    assert [event.seq for event in await waiting] == [5]
    await reader.close()


async def test_a_reader_outlives_a_failure_of_the_database(
    house: House, listener: Listener, wakes: Wakes, session: SessionId
) -> None:
    limits = Limits(poll_seconds=0.05)
    reader = Follower(house, listener, session, limits=limits)
    await reader.until_seen(1)
    waiting = asyncio.create_task(reader.page())
    async with house.db.connection() as conn:
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
    await until(lambda: _written(house, session, "after the storm"))
    assert [event.seq for event in await waiting] == [2]
    await reader.close()


async def test_what_comes_while_a_reader_looks_for_what_was_pruned_is_not_passed_over(
    house: House, listener: Listener, wakes: Wakes, session: SessionId, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(page=2, kept=2)
    readers = Readers(house.db, listener, asyncio.Event(), limits)
    quick = Follower(house, listener, session, readers=readers)
    await quick.until_seen(1)
    await write(house, session, *"abc")
    wakes.send(session_channel(session))
    await quick.until_seen(4)
    async with house.db.connection() as conn:
        await conn.execute("DELETE FROM events WHERE session_id = %s", [session])
    looked, told = asyncio.Event(), asyncio.Event()
    real = follow.Feed.stored_after

    async def slow(feed: follow.Feed, after: int) -> follow.Told:
        found = await real(feed, after)
        if after == 0:
            looked.set()
            await told.wait()
        return found

    monkeypatch.setattr(follow.Feed, "stored_after", slow)
    late = Follower(house, listener, session, readers=readers)
    page = asyncio.create_task(late.until_seen(9))
    await looked.wait()
    for text in "defgh":
        await write(house, session, text)
        wakes.send(session_channel(session))
    await quick.until_seen(9)
    told.set()
    assert await page == [5, 6, 7, 8, 9] == await table(house, session)
    await quick.close()
    await late.close()


async def test_a_reader_outlives_a_failure_that_nobody_expects(
    house: House,
    listener: Listener,
    wakes: Wakes,
    session: SessionId,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(poll_seconds=0.05)
    reader = Follower(house, listener, session, limits=limits)
    await reader.until_seen(1)
    waiting = asyncio.create_task(reader.page())
    await house.execute("ALTER TABLE events RENAME TO elsewhere")
    await until(lambda: _true("trace.unread" in caplog.messages))
    await house.execute("ALTER TABLE elsewhere RENAME TO events")
    await write(house, session, "after all")
    assert [event.seq for event in await waiting] == [2]
    await reader.close()


async def _written(house: House, session: SessionId, text: str) -> bool:
    """The pool may still hand out connections that were just cut."""
    try:
        await write(house, session, text)
    except PASSING:
        return False
    return True
