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
from rota.model.outcome import Succeeded
from rota.model.run import Claimed
from rota.runs import claiming, settling
from rota.runs.settling import Result
from rota.scheduler.inbound import publish_event
from rota.worker.queues import Queues

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


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
