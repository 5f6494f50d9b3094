"""Each fence by itself: what is refused although nobody else has taken the run yet, and who may not end unseen."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from house import House
from waiting import until

from rota.db import attempts, events
from rota.db.pool import Connection, Database
from rota.model.ids import WorkerId
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from rota.model.run import Claimed
from rota.roster import automations
from rota.runs import cancelling, claiming, settling
from rota.runs.settling import Result
from rota.scheduler.inbound import publish_event
from rota.worker.queues import Queues

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
REVOKED = "SELECT g.revoked_at IS NOT NULL FROM grants g JOIN automations a ON a.grant_id = g.id"


async def claim_one(conn: Connection) -> Claimed:
    queues = Queues(["default"], ["command"])
    await queues.look(conn)
    ready = await queues.to_read(conn, 1)
    [run] = await claiming.claim(conn, WorkerId("w"), queues=ready, places=1, lease=timedelta(minutes=1))
    return run


@pytest.fixture
async def claimed(house: House, db: Database, run_now: Any) -> Claimed:
    await run_now(await house.automation())
    async with db.transaction() as conn:
        return await claim_one(conn)


async def test_who_holds_the_lease_may_write(db: Database, claimed: Claimed) -> None:
    key = (claimed.workspace_id, claimed.id, claimed.attempt)
    async with db.transaction() as conn:
        assert await events.hold(conn, [key]) == {key}


@pytest.mark.parametrize(
    "loss", ["lease_until = now() - interval '1 second'", "attempt = attempt + 1", "status = 'queued'"]
)
async def test_words_are_refused_once_the_lease_is_over_or_gone(
    house: House, db: Database, claimed: Claimed, loss: str
) -> None:
    await house.execute(f"UPDATE runs SET {loss}")
    async with db.transaction() as conn:
        assert await events.hold(conn, [(claimed.workspace_id, claimed.id, claimed.attempt)]) == set()


@pytest.mark.parametrize(
    "loss", ["lease_until = now() - interval '1 second'", "attempt = attempt + 1", "status = 'queued'"]
)
async def test_an_outcome_is_refused_once_the_lease_is_over_or_gone(
    house: House, db: Database, claimed: Claimed, loss: str
) -> None:
    await house.execute(f"UPDATE runs SET {loss}")
    async with db.transaction() as conn:
        assert not await settling.settle(conn, [Result(claimed, Succeeded())])
    assert await house.value("SELECT count(*) FROM runs WHERE status = 'succeeded'") == 0


async def test_a_renewal_at_the_same_moment_does_not_cost_the_outcome(
    house: House, db: Database, claimed: Claimed
) -> None:
    """Provoked: the lease is renewed but not committed when the outcome arrives. The row it waits for is a newer one."""

    outcome = Result(claimed, Succeeded())

    async def settle() -> Sequence[Result]:
        async with db.transaction() as conn:
            return await settling.settle(conn, [outcome])

    key = (claimed.workspace_id, claimed.id, claimed.attempt)
    async with db.transaction() as renewing:
        assert await attempts.renew(renewing, [key], timedelta(minutes=1)) == {claimed.id: False}
        arriving = asyncio.create_task(settle())
        await until(lambda: house.value(WAITS))
    assert await arriving == [outcome]


async def test_nobody_can_take_a_run_away_while_its_words_are_being_written(
    house: House, db: Database, claimed: Claimed
) -> None:
    async with db.transaction() as writing:
        await events.hold(writing, [(claimed.workspace_id, claimed.id, claimed.attempt)])
        taking = asyncio.create_task(house.execute("UPDATE runs SET attempt = attempt + 1"))
        await until(lambda: house.value(WAITS))
    await taking


async def test_a_run_that_comes_while_its_lanes_holder_is_ending_does_not_wait_for_ever(
    house: House, db: Database
) -> None:
    """Provoked: the holder's end is written but not committed when the next run arrives."""
    await house.automation({"event": "go"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
    async with db.transaction() as conn:
        holder = await claim_one(conn)

    async def arrive() -> None:
        async with db.transaction() as conn:
            await publish_event(conn, house.caller, "go", None, "second")

    async with db.transaction() as ending:
        await settling.settle(ending, [Result(holder, Succeeded())])
        arriving = asyncio.create_task(arrive())
        await until(lambda: house.value(WAITS))
    await arriving
    first, second = await house.ledger()
    assert (first["status"], second["status"]) == ("succeeded", "queued")
    assert second["ready_at"] is not None


@pytest.mark.parametrize("outcome", [None, Failed(ErrorClass.AGENT_ERROR, "Try again.")])
async def test_a_run_that_is_to_be_cancelled_is_neither_handed_back_nor_tried_again(
    house: House, db: Database, run_now: Any, outcome: Outcome | None
) -> None:
    """Its attempt ended before its worker heard of it."""
    run_id = await run_now(await house.automation(max_attempts=3))
    async with db.transaction() as conn:
        at_work = await claim_one(conn)
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)
        await settling.settle(conn, [Result(at_work, outcome)])
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("cancelled", "cancelled_by_user")


async def test_a_run_that_is_cancelled_while_it_goes_back_to_the_queue_is_cancelled_there(
    house: House, db: Database, run_now: Any
) -> None:
    """Provoked: that it is tried again is written but not committed when somebody cancels it."""
    run_id = await run_now(await house.automation(max_attempts=3))
    async with db.transaction() as conn:
        at_work = await claim_one(conn)

    async def cancel() -> None:
        async with db.transaction() as conn:
            await cancelling.cancel(conn, house.caller.workspace_id, run_id)

    async with db.transaction() as ending:
        await settling.settle(ending, [Result(at_work, Failed(ErrorClass.AGENT_ERROR, "Try again."))])
        cancelled = asyncio.create_task(cancel())
        await until(lambda: house.value(WAITS))
    await cancelled
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("cancelled", "cancelled_by_user")
    assert run["error_detail"] == "Cancelled before it went on."


async def test_the_grant_of_a_deleted_automation_ends_when_its_last_two_runs_end_at_once(
    house: House, db: Database
) -> None:
    """Provoked: the end of one is written but not committed when the other ends."""
    automation = await house.automation({"event": "go"}, overlap="allow")
    async with db.transaction() as conn:
        for key in ("first", "second"):
            await publish_event(conn, house.caller, "go", None, key)
    async with db.transaction() as conn:
        first, second = await claim_one(conn), await claim_one(conn)
        await automations.delete(conn, house.caller, str(automation))

    async def end_second() -> None:
        async with db.transaction() as conn:
            await settling.settle(conn, [Result(second, Succeeded())])

    async with db.transaction() as ending:
        await settling.settle(ending, [Result(first, Succeeded())])
        beside = asyncio.create_task(end_second())
        await until(lambda: house.value(WAITS))
    await beside
    assert await house.value(REVOKED)


async def test_the_grant_of_an_automation_that_is_deleted_as_its_last_run_ends_ends_too(
    house: House, db: Database, claimed: Claimed
) -> None:
    """Provoked: the end is written but not committed when the automation is deleted."""

    async def delete() -> None:
        async with db.transaction() as conn:
            await automations.delete(conn, house.caller, str(claimed.automation_id))

    async with db.transaction() as ending:
        await settling.settle(ending, [Result(claimed, Succeeded())])
        deleting = asyncio.create_task(delete())
        await until(lambda: house.value(WAITS))
    await deleting
    assert await house.value(REVOKED)


async def test_of_runs_that_wait_in_the_lanes_of_an_old_and_a_new_session_one_begins(
    house: House, db: Database
) -> None:
    automation = await house.automation({"event": "go"}, session="same")

    async def go(key: str) -> None:
        async with db.transaction() as conn:
            await publish_event(conn, house.caller, "go", None, key)

    await go("first")
    async with db.transaction() as conn:
        holder = await claim_one(conn)
    await go("second")
    async with db.transaction() as conn:
        await automations.change(conn, house.caller, str(automation), {"session": "new"}, None)
    await go("third")
    async with db.transaction() as conn:
        await settling.settle(conn, [Result(holder, Succeeded())])
    _, second, third = await house.ledger()
    assert (second["ready_at"] is None, third["ready_at"] is None) == (False, True)
