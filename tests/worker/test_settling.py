"""The short way of settling: who takes it, and that it keeps to the same fences, lanes and order as the long one."""

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from rota.db.listener import RUNS, Wakes
from rota.db.pool import Connection, Database
from rota.model.executor import Assignment, Desk
from rota.model.ids import RunId, WorkerId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from rota.model.run import Claimed
from rota.roster import agents, running
from rota.runs import claiming, settling
from rota.runs.settling import Result
from rota.scheduler.inbound import publish_event
from rota.sessions import chat
from rota.worker.queues import Queues
from support import live_run_tables
from support.house import House
from support.run_state import from_now
from support.waiting import until

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
STORY = """
SELECT string_agg(seq || ' ' || (data ->> 'status'), ', ' ORDER BY seq) FROM events WHERE kind = 'run' AND run_id = %s
"""


# What two runs, sessions or events never have in common.
OF_A_RUN = {
    "id", "session_id", "idempotency_key", "trace_id", "payload", "queued_at", "ready_at", "started_at", "finished_at",
}  # fmt: skip
OF_A_SESSION = {"id", "created_at", "updated_at"}
OF_AN_EVENT = {"session_id", "run_id", "created_at"}


async def written(house: House, run_id: RunId) -> dict[str, Any]:
    """All of a run that two of them may have in common."""
    run = await house.run(run_id)
    session = "SELECT to_jsonb(s) FROM sessions s WHERE id = %s"
    log = "SELECT jsonb_agg(to_jsonb(e) ORDER BY e.seq) FROM events e WHERE session_id = %s"
    async with house.db.connection() as conn:
        tables = await live_run_tables.tables_of(conn, run_id)
    return {
        "run": without(OF_A_RUN, run),
        "took": run["finished_at"] >= run["started_at"],
        "session": without(OF_A_SESSION, await house.value(session, run["session_id"])),
        "events": [without(OF_AN_EVENT, event) for event in await house.value(log, run["session_id"])],
        "tables": tables,
    }


def without(columns: set[str], row: dict[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column not in columns}


def run(**changes: Any) -> Claimed:
    known: dict[str, Any] = dict.fromkeys(Claimed._fields)
    return Claimed(
        **known | {"workspace_id": WORKSPACE, "id": new_id(), "session_id": new_id(), "source": "schedule"} | changes
    )


WORKSPACE = new_id()


async def claim(conn: Connection, count: int) -> list[Claimed]:
    queues = Queues(["default"], ["command"])
    await queues.look(conn)
    to_read = await queues.to_read(conn, count)
    claimed = await claiming.claim(conn, WorkerId("w"), queues=to_read, places=count, lease=timedelta(minutes=1))
    return sorted(claimed, key=lambda each: each.id)


def test_plain_successes_take_the_short_way_in_id_order() -> None:
    results = [Result(run(), Succeeded("Done.")) for _ in range(3)]
    assert settling.parted(results[::-1]) == (results, [])


@pytest.mark.parametrize(
    "other",
    [
        Result(run(), Failed(ErrorClass.AGENT_ERROR, "No.")),
        Result(run(), None),
        Result(run(budget={"seconds": "5"}), Succeeded()),
        *(Result(run(source=source), Succeeded()) for source in ("task", "chat", "retry")),
    ],
)
def test_what_else_is_to_be_done_takes_the_long_way(other: Result) -> None:
    plain = Result(run(), Succeeded())
    assert settling.parted([other, plain]) == ([plain], [other])


def test_nobody_takes_the_short_way_where_sessions_are_shared_or_come_in_another_order_than_their_runs() -> None:
    """Two who lock the same sessions in different orders would wait for each other."""
    shared = new_id()
    for sessions in ((shared, shared), (new_id(), shared)):
        results = [Result(run(session_id=each), Succeeded()) for each in sessions]
        assert settling.parted(results) == ([], results)


async def test_of_a_batch_only_those_are_accepted_that_hold_their_lease(house: House, db: Database) -> None:
    await house.automation({"event": "go"}, overlap="allow")
    async with db.transaction() as conn:
        for number in range(4):
            await publish_event(conn, house.caller, "go", None, str(number))
    async with db.connection() as conn:
        runs = await claim(conn, 4)
        assert [each.attempt for each in runs] == [1, 1, 1, 1]
        over, taken, queued, held = (each.id for each in runs)
        await house.set_run(over, lease_until=from_now(seconds=-1))
        await house.set_run(taken, attempt=2)
        await house.set_run(queued, status="queued")
        results, others = settling.parted([Result(each, Succeeded("Done.")) for each in runs])
        assert (len(results), others) == (4, [])
        assert [each.run.id for each in await settling.succeed(conn, results)] == [held]
        assert await settling.succeed(conn, results) == [], "a repeat is refused, too"
    assert [each["id"] for each in await house.runs(status="succeeded")] == [held]
    stories = [await house.value(STORY, each.id) for each in runs]
    assert stories == 3 * ["1 queued, 2 running"] + ["1 queued, 2 running, 3 succeeded"]
    assert await house.value("SELECT status FROM sessions WHERE id = %s", runs[3].session_id) == "done"


@pytest.mark.parametrize("summary", ["Done.", None])
async def test_both_ways_write_the_same(house: House, db: Database, summary: str | None) -> None:
    await house.automation({"event": "go"}, overlap="allow")
    async with db.transaction() as conn:
        for number in range(2):
            await publish_event(conn, house.caller, "go", None, str(number))
    async with db.connection() as conn:
        short, long = [Result(each, Succeeded(summary)) for each in await claim(conn, 2)]
        assert await settling.succeed(conn, [short]) == [short]
        assert await settling.settle(conn, [long]) == [long]
    one, other = [await written(house, each.run.id) for each in (short, long)]
    assert one == other
    assert (one["run"]["status"], one["run"]["summary"], one["session"]["status"]) == ("succeeded", summary, "done")
    assert [event["data"]["status"] for event in one["events"]] == ["queued", "running", "succeeded"]


@pytest.mark.parametrize("way", [settling.succeed, settling.settle])
async def test_a_session_that_was_ended_by_hand_stays_as_it_is_when_its_run_succeeds(
    house: House, db: Database, way: Any
) -> None:
    await house.automation({"event": "go"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
    async with db.connection() as conn:
        [at_work] = await claim(conn, 1)
        await house.execute("UPDATE sessions SET status = 'failed'")
        await way(conn, [Result(at_work, Succeeded())])
    assert await house.value("SELECT status FROM sessions") == "failed"
    assert (await house.run())["status"] == "succeeded"


async def test_a_run_began_when_its_first_attempt_did(house: House, db: Database) -> None:
    await house.automation({"event": "go"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
    async with db.connection() as conn:
        [first] = await claim(conn, 1)
        began = (await house.run())["started_at"]
        await settling.settle(conn, [Result(first, None)])
        [second] = await claim(conn, 1)
    assert second.attempt == 2
    assert (await house.run())["started_at"] == began


async def test_a_run_in_the_one_session_of_its_automation_waits_for_a_turn_of_its_person(
    house: House, db: Database
) -> None:
    """The turn holds the session's lane, and no overlap counts it."""
    await house.automation({"event": "go"}, session="same", overlap="skip")
    session_id = await house.value("SELECT session_id FROM automations")
    async with db.transaction() as conn:
        await chat.turn(conn, house.caller, session_id, prompt="And now?")
    async with db.connection() as conn:
        [turn] = await claim(conn, 1)
        async with conn.transaction():
            await publish_event(conn, house.caller, "go", None, "first")
        assert await claim(conn, 1) == []
        await settling.settle(conn, [Result(turn, Succeeded())])
        [after] = await claim(conn, 1)
    assert (after.source, after.session_id) == ("event", turn.session_id)


async def test_of_those_who_wait_in_a_lane_a_persons_turn_is_the_first(house: House, db: Database) -> None:
    await house.automation({"event": "go"}, session="same")
    session_id = await house.value("SELECT session_id FROM automations")
    async with db.transaction() as conn:
        for key in ("first", "second"):
            await publish_event(conn, house.caller, "go", None, key)
        turn = await chat.turn(conn, house.caller, session_id, prompt="And now?")
    async with db.connection() as conn:
        [first] = await claim(conn, 5)
        await settling.settle(conn, [Result(first, Succeeded())])
        assert [run.id for run in await claim(conn, 5)] == [turn]


async def test_who_came_to_wait_while_the_end_was_being_written_becomes_ready(house: House, db: Database) -> None:
    """Provoked: the next run of the lane holds the row of the one that is ending, and commits while that waits for it."""
    await house.automation({"event": "go"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
    async with db.connection() as conn:
        [holder] = await claim(conn, 1)

        async with db.transaction() as arriving:
            await publish_event(arriving, house.caller, "go", None, "second")
            ending = asyncio.create_task(settling.succeed(conn, [Result(holder, Succeeded())]))
            await until(lambda: house.value(WAITS))
        await ending
    first, second = await house.ledger()
    assert (first["status"], second["status"]) == ("succeeded", "queued")
    assert second["ready_at"] is not None


async def test_workers_hear_of_what_runs_after_another(house: House, db: Database, wakes: Wakes) -> None:
    heard: list[str] = []
    await house.automation({"event": "go"}, name="First")
    await house.automation({"after": "first"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
    async with db.connection() as conn, wakes.listener.subscribed(RUNS, heard.append):
        [first] = await claim(conn, 1)
        heard.clear()
        await settling.succeed(conn, [Result(first, Succeeded())])
        await until(lambda: _heard(heard))
    assert set(heard) == {str(house.caller.workspace_id)}


async def _heard(told: list[str]) -> bool:
    return bool(told)


async def test_workers_hear_that_a_capped_agent_has_room_once_it_is_committed(
    house: House, db: Database, wakes: Wakes
) -> None:
    heard: list[str] = []
    async with db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
        for _ in range(2):
            await running.run_agent(conn, house.caller, "worker-bee", {"prompt": "go"})
    async with db.connection() as conn, wakes.listener.subscribed(RUNS, heard.append):
        [at_work] = await claim(conn, 2)
        heard.clear()
        await settling.succeed(conn, [Result(at_work, Succeeded())])
        assert heard == [str(house.caller.workspace_id)]


async def test_the_short_way_goes_step_by_step_where_nothing_may_be_prepared(house: House, database_url: str) -> None:
    await house.automation({"event": "go"}, overlap="allow")
    pooled = Database(database_url, prepared=False)
    await pooled.open()
    async with pooled.connection() as conn:
        async with conn.transaction():
            await publish_event(conn, house.caller, "go", None, "first")
        [result] = [Result(each, Succeeded("Done.")) for each in await claim(conn, 1)]
        assert await settling.succeed(conn, [result]) == [result]
        assert await settling.succeed(conn, [result]) == []
    await pooled.close()
    assert [each["summary"] for each in await house.runs(status="succeeded")] == ["Done."]


async def test_a_success_stays_one_when_another_took_the_lane_of_the_run_that_follows_it(
    house: House, shift: Any, run_now: Any, db: Database
) -> None:
    """Provoked: somebody's turn in that lane is not committed when whom the end concerns is looked up."""
    first = await house.automation(name="First")
    after = {"after": await house.value("SELECT slug FROM automations WHERE id = %s", first), "on": ["succeeded"]}
    second = await house.automation(after, name="Second", session="same")
    session_id = await house.value("SELECT session_id FROM automations WHERE id = %s", second)
    begun, go = asyncio.Event(), asyncio.Event()

    async def answer(assignment: Assignment, _desk: Desk) -> Outcome:
        if assignment.automation_id == first:
            begun.set()
            await go.wait()
        return Succeeded("It all went well.")

    async with shift(answer):
        run_id = await run_now(first)
        await begun.wait()
        async with db.transaction() as conn:
            await chat.turn(conn, house.caller, session_id, prompt="Hello.")
            go.set()
            await until(lambda: house.value(WAITS))
        await until(lambda: house.has_runs(3, status="succeeded"))
    assert (await house.run(run_id))["summary"] == "It all went well."


@pytest.mark.parametrize(
    ("ends", "failures", "paused_after"),
    [
        ("FSFF", 3, 3),
        ("FFFS", 0, None),
        ("FSF", 2, None),
        ("SFFFF", 5, 4),
    ],
)
async def test_of_runs_that_end_together_those_since_the_last_success_count_as_failures_in_a_row(
    house: House, db: Database, ends: str, failures: int, paused_after: int | None
) -> None:
    """And one more fails alone, unless a success was the last. In the order in which they ended, not in that of their
    starts."""
    automation = await house.automation({"event": "go"}, overlap="allow", pause_after_failures=3)
    async with db.transaction() as conn:
        for n in range(len(ends) + 1):
            await publish_event(conn, house.caller, "go", None, str(n))
    failed = Failed(ErrorClass.AGENT_ERROR, "No.", retryable=False)
    async with db.transaction() as conn:
        *together, alone = reversed(await claim(conn, len(ends) + 1))
        outcomes = [Succeeded() if end == "S" else failed for end in ends]
        await settling.settle(conn, [Result(*each) for each in zip(together, outcomes, strict=True)])
        if failures:
            await settling.settle(conn, [Result(alone, failed)])
    stored = "SELECT to_jsonb(a) FROM automations a WHERE id = %s"
    found = await house.value(stored, automation)
    assert found["failures"] == failures
    assert found["status"] == ("paused" if paused_after else "active")
    assert re.findall(r"\d+", found["paused_reason"] or "") == ([str(paused_after)] if paused_after else [])
