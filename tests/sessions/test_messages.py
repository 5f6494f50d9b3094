"""Messages: in commit order, until acknowledged, written in groups."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import psycopg
import pytest

from rota.db import messages as rows
from rota.db.listener import Listener, Wakes, session_channel
from rota.db.messages import Asked, Message
from rota.db.pool import Connection, Database
from rota.errors import Conflict, Invalid, Lost, NotFound, RotaError, TooLarge
from rota.model.ids import RunId, SessionId, new_id
from rota.model.message import LARGEST_BODY, NewMessage, recipients
from rota.roster.running import run_agent
from rota.sessions import messages
from rota.sessions.messages import Post, subscribe
from rota.watch.prune import Prune
from support.databases import roll_back
from support.house import House
from support.run_state import from_now, running
from support.waiting import until

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Hall(House):
    """A session with the roles planner and judge, and its messages."""

    session_id: SessionId
    run_id: RunId

    async def open(self) -> None:
        async with self.db.transaction() as conn:
            self.run_id = await run_agent(conn, self.caller, "worker-bee", {"prompt": "Meet."})
        self.session_id = (await self.run(self.run_id))["session_id"]

    async def declare(self, *roles: str) -> None:
        run = await self.run(self.run_id)
        for role in roles:
            await self.execute(
                "INSERT INTO session_roles (workspace_id, session_id, name, agent_id, grant_id) VALUES (%s, %s, %s, %s, %s)",
                run["workspace_id"], run["session_id"], role, run["agent_id"], run["grant_id"],
            )  # fmt: skip

    def message(self, body: Any, to: str = "all", **given: Any) -> NewMessage:
        return NewMessage(self.caller.workspace_id, given.pop("session_id", self.session_id), body, to, **given)

    async def inbox(self, role: str | None, *, after: int = 0, unacked: bool = True) -> list[Any]:
        async with self.db.connection() as conn:
            asked = Asked(self.session_id, after, role, unacked)
            found = await rows.page(conn, self.caller.workspace_id, asked, limit=1000)
        return [each.data["body"] for each in found.messages]

    async def ack(self, role: str, *ids: int) -> None:
        async with self.db.transaction() as conn:
            await messages.ack(conn, self.caller.workspace_id, self.session_id, role, ids)


@pytest.fixture
async def hall(db: Database) -> Hall:
    built = await Hall.build(db)
    assert isinstance(built, Hall)
    await built.open()
    return built


@pytest.fixture
def post(db: Database, wakes: Wakes) -> Post:
    return Post(db, wakes)


# Who gets it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "sender", "seats", "expected"),
    [
        ("all", "user", ["agent"], ["agent"]),
        ("all", "agent", ["agent"], ["user"]),
        ("agent", "user", ["agent"], ["agent"]),
        ("all", "planner", ["judge", "planner"], ["judge", "user"]),
        ("judge", "planner", ["judge", "planner"], ["judge"]),
        ("planner", "planner", ["judge", "planner"], ["planner"]),
        ("all", "agent", ["judge", "planner"], ["judge", "planner", "user"]),  # who answers a chat has no role
    ],
)
def test_a_message_goes_to_one_role_or_to_all_others(
    to: str, sender: str, seats: list[str], expected: list[str]
) -> None:
    assert recipients(to, sender, seats) == expected


@pytest.mark.parametrize(("to", "sender", "field"), [("jugde", "user", "to"), ("judge", "plannner", "from")])
def test_a_role_that_is_not_there_is_refused_with_those_that_are(to: str, sender: str, field: str) -> None:
    with pytest.raises(Invalid, match="judge, planner, user") as refused:
        recipients(to, sender, ["judge", "planner"])
    assert (refused.value.code, refused.value.field) == ("unknown_role", field)


# Until acknowledged ------------------------------------------------------------------------------------------------


async def test_what_is_not_acknowledged_comes_again_and_what_is_never_does(hall: Hall, post: Post) -> None:
    await hall.declare("planner", "judge")
    one = await post.publish(hall.message("one"))
    await post.publish(hall.message("two", to="judge"))
    assert await hall.inbox("judge") == await hall.inbox("judge") == ["one", "two"]
    for _ in range(2):  # a repeat changes nothing
        await hall.ack("judge", one.id)
    assert (await hall.inbox("judge"), await hall.inbox("planner")) == (["two"], ["one"])
    assert await hall.inbox("judge", unacked=False) == ["one", "two"]
    acked = await hall.value("SELECT acked_at FROM deliveries WHERE role = 'judge' AND acked_at IS NOT NULL")
    await hall.ack("judge", one.id)
    assert await hall.value("SELECT acked_at FROM deliveries WHERE role = 'judge' AND acked_at IS NOT NULL") == acked


async def test_only_who_got_a_message_can_acknowledge_it(hall: Hall, post: Post) -> None:
    sent = await post.publish(hall.message("one", to="agent"))
    for role, message in (("user", sent.id), ("agent", sent.id + 1)):
        with pytest.raises(NotFound) as refused:
            await hall.ack(role, message)
        assert refused.value.code == "not_delivered"
    assert await hall.inbox("agent") == ["one"]


async def test_a_message_is_an_event_of_the_one_sequence_with_a_delivery_for_each_recipient(
    hall: Hall, post: Post
) -> None:
    before = await hall.value("SELECT last_seq FROM sessions")
    sent = await post.publish(hall.message({"plan": [1, 2]}, sender="agent"))
    assert sent.id == before + 1 == await hall.value("SELECT last_seq FROM sessions")
    assert await hall.value("SELECT data FROM events WHERE seq = %s AND kind = 'message'", sent.id) == {
        "from": "agent", "to": "all", "body": {"plan": [1, 2]},
    }  # fmt: skip
    assert sent.deliveries == [{"role": "user", "acked_at": None}]


async def test_a_publish_that_is_rolled_back_is_never_seen(hall: Hall, db: Database, post: Post) -> None:
    async with db.transaction() as conn:
        [given_up] = await messages.publish(conn, [hall.message("lost")])
        roll_back()
    assert isinstance(given_up, Message)
    await post.publish(hall.message("kept"))
    assert await hall.inbox("agent") == ["kept"]
    assert await hall.value("SELECT count(*) FROM deliveries") == 1


# The late commit ---------------------------------------------------------------------------------------------------


Publish = Callable[[Connection, str], Awaitable[object]]
Read = Callable[[int], Awaitable[list[tuple[int, str]]]]


async def _seen_despite_a_late_commit(hall: Hall, publish: Publish, read: Read) -> list[str]:
    """One publisher begins first and commits last; a reader looks in between, and then after what it saw."""

    async def second() -> None:
        async with hall.db.transaction() as conn:
            await publish(conn, "begun second")

    async with hall.db.transaction() as conn:
        await publish(conn, "begun first")
        other = asyncio.create_task(second())

        async def other_waits_or_is_done() -> bool:
            return other.done() or bool(await hall.value(WAITING))

        await until(other_waits_or_is_done)
        early = await read(0)
    await other
    return [body for _, body in early + await read(early[-1][0] if early else 0)]


async def test_a_publisher_that_commits_late_loses_nothing(hall: Hall) -> None:
    async def publish(conn: Connection, body: str) -> None:
        await messages.publish(conn, [hall.message(body)])

    async def read(after: int) -> list[tuple[int, str]]:
        async with hall.db.connection() as conn:
            page = await rows.page(conn, hall.caller.workspace_id, Asked(hall.session_id, after), limit=100)
        return [(each.id, each.data["body"]) for each in page.messages]

    assert await _seen_despite_a_late_commit(hall, publish, read) == ["begun first", "begun second"]


async def test_numbers_of_an_identity_column_would_lose_it(hall: Hall) -> None:
    """The same publishers and the same reader over a plain table: what the session's lock is for."""
    await hall.execute("CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL)")

    async def publish(conn: Connection, body: str) -> None:
        await conn.execute("INSERT INTO plain (body) VALUES (%s)", [body])

    async def read(after: int) -> list[tuple[int, str]]:
        async with hall.db.connection() as conn:
            found = await conn.execute("SELECT id, body FROM plain WHERE id > %s ORDER BY id", [after])
            return await found.fetchall()

    assert await _seen_despite_a_late_commit(hall, publish, read) == ["begun second"]


async def test_who_joins_while_a_publisher_waits_for_the_session_gets_the_message(
    hall: Hall, db: Database, post: Post
) -> None:
    await hall.declare("planner")
    async with db.transaction() as conn:
        await messages.publish(conn, [hall.message("The judge is coming.", to="planner")])
        sending = asyncio.create_task(post.publish(hall.message("Welcome.")))
        await until(lambda: hall.value(WAITING))
        await conn.execute(
            "INSERT INTO session_roles (workspace_id, session_id, name, agent_id, grant_id) "
            "SELECT workspace_id, session_id, 'judge', agent_id, grant_id FROM session_roles"
        )
    assert [each["role"] for each in (await sending).deliveries] == ["judge", "planner"]


# Groups ------------------------------------------------------------------------------------------------------------


async def test_what_arrives_while_a_write_is_out_is_written_together_and_in_order(
    hall: Hall, db: Database, post: Post
) -> None:
    async with db.transaction() as conn:
        await conn.execute("SELECT 1 FROM sessions FOR UPDATE")
        sending = [asyncio.create_task(post.publish(hall.message(0)))]
        await until(lambda: hall.value(WAITING))
        sending += [asyncio.create_task(post.publish(hall.message(n))) for n in range(1, 100)]
        await asyncio.sleep(0)
    sent = await asyncio.gather(*sending)
    assert [each.id for each in sent] == list(range(sent[0].id, sent[0].id + 100))
    assert await hall.inbox("agent") == list(range(100))
    transactions = await hall.value("SELECT count(DISTINCT xmin::text) FROM events WHERE kind = 'message'")
    assert transactions == 2


async def test_what_follows_closely_is_written_together(hall: Hall, db: Database, wakes: Wakes) -> None:
    pace = 0.05
    post = Post(db, wakes, pace=pace)
    quick = False
    while not quick:  # a machine that takes longer for one than the pace has nothing to rest for
        began = time.monotonic()
        await post.publish(hall.message("first"))
        second = asyncio.create_task(post.publish(hall.message("second")))
        for _ in range(5):
            await asyncio.sleep(0)
        third = asyncio.create_task(post.publish(hall.message("third")))
        await asyncio.sleep(0)
        quick = time.monotonic() - began < pace
        sent = [await second, await third]
    numbers = [each.id for each in sent]
    assert await hall.value("SELECT count(DISTINCT xmin::text) FROM events WHERE seq = ANY(%s)", numbers) == 1


async def test_a_session_that_is_held_does_not_hold_up_another(hall: Hall, db: Database, post: Post) -> None:
    other = await _another_session(hall)
    async with db.transaction() as conn:
        await conn.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [hall.session_id])
        held = asyncio.create_task(post.publish(hall.message("held")))
        await until(lambda: hall.value(WAITING))
        async with asyncio.timeout(10):
            await post.publish(hall.message("free", session_id=other))
        assert not held.done()
    await held


async def test_one_that_is_refused_or_cannot_be_stored_does_not_take_its_group_with_it(
    hall: Hall, db: Database, post: Post
) -> None:
    async with db.transaction() as conn:
        await conn.execute("SELECT 1 FROM sessions FOR UPDATE")
        first = asyncio.create_task(post.publish(hall.message("first")))
        await until(lambda: hall.value(WAITING))
        group = [
            asyncio.create_task(post.publish(each))
            for each in (
                hall.message("good"),
                hall.message("to nobody", to="jugde"),
                hall.message("NUL: \0"),
                hall.message("nowhere", session_id=SessionId(new_id())),
                hall.message("good too"),
            )
        ]
        await asyncio.sleep(0)
    await first
    told = await asyncio.gather(*group, return_exceptions=True)
    assert [type(each) for each in told] == [
        Message,
        Invalid,
        psycopg.errors.UntranslatableCharacter,
        NotFound,
        Message,
    ]
    assert await hall.inbox("agent") == ["first", "good", "good too"]


async def test_a_body_may_be_large_but_not_larger_than_a_message(hall: Hall, post: Post) -> None:
    large = "x" * (LARGEST_BODY - 2)
    await post.publish(hall.message(large))
    assert await hall.inbox("agent") == [large]
    with pytest.raises(TooLarge) as refused:
        await post.publish(hall.message(large + "x"))
    assert (refused.value.code, refused.value.facts) == ("message_too_large", {"limit": LARGEST_BODY})


async def test_an_archived_session_takes_no_messages(hall: Hall, post: Post) -> None:
    await hall.execute("UPDATE sessions SET status = 'archived'")
    with pytest.raises(Conflict) as refused:
        await post.publish(hall.message("anybody there?"))
    assert refused.value.code == "session_archived"


# Keys --------------------------------------------------------------------------------------------------------------


async def test_a_repeat_with_its_key_is_the_same_message_also_in_one_group(hall: Hall, post: Post) -> None:
    first = await post.publish(hall.message("once", key="k"))
    again = await asyncio.gather(*(post.publish(hall.message("once", key="k")) for _ in range(3)))
    assert again == [first] * 3
    twins = await asyncio.gather(*(post.publish(hall.message("twin", key="t")) for _ in range(3)))
    assert twins == [twins[0]] * 3
    assert await hall.inbox("agent") == ["once", "twin"]
    with pytest.raises(Invalid) as refused:
        await post.publish(hall.message("other", key="k"))
    assert refused.value.code == "key_reused"


async def test_two_processes_with_one_key_send_one_message(hall: Hall, db: Database, post: Post, wakes: Wakes) -> None:
    other = Post(db, wakes)
    async with db.transaction() as conn:
        await conn.execute("SELECT 1 FROM sessions FOR UPDATE")
        both = [asyncio.create_task(each.publish(hall.message("once", key="k"))) for each in (post, other)]

        async def both_wait() -> bool:
            return bool(await hall.value(WAITING) == 2)

        await until(both_wait)
    one, two = await asyncio.gather(*both)
    assert one == two
    assert await hall.inbox("agent") == ["once"]


# Fence -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [{"lease_until": from_now(seconds=-1)}, {"attempt": 2}, {"status": "queued"}])
async def test_an_agent_that_lost_its_lease_publishes_nothing(hall: Hall, post: Post, loss: dict[str, Any]) -> None:
    ours = hall.message("mine", sender="agent", run_id=hall.run_id, attempt=1)
    await hall.set_run(hall.run_id, **running())
    await post.publish(ours)
    await hall.set_run(hall.run_id, **loss)
    with pytest.raises(Lost):
        await post.publish(ours)
    assert await hall.inbox("user") == ["mine"]


async def test_nobody_can_take_a_run_away_while_its_message_is_being_written(hall: Hall) -> None:
    await hall.set_run(hall.run_id, **running())
    async with hall.db.transaction() as conn:
        await messages.publish(conn, [hall.message("mine", sender="agent", run_id=hall.run_id, attempt=1)])
        taking = asyncio.create_task(hall.set_run(hall.run_id, attempt=2))
        await until(lambda: hall.value(WAITING))
    await taking


async def test_who_waits_for_a_run_to_send_its_message_does_not_hold_the_session(hall: Hall, post: Post) -> None:
    """Provoked: somebody ends the run and needs the session next."""
    await hall.set_run(hall.run_id, **running())
    async with hall.locked_runs() as ending:
        message = hall.message("mine", sender="agent", run_id=hall.run_id, attempt=1)
        sending = asyncio.create_task(post.publish(message))
        await until(lambda: hall.value(WAITING))
        await ending.execute("SELECT FROM sessions FOR NO KEY UPDATE NOWAIT")
    await sending


# Subscribing -------------------------------------------------------------------------------------------------------


async def _first(pages: AsyncIterator[list[Message]]) -> list[Any]:
    async with asyncio.timeout(15):
        return [each.data["body"] for each in await anext(pages)]


async def test_a_subscriber_gets_what_is_stored_and_then_what_comes(hall: Hall, post: Post, listener: Listener) -> None:
    stored = await post.publish(hall.message("stored"))
    await post.publish(hall.message("later"))
    given: dict[str, Any] = {"until": asyncio.Event()}
    where = (hall.db, listener, hall.caller.workspace_id, hall.session_id)
    async with (
        aclosing(subscribe(*where, role="agent", **given)) as everything,
        aclosing(subscribe(*where, after=stored.id, **given)) as rest,
    ):
        assert await _first(everything) == ["stored", "later"]
        assert await _first(rest) == ["later"]
        waiting = [asyncio.create_task(_first(each)) for each in (everything, rest)]
        await post.publish(hall.message("live"))
        assert await asyncio.gather(*waiting) == [["live"], ["live"]]


@pytest.mark.parametrize("kind", ["stored as it is", "stored far smaller"])
async def test_large_messages_come_in_pages_of_a_megabyte_and_without_a_rest(
    hall: Hall, post: Post, listener: Listener, kind: str
) -> None:
    large = Random(1).randbytes(150_000).hex() if kind == "stored as it is" else "x" * 300_000
    for n in range(10):
        await post.publish(hall.message(f"{n}{large}"))
    where = (hall.db, listener, hall.caller.workspace_id, hall.session_id)
    pages = subscribe(*where, role="agent", until=asyncio.Event(), poll=60)
    async with aclosing(pages), asyncio.timeout(30):
        read = [[body[0] for body in await _first(pages)] for _ in range(3)]
    assert read == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]


async def test_a_message_costs_its_subscriber_one_look(
    hall: Hall, post: Post, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = rows.pages

    async def counted(*args: Any, **given: Any) -> list[rows.Page]:
        found = await look(*args, **given)
        looks.append(len(found[0].messages))
        return found

    monkeypatch.setattr(rows, "pages", counted)
    quiet = Post(hall.db, Wakes(hall.db, Listener(hall.db.url)))  # heard of by NOTIFY alone, once
    where = (hall.db, listener, hall.caller.workspace_id, hall.session_id)
    pages = subscribe(*where, until=asyncio.Event(), poll=60)
    async with aclosing(pages):
        waiting = asyncio.create_task(_first(pages))
        await until(lambda: _is(listener.listens_to(session_channel(hall.session_id)) and looks))
        before = len(looks)
        for number in range(4):
            await quiet.publish(hall.message(number))
            assert await waiting == [number]
            waiting = asyncio.create_task(_first(pages))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert looks[before:].count(0) <= 1  # LISTEN itself wakes once


async def _is(value: object) -> bool:
    return bool(value)


async def test_without_a_notification_polling_finds_it(hall: Hall, db: Database) -> None:
    deaf = Listener("postgresql://rota@127.0.0.1:1/rota")  # never connects
    pages = subscribe(db, deaf, hall.caller.workspace_id, hall.session_id, until=asyncio.Event(), poll=0.05)
    async with aclosing(pages):
        waiting = asyncio.create_task(_first(pages))
        async with db.transaction() as conn:
            [sent] = await messages.publish(conn, [hall.message("quiet")])
        assert not isinstance(sent, RotaError)
        assert await waiting == ["quiet"]


async def test_a_subscriber_who_waits_holds_no_connection(hall: Hall, database_url: str, listener: Listener) -> None:
    small = Database(database_url, size=2)
    await small.open()
    stop = asyncio.Event()
    where = (small, listener, hall.caller.workspace_id, hall.session_id)
    subscribers = [subscribe(*where, until=stop) for _ in range(8)]
    waiting = [asyncio.create_task(anext(each, None)) for each in subscribers]
    for _ in range(20):
        async with small.connection() as one, small.connection() as two:
            await one.execute("SELECT 1")
            await two.execute("SELECT 1")
    stop.set()
    assert await asyncio.gather(*waiting) == [None] * 8
    await small.close()


async def test_pruning_takes_the_deliveries_with_their_messages(hall: Hall, post: Post, db: Database) -> None:
    await post.publish(hall.message("old"))
    await hall.execute("UPDATE events SET created_at = now() - interval '91 days'")
    await post.publish(hall.message("new"))
    await Prune(db, keep_events=timedelta(days=90), keep_snapshots=timedelta(days=7)).once()
    assert await hall.inbox("agent") == ["new"]
    assert await hall.value("SELECT count(*) FROM deliveries") == 1


def test_the_ids_of_two_sessions_do_not_share_keys() -> None:
    one, two = (NewMessage(UUID(int=1), SessionId(UUID(int=n)), "x", key="k") for n in (2, 3))  # type: ignore[arg-type]
    assert one.scope_id != two.scope_id
    assert one.body_hash() != two.body_hash()


async def _another_session(hall: Hall) -> SessionId:
    first = hall.session_id
    await hall.open()
    other, hall.session_id = hall.session_id, first
    return other
