"""Promises 3, 4, 5 and 9 at the worker: one live attempt, fenced writes, nothing stuck."""

import asyncio
import gc
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from rota.db import events, runs, workers
from rota.db.listener import CANCELS, RUNS, Wakes
from rota.db.pool import Connection, Database
from rota.db.run_status.ending import SPAN
from rota.errors import Conflict, Lost
from rota.model.duration import parse_duration
from rota.model.executor import Assignment, Desk
from rota.model.ids import WorkerId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from rota.roster import automations, running
from rota.runs import cancelling, sweeping
from rota.runs.settling import Result
from rota.scheduler.inbound import publish_event
from rota.sessions.desk import AttemptDesk
from rota.sessions.story import attempts
from rota.sessions.transcript import lines
from rota.trace.record import RecordingDesk
from rota.watch.rescue import Rescue
from rota.worker.attempt import TRANSCRIPT_BYTES, Attempt
from rota.worker.queues import Queues
from support import run_state
from support.house import House
from support.run_state import PRESENT, from_now
from support.waiting import until

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def succeed(assignment: Assignment, desk: Desk) -> Outcome:
    await desk.say("First line.\nAll the plants are watered.\n")
    return Succeeded()


async def forever(assignment: Assignment, desk: Desk) -> Outcome:
    await asyncio.Event().wait()
    raise AssertionError


async def _run(house: House, run_id: Any) -> dict[str, Any]:
    async with house.db.connection() as conn:
        found = await runs.find(conn, house.caller.workspace_id, run_id)
    assert found
    return found


def ended(house: House, run_id: Any) -> Any:
    async def check() -> dict[str, Any] | None:
        found = await _run(house, run_id)
        return found if found["finished_at"] else None

    return check


def status_is(house: House, run_id: Any, status: str) -> Any:
    async def check() -> dict[str, Any] | None:
        found = await _run(house, run_id)
        return found if found["status"] == status else None

    return check


async def queue_by_agent(house: House) -> None:
    """Put all runs, which are of one agent, into the queue of that agent."""
    [agent_id] = {run["agent_id"] for run in await house.runs()}
    await house.set_runs(queue=agent_id)


async def story(house: House, run: dict[str, Any]) -> list[tuple[str, Any]]:
    async with house.db.connection() as conn:
        rows = await conn.execute(
            "SELECT kind, coalesce(data ->> 'status', data ->> 'text') FROM events WHERE session_id = %s ORDER BY seq",
            [run["session_id"]],
        )
        return [(kind, told) for kind, told in await rows.fetchall()]


async def test_a_run_is_claimed_executed_and_settled_with_its_whole_story(
    house: House, shift: Any, run_now: Any
) -> None:
    run_id = await run_now(await house.automation())
    async with shift(succeed):
        run = await until(ended(house, run_id))
    assert (run["status"], run["attempt"], run["tries"], run["rescues"]) == ("succeeded", 1, 0, 0)
    assert run["summary"] == "All the plants are watered."
    assert await story(house, run) == [
        ("run", "queued"),
        ("run", "running"),
        ("output", "First line.\nAll the plants are watered.\n"),
        ("run", "succeeded"),
    ]
    assert await house.value("SELECT status FROM sessions WHERE id = %s", run["session_id"]) == "done"


async def test_the_agent_is_given_its_prompt_its_key_and_a_token_that_dies_with_the_attempt(
    house: House, shift: Any, run_now: Any
) -> None:
    run_id = await run_now(await house.automation(prompt="Sweep.", input={"room": 4}))
    async with shift(succeed) as at_work:
        await until(ended(house, run_id))
    [assignment] = at_work.executor.assignments
    assert (assignment.prompt, assignment.input, assignment.idempotency_key) == ("Sweep.", {"room": 4}, str(run_id))
    assert assignment.environment["TRACEPARENT"].split("-")[1] == (await _run(house, run_id))["trace_id"]
    assert assignment.environment["ROTA_RUN_ID"] == str(run_id)
    assert (await house.run())["attempt_token_hash"] is None


async def test_an_attempt_that_has_ended_is_freed_by_its_last_user(house: House, shift: Any, run_now: Any) -> None:
    """Nothing is left for the search for cycles, which a worker makes rarely: a thousand runs a second would pile up."""

    async def work(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.say(f"The token of {assignment.environment['ROTA_RUN_ID']} stays where it is.\n")
        await desk.usage("tokens", 3)
        return Succeeded()

    async def freed() -> bool:
        kept = [each for each in gc.get_objects() if isinstance(each, Attempt | AttemptDesk | RecordingDesk)]
        return not [each for each in kept if each.run.id == run_id]

    await house.execute("UPDATE accounts SET budget = %s", '{"per_run": {"tokens": 10, "seconds": 60}}')
    run_id = await run_now(await house.automation())
    gc.collect()
    gc.disable()
    try:
        async with shift(work) as at_work:
            await until(ended(house, run_id))
            at_work.executor.assignments.clear()
            await until(freed)
    finally:
        gc.enable()


async def test_the_end_of_an_attempt_leaves_its_runs_next_one_here_alone(
    house: House, shift: Any, run_now: Any
) -> None:
    """A run that went back to the queue may be claimed again before this worker has read that it did."""
    run_id = await run_now(await house.automation())
    async with shift(forever) as at_work:
        await until(status_is(house, run_id, "running"))
        [attempt] = at_work.worker.attempts.values()
        before = Result(attempt.run._replace(attempt=attempt.run.attempt - 1), None)
        at_work.worker.settler.hand_in(before)
        await at_work.worker.settler.finish()
        assert at_work.worker.attempts == {run_id: attempt}


async def test_a_session_that_goes_on_gives_the_agent_what_was_said_before(
    house: House, shift: Any, run_now: Any
) -> None:
    automation = await house.automation(session="same", prompt="Count.")

    async def count(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.say(str(1 + sum(turn.speaker == "agent" for turn in assignment.transcript)))
        return Succeeded()

    async with shift(count):
        summaries = [(await until(ended(house, await run_now(automation))))["summary"] for _ in range(3)]
    assert summaries == ["1", "2", "3"]
    assert await house.value("SELECT count(*) FROM sessions") == 1
    assert await house.value("SELECT status FROM sessions") == "active"


@pytest.mark.parametrize("text", ["md5(random()::text)", "'word for word, '"])
async def test_of_a_long_story_an_agent_is_given_the_newest_that_fits(
    house: House, shift: Any, run_now: Any, text: str
) -> None:
    """Whether it is stored as it is or far smaller."""
    automation = await house.automation(session="same", prompt="Count.")
    stories: list[str] = []

    async def listen(assignment: Assignment, desk: Desk) -> Outcome:
        stories.append("".join(turn.text for turn in assignment.transcript))
        return Succeeded("Heard.")

    async with shift(listen):
        first = await until(ended(house, await run_now(automation)))
        await house.execute(
            "INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)"
            " SELECT workspace_id, id, last_seq + n, 'output', %s, 1, jsonb_build_object('text', '<' || n || '>' ||"
            f" (SELECT string_agg({text}, '') FROM generate_series(1, 1500))) FROM sessions, generate_series(1, 100) n",
            first["id"],
        )
        await house.execute("UPDATE sessions SET last_seq = last_seq + 100")
        await until(ended(house, await run_now(automation)))
    told = stories[-1]
    assert 900_000 < len(told) <= TRANSCRIPT_BYTES
    assert told[: told.index(">")].removeprefix("<").isdigit(), "whole events"
    assert "<100>" in told
    assert "<1>" not in told


async def test_a_failure_is_tried_again_while_tries_are_left_and_the_story_tells_each_attempt(
    house: House, shift: Any, run_now: Any
) -> None:
    async def fail_first(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.attempt == 1:
            return Failed(ErrorClass.AGENT_ERROR, "The tap was closed.")
        return Succeeded("Watered.")

    run_id = await run_now(await house.automation(max_attempts=2))
    async with shift(fail_first) as at_work:
        await until(lambda: house.runs(tries=1))
        queued = await _run(house, run_id)
        assert (queued["status"], queued["error_class"], queued["ready_at"] > queued["queued_at"]) == (
            "queued",
            None,
            True,
        )
        await house.set_run(run_id, ready_at=from_now())
        at_work.loop.wake()
        run = await until(ended(house, run_id))
    assert (run["status"], run["attempt"], run["tries"]) == ("succeeded", 2, 1)
    assert {each.idempotency_key for each in at_work.executor.assignments} == {str(run_id)}
    assert [told for _, told in await story(house, run)] == ["queued", "running", "queued", "running", "succeeded"]
    async with house.db.connection() as conn:
        told = attempts(await events.of_run(conn, house.caller.workspace_id, run["session_id"], run_id), "scripted")
    assert [(each.attempt, each.ended_as, each.detail) for each in told] == [
        (1, "failed", "The tap was closed."),
        (2, "succeeded", None),
    ]
    assert all(each.worker_id == at_work.worker.id and each.ended_at for each in told)


async def test_the_last_failure_ends_the_run_with_its_class_and_detail(house: House, shift: Any, run_now: Any) -> None:
    async def fail(assignment: Assignment, desk: Desk) -> Outcome:
        return Failed(ErrorClass.AGENT_ERROR, "The tap was closed.")

    run_id = await run_now(await house.automation())
    async with shift(fail):
        run = await until(ended(house, run_id))
    assert (run["status"], run["error_class"], run["error_detail"]) == ("failed", "agent_error", "The tap was closed.")


async def test_a_failure_is_told_without_what_is_meant_for_terminals(house: House, shift: Any, run_now: Any) -> None:
    async def fails(_: Assignment, __: Desk) -> Outcome:
        return Failed(ErrorClass.AGENT_ERROR, "exited with code 3: \x1b[31mFatal\x1b[0m: \x1b]0;owned\x07no tap\x07")

    run_id = await run_now(await house.automation())
    async with shift(fails):
        run = await until(ended(house, run_id))
    assert run["error_detail"] == "exited with code 3: Fatal: no tap"


async def test_an_executor_that_breaks_fails_the_run_and_not_the_worker(house: House, shift: Any, run_now: Any) -> None:
    async def explode(assignment: Assignment, desk: Desk) -> Outcome:
        if len(at_work.executor.assignments) == 1:
            raise ZeroDivisionError("by zero")
        return Succeeded()

    async with shift(explode) as at_work:
        first = await until(ended(house, await run_now(await house.automation())))
        second = await until(ended(house, await run_now(await house.automation())))
    assert (first["error_class"], first["error_detail"]) == ("executor_error", "ZeroDivisionError: by zero")
    assert second["status"] == "succeeded"


async def test_a_run_over_its_timeout_fails_without_another_try(house: House, shift: Any, run_now: Any) -> None:
    run_id = await run_now(await house.automation(timeout=timedelta(seconds=0.2), max_attempts=5))
    async with shift(forever):
        run = await until(ended(house, run_id))
    assert (run["status"], run["error_class"], run["attempt"]) == ("failed", "timeout", 1)


async def test_cancelling_a_running_run_ends_it_through_its_executor(house: House, shift: Any, run_now: Any) -> None:
    run_id = await run_now(await house.automation())
    async with shift(forever):
        await until(status_is(house, run_id, "running"))
        async with house.db.transaction() as conn:
            await cancelling.cancel(conn, house.caller.workspace_id, run_id)
        run = await until(ended(house, run_id))
    assert (run["status"], run["error_class"]) == ("cancelled", "cancelled_by_user")


@pytest.mark.parametrize("why", ["timeout", "cancel", "hand_back"])
async def test_an_executor_that_lost_a_cancellation_is_asked_again_until_it_ends(
    house: House, shift: Any, run_now: Any, why: str
) -> None:
    lost, begun = 0, asyncio.Event()

    async def absent_minded(assignment: Assignment, desk: Desk) -> Outcome:
        nonlocal lost
        begun.set()
        while lost < 2:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            lost += 1
            at_work.worker.attempts[assignment.run_id].cancel()  # who comes later changes nothing of why it ends
        return await forever(assignment, desk)

    given: dict[str, Any] = {"timeout": timedelta(seconds=0.1)} if why == "timeout" else {}
    async with shift(absent_minded, patience=timedelta(seconds=0.05)) as at_work:
        run_id = await run_now(await house.automation(**given))
        await begun.wait()
        if why == "cancel":
            at_work.worker.cancel(str(run_id))
        if why != "hand_back":
            await until(ended(house, run_id))
    [run] = await house.ledger()
    assert (run["status"], lost) == ({"timeout": "failed", "cancel": "cancelled", "hand_back": "queued"}[why], 2)


async def test_asking_to_cancel_stands_in_the_log_once_and_ends_no_attempt(
    house: House, unheard: Database, shift: Any, run_now: Any
) -> None:
    run_id = await run_now(await house.automation())
    async with shift(forever) as at_work:
        await until(status_is(house, run_id, "running"))
        for _ in range(2):
            async with unheard.transaction() as conn:
                await cancelling.cancel(conn, house.caller.workspace_id, run_id)
        run = await _run(house, run_id)
        async with house.db.connection() as conn:
            told = await events.of_run(conn, house.caller.workspace_id, run["session_id"], run_id)
        assert [event.data for event in told][2:] == [{"cancel_requested": "cancelled_by_user"}]
        assert [each.ended_at for each in attempts(told, "scripted")] == [None]
        assert [line.text for line in lines(told) if line.speaker == "rota"] == ["Asked to stop."]
        await at_work.lease.once()
        await until(ended(house, run_id))


async def test_a_cancellation_is_found_at_renewal_when_its_notification_was_lost(
    house: House, unheard: Database, shift: Any, run_now: Any
) -> None:
    run_id = await run_now(await house.automation())
    async with shift(forever) as at_work:
        await until(status_is(house, run_id, "running"))
        async with unheard.transaction() as conn:
            await cancelling.cancel(conn, house.caller.workspace_id, run_id)
        await at_work.lease.once()
        run = await until(ended(house, run_id))
    assert run["status"] == "cancelled"


async def test_a_cancellation_that_comes_before_the_answer_to_the_claim_is_not_lost(
    house: House, shift: Any, run_now: Any, wakes: Wakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await run_now(await house.automation())
    claims = iter(["worker.claimed"])

    def claimed(point: str) -> None:
        if point == next(claims, None):  # it is running in the database, and nobody here knows of it yet
            wakes.listener.dispatch(CANCELS, str(run_id))

    monkeypatch.setattr("rota.worker.worker.reach", claimed)
    async with shift(forever):
        run = await until(ended(house, run_id))
    assert (run["status"], run["error_class"]) == ("cancelled", "cancelled_by_user")


async def test_cancelling_a_queued_run_ends_it_at_once_and_an_ended_one_is_refused(house: House, run_now: Any) -> None:
    run_id = await run_now(await house.automation())
    async with house.db.transaction() as conn:
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)
    assert (await _run(house, run_id))["status"] == "cancelled"
    with pytest.raises(Conflict) as refused:
        async with house.db.transaction() as conn:
            await cancelling.cancel(conn, house.caller.workspace_id, run_id)
    assert (refused.value.code, refused.value.facts) == ("run_ended", {"run_status": "cancelled"})


async def test_no_more_runs_are_claimed_than_there_are_places(house: House, shift: Any, run_now: Any) -> None:
    ids = [await run_now(await house.automation()) for _ in range(4)]
    async with shift(forever, places=2):
        await until(status_is(house, ids[1], "running"))
        assert await house.has_runs(2, status="running")


async def test_a_worker_that_stops_hands_its_runs_back_and_counts_nothing(
    house: House, shift: Any, run_now: Any
) -> None:
    run_id = await run_now(await house.automation())
    async with shift(forever):
        await until(status_is(house, run_id, "running"))
    run = await _run(house, run_id)
    assert (run["status"], run["tries"], run["rescues"], run["attempt"]) == ("queued", 0, 0, 1)
    assert run["worker_id"] is None


async def test_a_worker_that_stops_hands_back_also_what_it_is_just_claiming(
    house: House, db: Database, shift: Any
) -> None:
    """Provoked: the claim waits for the row of the run's session when the worker is told to stop."""
    automation = await house.automation()
    async with shift(forever) as at_work:
        async with db.transaction() as holding:
            async with db.transaction() as conn:
                await running.run_now(conn, house.caller, automation)
            await holding.execute("SELECT FROM sessions FOR UPDATE")
            at_work.loop.wake()
            await until(lambda: house.value(WAITS))
            leaving = asyncio.create_task(at_work.worker.drain(timedelta(minutes=1), asyncio.Event()))
            await until(lambda: house.value(WAITS))  # meanwhile it finds nothing at work that it had to wait for
        await leaving
        assert not at_work.worker.attempts
    [run] = await house.ledger()
    assert (run["status"], run["rescues"], run["attempt"]) == ("queued", 0, 1)


async def test_a_worker_that_stops_while_the_database_is_away_leaves_soon_and_the_run_to_others(
    house: House, shift: Any, run_now: Any, server_url: str
) -> None:
    name = await house.value("SELECT current_database()")
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def go_on(_assignment: Assignment, desk: Desk) -> Outcome:
        await desk.say("At work.")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    hurry = asyncio.Event()
    hurry.set()
    async with shift(go_on, last_outcomes=timedelta(seconds=0.5)) as at_work:
        run_id = await run_now(await house.automation())
        await begun.wait()
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            try:
                async with asyncio.timeout(20):
                    await at_work.worker.drain(timedelta(seconds=1), hurry)
            finally:
                admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert stopped.is_set()
        assert not at_work.worker.attempts
    assert (await house.run(run_id))["status"] == "running"


async def test_an_executor_may_wait_until_what_was_said_is_stored_and_hears_when_it_never_will_be(
    house: House, shift: Any, run_now: Any
) -> None:
    told: list[Any] = []

    async def speak(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.say("one")
        await desk.stored()
        told.append(await house.value("SELECT data ->> 'text' FROM events WHERE kind = 'output'"))
        await house.set_run(lease_until=from_now(seconds=-1))
        await desk.say("two")
        try:
            await desk.stored()
        except Lost:
            told.append("lost")
            raise
        return Succeeded()

    await run_now(await house.automation())
    async with shift(speak):
        await until(lambda: asyncio.sleep(0, len(told) == 2))
    assert told == ["one", "lost"]


async def test_the_lanes_next_run_becomes_ready_when_the_one_before_ends(
    house: House, shift: Any, run_now: Any
) -> None:
    automation = await house.automation()
    gate = asyncio.Event()

    async def wait_for_gate(assignment: Assignment, desk: Desk) -> Outcome:
        await gate.wait()
        return Succeeded()

    first = await run_now(automation)
    async with shift(wait_for_gate):
        await until(status_is(house, first, "running"))
        second = await run_now(automation)
        assert (await _run(house, second))["ready_at"] is None
        gate.set()
        assert (await until(ended(house, second)))["status"] == "succeeded"


async def test_a_second_run_now_while_one_is_queued_is_refused_with_its_id(house: House, run_now: Any) -> None:
    automation = await house.automation()
    queued = await run_now(automation)
    with pytest.raises(Conflict) as refused:
        await run_now(automation)
    assert (refused.value.code, refused.value.facts["run_id"]) == ("already_queued", str(queued))


async def test_two_runs_can_never_hold_one_lane(house: House, run_now: Any) -> None:
    """The guard itself: without live_runs_one_per_lane this update would pass."""
    automation = await house.automation(overlap="queue_all")
    await run_now(automation)
    await house.set_run(**run_state.running())
    await run_now(automation)
    with pytest.raises(psycopg.errors.UniqueViolation, match="live_runs_one_per_lane"):
        await house.set_runs({"status": "queued"}, ready_at=from_now())


async def test_a_terminal_run_never_changes(house: House, shift: Any, run_now: Any) -> None:
    run_id = await run_now(await house.automation())
    async with shift(succeed):
        await until(ended(house, run_id))
    changes: list[dict[str, Any]] = [{"status": "queued", "finished_at": None}, {"summary": "other"}, {"attempt": 9}]
    for change in changes:
        with pytest.raises(psycopg.DatabaseError) as refused:
            await house.set_run(**change)
        assert refused.value.sqlstate == "RT001"


async def test_a_worker_that_lost_its_lease_can_write_nothing_and_the_run_goes_on_elsewhere(
    house: House, db: Database, shift: Any, run_now: Any, wakes: Wakes
) -> None:
    """Promise 5: the zombie speaks and settles after somebody else has the run; none of it is kept."""
    run_id = await run_now(await house.automation())
    zombie_may_speak, refused = asyncio.Event(), asyncio.Event()

    async def zombie(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.attempt == 2:
            return Succeeded("The second one did it.")
        await zombie_may_speak.wait()
        try:
            while True:
                await desk.say("I am still here. ")
                await asyncio.sleep(0.01)
        except Lost:
            refused.set()
        return Succeeded("The zombie did it.")

    async with shift(zombie) as at_work:
        await until(status_is(house, run_id, "running"))
        lost = at_work.worker.attempts.pop(run_id)  # as another process would not know it either
        await house.set_run(run_id, lease_until=from_now(seconds=-1))
        await Rescue(db, wakes).once()
        run = await until(ended(house, run_id))
        zombie_may_speak.set()
        await asyncio.wait_for(refused.wait(), 10)
        at_work.worker.attempts[run_id] = lost
    assert (run["summary"], run["attempt"], run["rescues"], run["tries"]) == ("The second one did it.", 2, 1, 0)
    assert await house.value("SELECT count(*) FROM events WHERE data ->> 'text' LIKE '%%still here%%'") == 0
    assert await house.value("SELECT count(*) FROM events WHERE data ->> 'status' = 'succeeded'") == 1


async def test_a_lost_run_is_rescued_only_so_often_and_then_fails_as_stalled(
    house: House, db: Database, run_now: Any
) -> None:
    run_id = await run_now(await house.automation(max_rescues=2))
    for attempt in (1, 2, 3):
        await house.set_run(run_id, **run_state.lost(attempt=attempt))
        async with db.transaction() as conn:
            assert await sweeping.rescue(conn, 10) == 1
    run = await _run(house, run_id)
    assert (run["status"], run["error_class"], run["rescues"], run["tries"]) == ("failed", "stalled", 2, 0)


async def test_a_lost_run_that_may_not_be_rescued_says_so(house: House, db: Database, run_now: Any) -> None:
    run_id = await run_now(await house.automation(max_rescues=0))
    await house.set_run(run_id, **run_state.lost())
    async with db.transaction() as conn:
        await sweeping.rescue(conn, 10)
    run = await _run(house, run_id)
    assert (run["status"], run["error_class"]) == ("failed", "stalled")
    assert run["error_detail"] == "Its worker gone was lost, and it may not be rescued."


async def test_a_lost_run_that_was_to_be_cancelled_ends_cancelled(house: House, db: Database, run_now: Any) -> None:
    run_id = await run_now(await house.automation())
    await house.set_run(run_id, **run_state.lost())
    async with db.transaction() as conn:
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)
        await sweeping.rescue(conn, 10)
    assert (await _run(house, run_id))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ("default", "It waited 15m for a worker with a free place."),
        ("gpu", "It waited 15m for a worker that serves the kind command in the pool default; none was there."),
    ],
)
async def test_a_run_that_no_worker_had_a_place_for_fails_as_stuck(
    house: House, db: Database, run_now: Any, wakes: Wakes, pool: str, told: str
) -> None:
    async with db.connection() as conn:
        busy: dict[str, Any] = {"host": "h", "pid": 1, "places": 1, "busy": 1, "at_work": []}
        await workers.beat(conn, WorkerId("w"), kinds=["command"], pools=[pool], **busy)
    run_id = await run_now(await house.automation(start_within=timedelta(minutes=15)))
    await Rescue(db, wakes).once()
    assert (await _run(house, run_id))["status"] == "queued"
    await house.set_run(run_id, ready_at=from_now(minutes=-16))
    await Rescue(db, wakes).once()
    run = await _run(house, run_id)
    assert (run["status"], run["error_class"]) == ("failed", "stuck")
    assert run["error_detail"] == told


@pytest.mark.parametrize("text", ["2s", "0.05s", "1.25s", "15m", "1h30m", "1d", "2d3h4m5.000006s", "400d"])
async def test_a_span_is_told_by_the_database_in_the_words_of_all_others(house: House, text: str) -> None:
    span = SPAN.replace("r.start_within", "%s::interval")
    assert await house.value(f"SELECT {span}", *[parse_duration(text)] * span.count("%s")) == text


async def _settles(house: House, wakes: Wakes, run_id: Any) -> None:
    wakes.send(RUNS)


async def _is_cancelled(house: House, wakes: Wakes, run_id: Any) -> None:
    async with house.db.transaction() as conn:
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)


async def _is_skipped_by_pausing(house: House, wakes: Wakes, run_id: Any) -> None:
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, "first")


async def _is_refused_when_claimed(house: House, wakes: Wakes, run_id: Any) -> None:
    run = await house.run(run_id)
    await house.execute("UPDATE grants SET revoked_at = now() WHERE id = %s", run["grant_id"])
    wakes.send(RUNS)


async def _is_lost_with_its_worker(house: House, wakes: Wakes, run_id: Any) -> None:
    await house.set_run(run_id, **run_state.lost())
    await Rescue(house.db, wakes).once()


async def _waits_too_long(house: House, wakes: Wakes, run_id: Any) -> None:
    await house.set_run(run_id, ready_at=from_now(days=-1))
    await Rescue(house.db, wakes).once()


@pytest.mark.parametrize(
    ("comes_to_end", "places"),
    [
        (_settles, 2), (_is_refused_when_claimed, 2), (_is_cancelled, 1), (_is_skipped_by_pausing, 1),
        (_is_lost_with_its_worker, 1), (_waits_too_long, 1),
    ],
)  # fmt: skip
async def test_what_an_after_trigger_replaces_is_stopped_at_once_whoever_ended_the_run_before(
    house: House, wakes: Wakes, shift: Any, run_now: Any, comes_to_end: Any, places: int
) -> None:
    """Nobody renews leases here, which would find it too."""
    await house.automation({"event": "go"}, name="First", max_rescues=0)
    ends = ["succeeded", "skipped", "cancelled", "failed"]
    second = await house.automation({"after": "first", "on": ends}, name="Second", overlap="replace")
    began = asyncio.Event()

    async def work(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.source == "run_now":
            began.set()
            await asyncio.Event().wait()
        return Succeeded("Done.")

    async with shift(work, places=places):
        replaced = await run_now(second)
        await began.wait()
        async with house.db.transaction() as conn:
            [first] = (await publish_event(conn, house.caller, "go", None, None)).values()
        await comes_to_end(house, wakes, first)
        run = await until(ended(house, replaced))
        assert (run["status"], run["error_class"]) == ("cancelled", "replaced")
        [after] = [each for each in await house.ledger() if each["source"] == "after"]
        assert (await until(ended(house, after["id"])))["status"] == "succeeded"


@pytest.mark.parametrize("capped", ["agents", "workspaces"])
async def test_waiting_for_an_agent_or_workspace_that_runs_as_many_as_it_may_is_not_being_stuck(
    house: House, db: Database, run_now: Any, wakes: Wakes, capped: str
) -> None:
    at_work, waiting = await run_now(await house.automation()), await run_now(await house.automation())
    await house.set_run(at_work, **run_state.running())
    await house.set_run(waiting, ready_at=from_now(minutes=-16))
    await house.execute(f"UPDATE {capped} SET max_concurrent = 1")
    await Rescue(db, wakes).once()
    assert (await _run(house, waiting))["status"] == "queued"
    await house.execute(f"UPDATE {capped} SET max_concurrent = 2")
    await Rescue(db, wakes).once()
    assert (await _run(house, waiting))["status"] == "queued"  # from now on only a place is missing
    await house.execute(f"UPDATE {capped} SET full_at = full_at - interval '16 minutes'")
    await Rescue(db, wakes).once()
    assert (await _run(house, waiting))["error_class"] == "stuck"


@pytest.mark.parametrize("capped", ["agents", "workspaces"])
@pytest.mark.parametrize(("cap", "status"), [(2, "queued"), (3, "failed")])
async def test_room_that_was_just_left_is_no_place_that_was_missing(
    house: House, db: Database, run_now: Any, wakes: Wakes, capped: str, cap: int, status: str
) -> None:
    """Two runs end in one pass, before any sweep or worker has seen the cap full, and before anybody claims the third."""
    lost = [await run_now(await house.automation(max_rescues=0)) for _ in range(2)]
    waiting = await run_now(await house.automation())
    await house.set_run(waiting, ready_at=from_now(minutes=-16))
    await house.set_runs({"id": lost}, **run_state.lost())
    await house.execute(f"UPDATE {capped} SET max_concurrent = %s", cap)
    if capped == "agents":
        await queue_by_agent(house)
    await Rescue(db, wakes).once()
    assert {(await _run(house, each))["error_class"] for each in lost} == {"stalled"}
    assert (await _run(house, waiting))["status"] == status


@pytest.mark.parametrize("capped", ["agents", "workspaces"])
async def test_a_worker_that_has_a_place_and_finds_the_cap_full_keeps_a_run_from_being_stuck(
    house: House, db: Database, run_now: Any, wakes: Wakes, capped: str
) -> None:
    """Between two sweeps, of which neither finds it full."""
    at_work, waiting = await run_now(await house.automation()), await run_now(await house.automation())
    await house.set_run(at_work, **run_state.running())
    await house.set_run(waiting, ready_at=from_now(minutes=-16))
    await house.execute(f"UPDATE {capped} SET max_concurrent = 1")
    if capped == "agents":
        await queue_by_agent(house)
    queues = Queues(["default"], ["command"])
    async with db.transaction() as conn:
        await queues.look(conn)
        assert await queues.to_read(conn, places=1) == []
    await house.set_run(at_work, status="succeeded", finished_at=from_now())
    await Rescue(db, wakes).once()
    assert (await _run(house, waiting))["status"] == "queued"


@pytest.mark.parametrize("capped", ["agents", "workspaces"])
async def test_what_waits_for_an_agent_or_workspace_that_runs_as_many_as_it_may_begins_when_one_ends(
    house: House, shift: Any, run_now: Any, capped: str
) -> None:
    """Not only when somebody looks everywhere again."""
    await house.execute(f"UPDATE {capped} SET max_concurrent = 1")
    for _ in range(3):
        await run_now(await house.automation())
    if capped == "agents":
        await queue_by_agent(house)
    async with shift(succeed, poll=3600.0):
        await until(lambda: house.has_runs(3, status="succeeded"))


async def test_a_run_whose_grant_was_revoked_while_it_waited_is_skipped_when_claimed(
    house: House, shift: Any, run_now: Any
) -> None:
    run_id = await run_now(await house.automation())
    await house.execute("UPDATE grants SET revoked_at = now()")
    async with shift(succeed) as at_work:
        run = await until(ended(house, run_id))
    assert (run["status"], run["skip_reason"]) == ("skipped", "grant_revoked")
    assert at_work.executor.assignments == []


async def test_a_worker_that_cannot_renew_stops_its_agents_before_the_lease_ends(
    house: House, db: Database, shift: Any, run_now: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, reserve = asyncio.Event(), db.reserve
    lines: list[Connection] = []

    async def reserve_and_tell() -> Connection:
        lines.append(await reserve())
        return lines[-1]

    async def watched(assignment: Assignment, desk: Desk) -> Outcome:
        try:
            return await forever(assignment, desk)
        finally:
            stopped.set()

    run_id = await run_now(await house.automation())
    async with shift(watched, lease=3.0) as at_work:
        await until(status_is(house, run_id, "running"))
        monkeypatch.setattr(db, "reserve", reserve_and_tell)
        await at_work.lease.once()
        monkeypatch.setattr(db, "reserve", _no_connection)
        [line] = lines
        await line.close()

        async def renew_until_stopped() -> bool:
            await at_work.lease.once()
            return stopped.is_set()

        await until(renew_until_stopped, within=4)
        run = await house.run(run_id)
        assert await house.value("SELECT %s > clock_timestamp()", run["lease_until"])


async def _no_connection() -> Any:
    raise psycopg.OperationalError("the network is gone")


async def test_one_row_that_cannot_be_read_fails_itself_and_the_others_go_on(
    house: House, shift: Any, run_now: Any
) -> None:
    ids = [await run_now(await house.automation()) for _ in range(3)]
    async with house.db.connection() as conn:
        await run_state.make_unreadable(conn, ids[1])
    async with shift(succeed, places=3):
        ends = [await until(partial(_end_of, house, run_id)) for run_id in ids]
    assert [end["status"] for end in ends] == ["succeeded", "failed", "succeeded"]
    assert ends[1]["error_class"] == "executor_error"
    assert ends[1]["error_detail"].startswith("What is stored of this run cannot be read: ")


async def _end_of(house: House, run_id: Any) -> run_state.Run | None:
    """How a run ended, also if the rest of its row cannot be read."""
    async with house.db.connection() as conn:
        columns = ("status", "error_class", "error_detail")
        ended = await run_state.find_columns(conn, *columns, id=run_id, finished_at=PRESENT)
    return ended[0] if ended else None


async def test_a_heartbeat_tells_the_runs_in_a_workers_hands_and_their_last_line_to_their_workspace_only(
    house: House, shift: Any, run_now: Any
) -> None:
    async def speak(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.say("One.\nTwo.\n")
        return await forever(assignment, desk)

    async def fleet(workspace_id: Any) -> Any:
        async with house.db.connection() as conn:
            return await workers.all_of(conn, workspace_id, dead_after=timedelta(seconds=30))

    async with shift(speak, places=2) as at_work:
        await at_work.lease.once()
        assert [(each["status"], each["runs"]) for each in await fleet(house.caller.workspace_id)] == [("idle", [])]
        run_id = await run_now(await house.automation())
        await until(lambda: house.value("SELECT count(*) FROM events WHERE kind = 'output'"))
        await at_work.lease.once()
        [mine], [theirs] = await fleet(house.caller.workspace_id), await fleet(new_id())
        assert mine["status"] == "alive"
        assert mine["runs"] == [{"run_id": str(run_id), "attempt": 1, "last_line": "Two."}]
        assert theirs["runs"] == []
        await run_now(await house.automation())
        await until(lambda: house.has_runs(2, status="running"))
        await at_work.lease.once()
        assert [each["status"] for each in await fleet(house.caller.workspace_id)] == ["busy"]
        await house.execute("UPDATE workers SET last_seen_at = now() - interval '31 seconds'")
        assert [each["status"] for each in await fleet(house.caller.workspace_id)] == ["dead"]
        await house.execute("DELETE FROM workers")  # pruned while it slept: the next beat makes it known again
        await at_work.lease.once()
        assert [each["status"] for each in await fleet(house.caller.workspace_id)] == ["busy"]
