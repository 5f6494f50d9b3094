"""Questions to people: parked or waiting in their process, answered once, and gone on from the checkpoint."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rota import tracing
from rota.db import approvals as rows
from rota.db import queues
from rota.db.listener import ANSWERS, RUNS, Wakes
from rota.db.pool import Database
from rota.errors import Conflict, Invalid, Lost, TooLarge
from rota.model.approval import Answer, Option
from rota.model.executor import LARGEST_CHECKPOINT, Assignment, Desk
from rota.model.outcome import ErrorClass, Failed, Outcome, Parked, Succeeded
from rota.runs import cancelling
from rota.sessions import approvals
from rota.watch.rescue import Rescue
from support import run_state
from support.house import House
from support.run_state import from_now
from support.waiting import until


async def is_(house: House, status: str) -> bool:
    """Whether the newest run has this status."""
    return bool((await house.runs())[-1]["status"] == status)


@pytest.fixture
def answer(house: House, wakes: Wakes) -> Any:
    """Answer the one pending question."""

    async def give(given: str = "approve", text: str | None = None) -> UUID:
        approval_id = await until(lambda: house.value("SELECT id FROM approvals WHERE status = 'pending'"))
        async with house.db.transaction() as conn:
            await approvals.answer(conn, house.caller, approval_id, given, text=text)
        wakes.send(ANSWERS, [approval_id])
        wakes.send(RUNS, [house.caller.workspace_id])
        return UUID(str(approval_id))

    return give


async def parks(assignment: Assignment, desk: Desk) -> Outcome:
    """Asks once, and succeeds with what it was told."""
    if assignment.answer is None:
        await desk.checkpoint(b"halfway")
        asked = await desk.park("Send it?", key="send")
        if isinstance(asked, Parked):
            return asked
        return Succeeded(f"{asked.option_id} at once")
    assert assignment.checkpoint == b"halfway"
    return Succeeded(f"{assignment.answer.option_id}: {assignment.answer.text}")


async def test_a_parked_run_frees_its_place_and_goes_on_from_its_checkpoint_with_the_answer(
    house: House, shift: Any, run_now: Any, answer: Any
) -> None:
    await run_now(await house.automation())
    async with shift(parks, places=1) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        run = await house.run()
        assert (run["lease_until"], run["attempt_token_hash"]) == (None, None)
        await until(lambda: _free(at_work))
        approval_id = await answer("refuse", text="Not today.")
        await until(lambda: is_(house, "succeeded"))
    [run] = await house.ledger()
    assert (run["summary"], run["attempt"], run["tries"], run["rescues"]) == ("refuse: Not today.", 2, 0, 0)
    given = at_work.executor.assignments[1].answer
    assert given == Answer(approval_id, "refuse", False, "Not today.", house.caller.user_id)


async def test_the_span_of_a_parked_run_holds_those_of_all_its_attempts(
    house: House, shift: Any, run_now: Any, answer: Any
) -> None:
    exporter = InMemorySpanExporter()
    tracing.send_to(SimpleSpanProcessor(exporter))
    try:
        await run_now(await house.automation())
        async with shift(parks):
            await until(lambda: _is_parked(house))
            await answer()
            await until(lambda: is_(house, "succeeded"))
        spans = exporter.get_finished_spans()
    finally:
        tracing.shut_down()
    [whole] = [span for span in spans if span.name == "run"]
    parts = [span for span in spans if span.name in ("claim", "execute", "settle")]
    assert [(span.attributes or {})["rota.attempt"] for span in parts if span.name == "execute"] == [1, 2]
    assert (whole.start_time or 0) <= min(span.start_time or 0 for span in parts)
    assert (whole.end_time or 0) >= max(span.end_time or 0 for span in parts)


async def _is_parked(house: House) -> bool:
    return bool(await house.value("SELECT status = 'awaiting_approval' AND lease_until IS NULL FROM runs"))


async def _free(at_work: Any) -> bool:
    return not at_work.worker.attempts


async def test_an_agent_that_waits_in_its_process_keeps_place_and_lease_and_goes_on_in_the_same_attempt(
    house: House, shift: Any, run_now: Any, answer: Any
) -> None:
    async def waits(assignment: Assignment, desk: Desk) -> Outcome:
        given = await desk.ask("Which colour?", options=[Option("red", "Red", True), Option("none", "None", False)])
        return Succeeded(given.option_id)

    await run_now(await house.automation())
    async with shift(waits, places=1) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        before = (await house.run())["lease_until"]
        await at_work.lease.once()
        assert (await house.run())["lease_until"] > before
        assert at_work.worker.busy == 1
        await answer("red")
        await until(lambda: is_(house, "succeeded"))
    [run] = await house.ledger()
    assert (run["summary"], run["attempt"]) == ("red", 1)


async def test_an_agent_that_waited_in_its_process_can_be_parked_and_goes_on_with_the_answer(
    house: House, shift: Any, run_now: Any, answer: Any
) -> None:
    """It is still one question. Until it is parked it keeps place and lease."""
    enough = asyncio.Event()

    async def waits_and_parks(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.answer:
            return Succeeded(assignment.answer.option_id)
        asking = asyncio.create_task(desk.ask("Send it?", key="send"))
        await enough.wait()
        asked = await desk.park("Send it?", key="send")
        asking.cancel()
        assert isinstance(asked, Parked)
        return asked

    await run_now(await house.automation())
    async with shift(waits_and_parks, places=1) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        assert await house.value("SELECT lease_until IS NOT NULL FROM runs")
        enough.set()
        await until(lambda: _free(at_work))
        assert await house.value("SELECT status = 'awaiting_approval' AND lease_until IS NULL FROM runs")
        assert await house.value("SELECT count(*) FROM approvals") == 1
        await answer()
        await until(lambda: is_(house, "succeeded"))
    [run] = await house.ledger()
    assert (run["summary"], run["attempt"], run["tries"], run["rescues"]) == ("approve", 2, 0, 0)


async def test_once_a_checkpoint_is_stored_so_is_all_that_led_to_it(house: House, shift: Any, run_now: Any) -> None:
    """Who goes on from it repeats nothing, so nothing else would ever tell of it or charge for it."""
    found: list[Any] = []

    async def works(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.tool("send", {"to": "all"})
        await desk.usage("tokens", 7)
        await desk.checkpoint(b"sent")
        found.append(await house.value("SELECT data ->> 'name' FROM events WHERE kind = 'tool'"))
        found.append(await house.value("SELECT amount FROM usage WHERE unit = 'tokens'"))
        return Succeeded()

    await run_now(await house.automation())
    async with shift(works, places=1):
        await until(lambda: is_(house, "succeeded"))
    assert found == ["send", 7]


async def test_a_checkpoint_of_an_attempt_that_lost_its_lease_is_refused(
    house: House, shift: Any, run_now: Any
) -> None:
    told: list[BaseException] = []

    async def zombie(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.checkpoint(b"mine")
        await house.set_run(attempt=2)
        for act in (desk.checkpoint(b"ghost"), desk.park("Still there?")):
            with pytest.raises(Lost) as refusal:
                await act
            told.append(refusal.value)
        raise refusal.value

    await run_now(await house.automation())
    async with shift(zombie):
        await until(lambda: asyncio.sleep(0, len(told) == 2))
    assert await house.value("SELECT data FROM checkpoints") == b"mine"
    assert not await house.value("SELECT count(*) FROM approvals")


async def test_the_same_key_in_the_same_run_is_the_same_question(
    house: House, shift: Any, run_now: Any, answer: Any
) -> None:
    seen: list[Any] = []

    async def asks(assignment: Assignment, desk: Desk) -> Outcome:
        asked = await desk.park("Send it?", key="send")
        seen.append(asked)
        return asked if isinstance(asked, Parked) else Succeeded()

    await run_now(await house.automation())
    async with shift(asks):
        await answer()
        await until(lambda: is_(house, "succeeded"))
    assert seen[0].approval_id == seen[1].approval_id
    assert await house.value("SELECT count(*) FROM approvals") == 1


async def test_a_second_answer_is_refused_and_told_who_was_first(
    house: House, db: Database, shift: Any, run_now: Any, answer: Any
) -> None:
    await run_now(await house.automation())
    async with shift(parks):
        approval_id = await answer()
        await until(lambda: is_(house, "succeeded"))
    with pytest.raises(Conflict) as refusal:
        async with db.transaction() as conn:
            await approvals.answer(conn, house.caller, approval_id, "refuse")
    assert refusal.value.code == "already_answered"
    assert refusal.value.facts["answered_by"] == str(house.caller.user_id)


async def test_a_checkpoint_that_is_too_large_is_refused(house: House, shift: Any, run_now: Any) -> None:
    codes: list[str] = []

    async def hoards(assignment: Assignment, desk: Desk) -> Outcome:
        with pytest.raises(TooLarge) as refused:
            await desk.checkpoint(b"x" * (LARGEST_CHECKPOINT + 1))
        codes.append(refused.value.code)
        raise refused.value

    await run_now(await house.automation())
    async with shift(hoards):
        await until(lambda: is_(house, "failed"))
    assert codes == ["too_large"]
    assert (await house.run())["error_class"] == "executor_error"


async def test_waiting_is_not_running_time(house: House, db: Database, shift: Any, run_now: Any, answer: Any) -> None:
    """An hour of waiting, by the table's clock, in an attempt that may run for a minute."""
    waited = asyncio.Event()

    async def waits(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.ask("Go on?")
        waited.set()
        await asyncio.Event().wait()
        return Succeeded()

    await run_now(await house.automation(timeout=timedelta(minutes=1)))
    async with shift(waits) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        [attempt] = at_work.worker.attempts.values()
        attempt._started -= 3600
        await house.execute("UPDATE approvals SET asked_at = asked_at - interval '1 hour'")
        attempt.time_is_up()
        await until(lambda: asyncio.sleep(0, attempt._looking is not None and attempt._looking.done()))
        assert await is_(house, "awaiting_approval")
        await answer()
        await waited.wait()
        attempt._started -= 59.9  # so its time is soon up, or already is
        attempt.time_is_up()
        await until(lambda: is_(house, "failed"))
    assert (await house.ledger())[0]["error_class"] == "timeout"
    async with db.connection() as conn:
        run = (await house.ledger())[0]
        assert await rows.waited(conn, house.caller.workspace_id, run["id"], 1) >= timedelta(hours=1)


# On the way to being parked ------------------------------------------------------------------------------------------


async def test_an_answer_that_comes_before_the_run_is_parked_is_not_lost(
    house: House, shift: Any, run_now: Any, answer: Any
) -> None:
    async def slow(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.answer:
            return Succeeded(assignment.answer.option_id)
        asked = await desk.park("Send it?")
        assert isinstance(asked, Parked)
        await answer()
        assert await is_(house, "running")
        return asked

    await run_now(await house.automation())
    async with shift(slow):
        await until(lambda: is_(house, "succeeded"))
    [run] = await house.ledger()
    assert (run["summary"], run["attempt"]) == ("approve", 2)


async def test_a_run_that_was_asked_to_stop_is_not_parked_but_cancelled(house: House, shift: Any, run_now: Any) -> None:
    async def stubborn(assignment: Assignment, desk: Desk) -> Outcome:
        asked = await desk.park("Send it?")
        assert isinstance(asked, Parked)
        await house.set_run(**run_state.cancel_requested())
        return asked

    await run_now(await house.automation())
    async with shift(stubborn):
        await until(lambda: is_(house, "cancelled"))
    assert (await house.ledger())[0]["error_class"] == "cancelled_by_user"


async def test_a_kind_that_cannot_resume_cannot_be_parked(house: House, shift: Any, run_now: Any) -> None:
    await run_now(await house.automation())
    async with shift(parks) as at_work:
        at_work.executor.resumes = False
        await until(lambda: is_(house, "failed"))
    run = await house.run()
    assert run["error_class"] == "executor_error"
    assert "cannot resume" in run["error_detail"]


# While it waits ------------------------------------------------------------------------------------------------------


async def test_a_parked_run_keeps_its_lane_and_goes_on_before_everybody_else(
    house: House, shift: Any, run_now: Any, answer: Any
) -> None:
    first, other = await house.automation(), await house.automation(name="Other")
    order: list[Any] = []

    async def notes(assignment: Assignment, desk: Desk) -> Outcome:
        order.append(assignment.automation_id)
        return await parks(assignment, desk) if assignment.automation_id == first else Succeeded()

    await run_now(first)
    async with shift(notes, places=1):
        await until(lambda: is_(house, "awaiting_approval"))
    await run_now(first)
    assert await house.has_runs(1, status="queued", ready_at=None)
    await run_now(other)
    await house.set_runs({"automation_id": other}, priority=0)
    await answer()
    async with shift(notes, places=1):
        await until(lambda: _all_over(house))
    assert order == [first, first, other, first]


async def _all_over(house: House) -> bool:
    return await house.has_runs(0, finished_at=None, status=["queued", "running"])


async def test_an_agent_that_waits_in_its_process_is_cancelled_through_its_worker(
    house: House, db: Database, wakes: Wakes, shift: Any, run_now: Any
) -> None:
    stopped = asyncio.Event()

    async def waits(assignment: Assignment, desk: Desk) -> Outcome:
        try:
            await desk.ask("Send it?")
        finally:
            stopped.set()
        return Succeeded()

    run_id = await run_now(await house.automation())
    async with shift(waits):
        await until(lambda: is_(house, "awaiting_approval"))
        async with db.transaction() as conn:
            await cancelling.cancel(conn, house.caller.workspace_id, run_id)
        await stopped.wait()
        await until(lambda: is_(house, "cancelled"))


async def test_a_question_that_expires_fails_the_run_and_stops_who_waits(
    house: House, db: Database, wakes: Wakes, shift: Any, run_now: Any
) -> None:
    stopped = asyncio.Event()

    async def waits(assignment: Assignment, desk: Desk) -> Outcome:
        try:
            await desk.ask("Send it?")
        finally:
            stopped.set()
        return Succeeded()

    await run_now(await house.automation())
    async with shift(waits) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        await Rescue(db, wakes).once()
        assert await is_(house, "awaiting_approval")
        await house.execute("UPDATE approvals SET expires_at = now()")
        await Rescue(db, wakes).once()
        await stopped.wait()
        await until(lambda: _free(at_work))
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("failed", "approval_expired")
    assert await house.value("SELECT status FROM approvals") == "expired"


async def test_a_question_of_a_rescued_run_that_expires_meanwhile_is_asked_anew(
    house: House, db: Database, wakes: Wakes, shift: Any, run_now: Any, answer: Any
) -> None:
    """It is closed although its run does not wait for it, and never waits for it again."""
    await run_now(await house.automation())
    async with shift(parks):
        await until(lambda: is_(house, "awaiting_approval"))
    await house.set_run(status="queued", ready_at=from_now(hours=1))
    await house.execute("UPDATE approvals SET expires_at = now()")
    await Rescue(db, wakes).once()
    assert await house.value("SELECT status FROM approvals") == "expired"
    await house.set_run(ready_at=from_now())
    async with shift(parks):
        await answer()
        await until(lambda: is_(house, "succeeded"))
    assert await house.value("SELECT count(*) FROM approvals") == 2


async def test_a_run_whose_worker_was_lost_while_it_waited_is_rescued_and_takes_over_its_question(
    house: House, db: Database, wakes: Wakes, shift: Any, run_now: Any, answer: Any
) -> None:
    async def waits(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded((await desk.ask("Send it?")).option_id)

    await run_now(await house.automation())
    async with shift(waits) as lost:
        await until(lambda: is_(house, "awaiting_approval"))
        await house.set_run(lease_until=from_now())
        lost.worker.drop_all()
        await until(lambda: _free(lost))
    await Rescue(db, wakes).once()
    async with shift(waits):
        await until(lambda: is_(house, "awaiting_approval"))
        await answer()
        await until(lambda: is_(house, "succeeded"))
    [run] = await house.ledger()
    assert (run["attempt"], run["rescues"]) == (2, 1)
    assert await house.value("SELECT count(*) FROM approvals") == 1


async def test_who_waits_in_a_process_counts_towards_the_cap_of_its_agent_and_who_is_parked_does_not(
    house: House, db: Database, shift: Any, run_now: Any
) -> None:
    async def either(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.prompt == "Wait.":
            return Succeeded((await desk.ask("Send it?")).option_id)
        asked = await desk.park("Send it?")
        assert isinstance(asked, Parked)
        return asked

    await run_now(await house.automation(name="Waits", prompt="Wait."))
    await run_now(await house.automation(name="Parks", prompt="Park."))
    async with shift(either):
        await until(lambda: house.has_runs(2, status="awaiting_approval"))
        async with db.connection() as conn:
            busy = await queues.running(conn, [house.caller.workspace_id])
    assert busy[house.caller.workspace_id] == 1


# Answers -------------------------------------------------------------------------------------------------------------


async def test_of_two_answers_at_the_same_moment_one_holds(
    house: House, db: Database, shift: Any, run_now: Any
) -> None:
    """Provoked: the run is held while both are on their way."""
    await run_now(await house.automation())
    async with shift(parks):
        await until(lambda: is_(house, "awaiting_approval"))
    approval_id = await house.value("SELECT id FROM approvals")

    async def give(given: str) -> str:
        async with db.transaction() as conn:
            return (await approvals.answer(conn, house.caller, approval_id, given)).status

    async with house.locked_runs():
        both = [asyncio.create_task(give(each)) for each in ("approve", "refuse")]
        waits = (
            "SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        await until(lambda: house.value(waits))
    told = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(each).__name__ for each in told) == ["Conflict", "str"]
    assert await house.value("SELECT count(*) FROM events WHERE kind = 'approval' AND data ? 'answered_by'") == 1


async def test_an_answer_belongs_to_the_question_that_was_shown(house: House, shift: Any, run_now: Any) -> None:
    async def cheats(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.park("Send it to Ann?", key="send")
        with pytest.raises(Invalid) as refusal:
            await desk.park("Send it to everybody?", key="send")
        return Succeeded(refusal.value.code)

    await run_now(await house.automation())
    async with shift(cheats):
        await until(lambda: is_(house, "succeeded"))
    assert (await house.ledger())[0]["summary"] == "approval_key_reused"


async def test_a_run_goes_on_when_its_last_question_is_answered(
    house: House, db: Database, wakes: Wakes, shift: Any, run_now: Any
) -> None:
    async def asks_twice(assignment: Assignment, desk: Desk) -> Outcome:
        both = await asyncio.gather(desk.ask("One?"), desk.ask("Two?"))
        return Succeeded(" ".join(each.option_id for each in both))

    await run_now(await house.automation())
    async with shift(asks_twice):
        await until(lambda: house.value("SELECT count(*) = 2 FROM approvals"))
        for given, status in (("approve", "awaiting_approval"), ("refuse", "running")):
            approval_id = await house.value(
                "SELECT id FROM approvals WHERE status = 'pending' ORDER BY question LIMIT 1"
            )
            async with db.transaction() as conn:
                await approvals.answer(conn, house.caller, approval_id, given)
                run = await run_state.find_run(conn)
            assert run["status"] == status
            wakes.send(ANSWERS, [approval_id])
        await until(lambda: is_(house, "succeeded"))
    assert (await house.ledger())[0]["summary"] == "approve refuse"


# What is carried on --------------------------------------------------------------------------------------------------


async def test_an_attempt_that_goes_on_has_what_the_parked_one_left_of_its_time_and_a_new_try_all_of_it(
    house: House, wakes: Wakes, shift: Any, run_now: Any, answer: Any
) -> None:
    async def fails_once(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.attempt == 2:
            return Failed(ErrorClass.AGENT_ERROR, "Stumbled.")
        return await parks(assignment, desk) if assignment.attempt == 1 else Succeeded()

    await run_now(await house.automation(timeout=timedelta(minutes=10), max_attempts=2))
    async with shift(fails_once) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        assert await house.value("SELECT ran < interval '1 minute' FROM approvals")
        await house.execute("UPDATE approvals SET ran = interval '9 minutes'")
        await answer()
        await until(lambda: house.runs(tries=1))
        await house.set_run(ready_at=from_now())
        wakes.send(RUNS)
        await until(lambda: is_(house, "succeeded"))
    left = [each.timeout for each in at_work.executor.assignments]
    assert left == [timedelta(minutes=10), timedelta(minutes=1), timedelta(minutes=10)]


async def test_an_answer_is_given_until_the_agent_has_stored_what_it_made_of_it(
    house: House, wakes: Wakes, shift: Any, run_now: Any, answer: Any
) -> None:
    async def stumbles(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.attempt == 1:
            return await parks(assignment, desk)
        if assignment.attempt == 3:
            await desk.checkpoint(b"sent")
        return Succeeded() if assignment.attempt == 4 else Failed(ErrorClass.AGENT_ERROR, "Stumbled.")

    await run_now(await house.automation(max_attempts=4))
    async with shift(stumbles) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        await answer()
        for tries in (1, 2):
            await until(partial(house.runs, tries=tries))
            await house.set_run(ready_at=from_now())
            wakes.send(RUNS)
        await until(lambda: is_(house, "succeeded"))
    given = [(each.checkpoint, each.answer is not None) for each in at_work.executor.assignments]
    assert given == [(None, False), (b"halfway", True), (b"halfway", True), (b"sent", False)]
