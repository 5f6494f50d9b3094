"""Questions to people: parked or waiting in their process, answered once, and gone on from the checkpoint."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from house import House
from waiting import until

from rota.db import approvals as rows
from rota.db.listener import ANSWERS, RUNS, Wakes
from rota.db.pool import Database
from rota.errors import Conflict, Lost
from rota.model.approval import Answer, Option
from rota.model.executor import LARGEST_CHECKPOINT, Assignment, Desk
from rota.model.outcome import Outcome, Parked, Succeeded
from rota.sessions import approvals

STATUS = "SELECT status FROM runs ORDER BY id DESC LIMIT 1"


async def is_(house: House, status: str) -> bool:
    return bool(await house.value(STATUS) == status)


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
        assert await house.value("SELECT lease_until IS NULL AND attempt_token_hash IS NULL FROM runs")
        await until(lambda: _free(at_work))
        approval_id = await answer("refuse", text="Not today.")
        await until(lambda: is_(house, "succeeded"))
    [run] = await house.ledger()
    assert (run["summary"], run["attempt"], run["tries"], run["rescues"]) == ("refuse: Not today.", 2, 0, 0)
    given = at_work.executor.assignments[1].answer
    assert given == Answer(approval_id, "refuse", False, "Not today.", house.caller.user_id)  # type: ignore[arg-type]


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
        before = await house.value("SELECT lease_until FROM runs")
        await at_work.lease.once()
        assert await house.value("SELECT lease_until FROM runs") > before
        assert at_work.worker.busy == 1
        await answer("red")
        await until(lambda: is_(house, "succeeded"))
    [run] = await house.ledger()
    assert (run["summary"], run["attempt"]) == ("red", 1)


async def test_a_checkpoint_of_an_attempt_that_lost_its_lease_is_refused(
    house: House, shift: Any, run_now: Any
) -> None:
    told: list[BaseException] = []

    async def zombie(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.checkpoint(b"mine")
        await house.execute("UPDATE runs SET attempt = attempt + 1")
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
            await approvals.answer(conn, house.caller, approval_id, "refuse")  # type: ignore[arg-type]
    assert refusal.value.code == "already_answered"
    assert refusal.value.facts["answered_by"] == str(house.caller.user_id)


async def test_a_checkpoint_that_is_too_large_is_refused(house: House, shift: Any, run_now: Any) -> None:
    async def hoards(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.checkpoint(b"x" * (LARGEST_CHECKPOINT + 1))
        return Succeeded()

    await run_now(await house.automation())
    async with shift(hoards):
        await until(lambda: is_(house, "failed"))
    assert "too large" in (await house.ledger())[0]["error_detail"]


async def test_waiting_is_not_running_time(house: House, db: Database, shift: Any, run_now: Any, answer: Any) -> None:
    """An hour of waiting, by the table's clock, in an attempt that may run for one second."""
    waited = asyncio.Event()

    async def waits(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.ask("Go on?")
        waited.set()
        await asyncio.sleep(60)
        return Succeeded()

    await run_now(await house.automation(timeout=timedelta(seconds=1)))
    async with shift(waits) as at_work:
        await until(lambda: is_(house, "awaiting_approval"))
        [attempt] = at_work.worker.attempts.values()
        attempt._started -= 3600
        await house.execute("UPDATE approvals SET asked_at = asked_at - interval '1 hour'")
        attempt._time_is_up(timedelta(seconds=1))
        await until(lambda: asyncio.sleep(0, isinstance(attempt._clock, asyncio.TimerHandle)))
        assert await is_(house, "awaiting_approval")
        await answer()
        await waited.wait()
        await until(lambda: is_(house, "failed"))
    assert (await house.ledger())[0]["error_class"] == "timeout"
    async with db.connection() as conn:
        run = (await house.ledger())[0]
        assert await rows.waited(conn, house.caller.workspace_id, run["id"], 1) >= timedelta(hours=1)
