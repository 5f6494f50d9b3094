"""What has not ended is mirrored in narrow tables, whoever changes the ledger, however, and however many at once."""

from typing import Any

import psycopg
import pytest

from support import live_run_tables as mirror
from support.house import House
from support.run_state import PRESENT, change_each_run, delete_run, from_now, running

PAUSED = {"status": "skipped", "skip_reason": "paused", "finished_at": from_now(), "lease_until": None}


@pytest.fixture
async def three(house: House) -> House:
    """One that holds its lane, one in no lane, and one that waits for the first."""
    in_turns, beside = await house.automation(overlap="queue_all"), await house.automation(overlap="allow")
    await house.running_run(in_turns)
    for automation_id in (beside, in_turns):
        await house.queue_run(automation_id)
    assert await count_waiting(house) == 1
    return house


async def count_waiting(house: House) -> int:
    async with house.db.connection() as conn:
        return sum(run["waits"] for run in await mirror.find_live_runs(conn))


async def unlike(house: House) -> list[Any]:
    async with house.db.connection() as conn:
        return await mirror.astray(conn)


async def test_whatever_changes_in_the_ledger_changes_in_its_mirror(three: House) -> None:
    ids = [run["id"] for run in await three.runs()]
    [first, second, third] = ids
    agent_id = (await three.run(second))["agent_id"]

    async def change_differently() -> None:
        async with three.db.transaction() as conn:
            await change_each_run(conn, {
                first: {"status": "succeeded", "finished_at": from_now(), "worker_id": "w", "lease_until": None},
                second: {"status": "running", "finished_at": None, "worker_id": "w", "lease_until": from_now()},
                third: {"status": "queued", "finished_at": None, "worker_id": None, "lease_until": None},
            })  # fmt: skip

    async def delete_third() -> None:
        async with three.db.transaction() as conn:
            await delete_run(conn, third)

    steps: list[Any] = [
        lambda: three.set_runs({"ready_at": PRESENT}, **running()),
        lambda: three.set_runs({"status": "running"}, lease_until=from_now(hours=2)),
        lambda: three.set_run(first, status="awaiting_approval"),
        lambda: three.set_run(first, lease_until=None),
        lambda: three.set_run(first, status="queued", ready_at=from_now(), priority=-1, worker_id=None),
        lambda: three.set_runs({"ready_at": PRESENT, "lease_until": None}, **running(attempt=2)),
        lambda: three.set_run(second, status="queued", ready_at=from_now(hours=1), lease_until=None, worker_id=None),
        lambda: three.set_run(second, queue=agent_id, priority=0),
        change_differently,
        lambda: three.set_run(second, **PAUSED),
        lambda: three.set_run(third, ready_at=from_now()),
        lambda: three.execute("DELETE FROM events"),
        delete_third,
    ]
    assert await unlike(three) == []
    for number, step in enumerate(steps):
        await step()
        assert await unlike(three) == [], f"after step {number}"
    assert len(await three.runs()) == 2


async def test_who_waits_holds_the_lane_as_soon_as_it_runs_also_if_made_to_by_hand(three: House) -> None:
    first, *_, waiting = [run["id"] for run in await three.runs()]
    with pytest.raises(psycopg.errors.UniqueViolation, match="live_runs_one_per_lane"):
        await three.set_run(waiting, **running())
    await three.set_run(first, **PAUSED)
    await three.set_run(waiting, **running())
    assert await unlike(three) == []
    assert await count_waiting(three) == 0
