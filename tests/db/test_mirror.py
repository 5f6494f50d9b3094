"""What has not ended is mirrored in narrow tables, whoever changes the ledger, however, and however many at once."""

from typing import Any

import psycopg
import pytest

from rota.model.ids import AutomationId
from rota.roster import running
from support import live_run_tables as mirror
from support.house import House

AT_WORK = "attempt = attempt + 1, worker_id = 'w', lease_until = now() + interval '1 hour'"
FIRST, SECOND, THIRD = (f"id = (SELECT id FROM runs ORDER BY id OFFSET {n} LIMIT 1)" for n in range(3))

CHANGES = [
    f"UPDATE runs SET status = 'running', {AT_WORK} WHERE ready_at IS NOT NULL",
    "UPDATE runs SET lease_until = now() + interval '2 hours' WHERE status = 'running'",
    f"UPDATE runs SET status = 'awaiting_approval' WHERE {FIRST}",
    f"UPDATE runs SET lease_until = NULL WHERE {FIRST}",
    f"UPDATE runs SET status = 'queued', ready_at = now(), priority = -1, worker_id = NULL WHERE {FIRST}",
    f"UPDATE runs SET status = 'running', {AT_WORK} WHERE ready_at IS NOT NULL AND lease_until IS NULL",
    f"UPDATE runs SET status = 'queued', ready_at = now() + interval '1 hour', lease_until = NULL, worker_id = NULL WHERE {SECOND}",
    f"UPDATE runs SET queue = agent_id, priority = 0 WHERE {SECOND}",
    f"""UPDATE runs SET status = CASE WHEN {FIRST} THEN 'succeeded' WHEN {SECOND} THEN 'running' ELSE 'queued' END,
                        finished_at = CASE WHEN {FIRST} THEN now() END, worker_id = CASE WHEN NOT {THIRD} THEN 'w' END,
                        lease_until = CASE WHEN {SECOND} THEN now() END""",
    f"UPDATE runs SET status = 'skipped', skip_reason = 'paused', finished_at = now(), lease_until = NULL WHERE {SECOND}",
    f"UPDATE runs SET ready_at = now() WHERE {THIRD}",
    "DELETE FROM events",
    f"DELETE FROM runs WHERE {THIRD}",
]  # fmt: skip


@pytest.fixture
async def three(house: House) -> House:
    """One that holds its lane, one in no lane, and one that waits for the first."""
    in_turns, beside = await house.automation(overlap="queue_all"), await house.automation(overlap="allow")
    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, AutomationId(in_turns))
        await conn.execute(f"UPDATE runs SET status = 'running', {AT_WORK}".encode())
        for automation_id in (beside, in_turns):
            await running.run_now(conn, house.caller, AutomationId(automation_id))
    assert await house.value("SELECT count(*) FROM live_runs WHERE waits") == 1
    return house


async def unlike(house: House) -> list[Any]:
    async with house.db.connection() as conn:
        return await mirror.astray(conn)


async def test_whatever_changes_in_the_ledger_changes_in_its_mirror(three: House) -> None:
    assert await unlike(three) == []
    for change in CHANGES:
        await three.execute(change)
        assert await unlike(three) == [], change


async def test_who_waits_holds_the_lane_as_soon_as_it_runs_also_if_made_to_by_hand(three: House) -> None:
    waiting = "ready_at IS NULL"
    with pytest.raises(psycopg.errors.UniqueViolation, match="live_runs_one_per_lane"):
        await three.execute(f"UPDATE runs SET status = 'running', {AT_WORK} WHERE {waiting}")
    await three.execute(
        f"UPDATE runs SET status = 'skipped', skip_reason = 'paused', finished_at = now(), lease_until = NULL WHERE {FIRST}"
    )
    await three.execute(f"UPDATE runs SET status = 'running', {AT_WORK} WHERE {waiting}")
    assert await unlike(three) == []
    assert await three.value("SELECT count(*) FROM live_runs WHERE waits") == 0
