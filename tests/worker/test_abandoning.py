"""What a lost attempt left outside is cleaned up: before the next attempt, or after the end, at least once."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from rota.db import abandonments
from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome, Succeeded
from rota.runs import cancelling
from rota.watch.rescue import Rescue
from rota.worker.abandoning import Abandon
from support import run_state
from support.house import House
from support.run_state import from_now
from support.waiting import until


class Outside:
    """An executor with a thing outside for every attempt: `execute` puts it there, `abandon` takes it away."""

    kind = "command"
    resumes = False

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.abandoned: list[LostAttempt] = []

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        raise AssertionError("nothing is executed here")

    async def abandon(self, lost: LostAttempt) -> None:
        self.abandoned.append(lost)
        if len(self.abandoned) <= self.failures:
            raise ConnectionError("the cluster does not answer")


def keeper(db: Database, executor: Outside, *pools: str) -> Abandon:
    return Abandon(db, {"command": executor}, pools=pools or ("default",), every=timedelta(seconds=5))


async def lose(house: House, db: Database, wakes: Wakes) -> None:
    """Begin the next attempt of each run and lose it."""
    for run in await house.runs():
        started_at = run["started_at"] or from_now()
        await house.set_run(run["id"], **run_state.lost(attempt=run["attempt"] + 1, started_at=started_at))
    await Rescue(db, wakes).once()


class Noting:
    """An agent that works until it is stopped, and notes whether its run goes on."""

    def __init__(self) -> None:
        self.begun, self.stopped = asyncio.Event(), asyncio.Event()
        self.handed_on: list[bool] = []

    async def __call__(self, assignment: Assignment, desk: Desk) -> Outcome:
        self.begun.set()
        try:
            return await asyncio.Future()
        finally:
            self.handed_on.append(desk.handed_on)
            self.stopped.set()


async def left(house: House) -> int:
    count: int = await house.value("SELECT count(*) FROM abandonments")
    return count


async def test_a_run_that_rescue_ended_is_cleaned_up_after_with_all_that_an_executor_needs(
    house: House, db: Database, wakes: Wakes, run_now: Any
) -> None:
    run_id = await run_now(await house.automation(max_rescues=0))
    await lose(house, db, wakes)
    run = await house.run()
    assert run["error_class"] == "stalled"
    outside = Outside()
    await keeper(db, outside).once()
    [lost] = outside.abandoned
    assert (lost.workspace_id, lost.run_id, lost.session_id) == (house.caller.workspace_id, run_id, run["session_id"])
    assert (lost.attempt, lost.config, lost.ended) == (1, {"argv": ["true"]}, True)
    assert lost.idempotency_key == str(run_id)
    assert await left(house) == 0


async def test_a_run_that_was_handed_back_and_then_cancelled_is_cleaned_up_after(
    house: House, db: Database, wakes: Wakes, run_now: Any, shift: Any
) -> None:
    """Its agent may have been left to an attempt that never came."""
    run_id, agent = await run_now(await house.automation()), Noting()
    async with shift(agent):
        await agent.begun.wait()
    assert agent.handed_on == [True]
    outside = Outside()
    await keeper(db, outside).once()
    assert outside.abandoned == []  # it goes on
    async with db.transaction() as conn:
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)
    await keeper(db, outside).once()
    assert [(lost.attempt, lost.ended) for lost in outside.abandoned] == [(1, True)]


async def test_a_cancelled_run_is_not_handed_on(house: House, db: Database, run_now: Any, shift: Any) -> None:
    run_id, agent = await run_now(await house.automation()), Noting()
    async with shift(agent) as at_work:
        await agent.begun.wait()
        at_work.worker.cancel(str(run_id))
        await agent.stopped.wait()
    assert agent.handed_on == [False]


async def test_a_run_that_goes_on_is_cleaned_up_after_by_its_next_worker_before_it_begins(
    house: House, db: Database, wakes: Wakes, run_now: Any, shift: Any
) -> None:
    order: list[str] = []

    async def succeed(assignment: Assignment, desk: Desk) -> Outcome:
        order.append(f"execute {assignment.attempt}")
        return Succeeded()

    async def abandon(lost: LostAttempt) -> None:
        order.append(f"abandon {lost.attempt} {lost.ended}")

    await run_now(await house.automation(max_rescues=2))
    for _ in range(2):
        await lose(house, db, wakes)
    await keeper(db, untouched := Outside()).once()
    assert untouched.abandoned == []  # only its next attempt may: nobody else knows when that begins
    async with shift(succeed, abandon=abandon):
        await until(lambda: house.runs(status="succeeded"))
    assert order == ["abandon 1 False", "abandon 2 False", "execute 3"]
    assert await left(house) == 0


async def test_cleaning_up_that_failed_is_tried_again_and_not_at_once(
    house: House, db: Database, wakes: Wakes, run_now: Any
) -> None:
    await run_now(await house.automation(max_rescues=0))
    await lose(house, db, wakes)
    outside = Outside(failures=1)
    for _ in range(2):
        await keeper(db, outside).once()
    assert (len(outside.abandoned), await left(house)) == (1, 1)
    await house.execute("UPDATE abandonments SET due_at = now()")
    await keeper(db, outside).once()
    assert (len(outside.abandoned), await left(house)) == (2, 0)


async def test_a_worker_cleans_up_only_for_the_kinds_and_pools_it_serves(
    house: House, db: Database, wakes: Wakes, run_now: Any
) -> None:
    await run_now(await house.automation(max_rescues=0))
    await lose(house, db, wakes)
    elsewhere = Outside()
    await keeper(db, elsewhere, "gpu").once()
    await Abandon(db, {"http": elsewhere}, pools=["default"], every=timedelta(seconds=5)).once()
    assert (elsewhere.abandoned, await left(house)) == ([], 1)


async def test_two_workers_do_not_clean_up_the_same_at_the_same_time(
    house: House, db: Database, wakes: Wakes, run_now: Any
) -> None:
    """Provoked: the first has taken it but not committed. The second takes nothing, and waits for nobody."""
    await run_now(await house.automation(max_rescues=0))
    await lose(house, db, wakes)
    outside = Outside()
    async with db.transaction() as conn:
        taken = await abandonments.take(
            conn, kinds=["command"], pools=["default"], patience=timedelta(minutes=1), limit=10
        )
        assert len(taken) == 1
        async with asyncio.timeout(10):
            await keeper(db, outside).once()
    await keeper(db, outside).once()
    assert outside.abandoned == []


async def test_a_run_cancelled_while_it_waits_for_an_answer_ends_at_once_and_is_cleaned_up_after(
    house: House, db: Database, run_now: Any
) -> None:
    run_id = await run_now(await house.automation())
    await house.set_run(**run_state.running(status="awaiting_approval", lease_until=None))
    async with db.transaction() as conn:
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("cancelled", "cancelled_by_user")
    outside = Outside()
    await keeper(db, outside).once()
    assert [lost.attempt for lost in outside.abandoned] == [1]


async def test_a_run_that_waits_for_an_answer_in_its_workers_hands_is_left_to_its_worker(
    house: House, db: Database, run_now: Any
) -> None:
    run_id = await run_now(await house.automation())
    await house.set_run(**run_state.running(status="awaiting_approval"))
    async with db.transaction() as conn:
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)
    run = await house.run()
    assert run["status"] == "awaiting_approval"
    assert run["cancel_requested_at"]


class Silent(Outside):
    """Where nobody answers."""

    async def abandon(self, lost: LostAttempt) -> None:
        self.abandoned.append(lost)
        await asyncio.Event().wait()


async def test_nobody_who_leaves_waits_for_those_who_do_not_answer_and_all_are_asked_at_once(
    house: House, db: Database, wakes: Wakes, run_now: Any
) -> None:
    executor = Silent()
    cleaning = keeper(db, executor)
    for _ in range(3):
        await run_now(await house.automation(max_rescues=0))
    await lose(house, db, wakes)
    passing = asyncio.create_task(cleaning.once())
    await until(_asked(executor, 3))
    cleaning.leave()
    async with asyncio.timeout(10):
        await passing
    assert await house.value("SELECT count(*) FROM abandonments") == 3


@pytest.mark.parametrize("then", ["queued", "cancelled"])
async def test_a_run_is_handed_back_or_cancelled_also_while_nobody_answers_who_cleans_up_before_it(
    house: House, db: Database, wakes: Wakes, run_now: Any, shift: Any, then: str
) -> None:
    asked = asyncio.Event()

    async def wait(lost: LostAttempt) -> None:
        asked.set()
        await asyncio.Event().wait()

    run_id = await run_now(await house.automation())
    await lose(house, db, wakes)
    async with asyncio.timeout(60), shift(Noting(), abandon=wait, last_outcomes=timedelta(hours=1)):
        await asked.wait()
        if then == "cancelled":
            async with db.transaction() as conn:
                await cancelling.cancel(conn, house.caller.workspace_id, run_id)
            await until(house.ended)
    [run] = await house.ledger()
    assert (run["status"], run["rescues"], run["attempt"]) == (then, 1, 2)
    assert await left(house) == 1 + (then == "queued")


def _asked(executor: Outside, times: int) -> Any:
    async def check() -> bool:
        return len(executor.abandoned) == times

    return check
