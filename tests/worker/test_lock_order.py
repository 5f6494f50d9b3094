"""Who fires and who ends runs take their locks in one order, so that neither loses its batch to the other."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from house import House
from waiting import until

from rota.db import run_status, triggers
from rota.db.pool import Connection, Database
from rota.model.ids import WorkerId
from rota.roster import running
from rota.runs import claiming, parking, sweeping
from rota.worker.queues import Queues

LEASE = timedelta(minutes=1)
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
LOST = """UPDATE runs SET status = 'running', attempt = 1, worker_id = 'gone', started_at = now(), max_rescues = 0,
                          lease_until = now() - interval '1 s'"""
STUCK = "UPDATE runs SET ready_at = now() - interval '2 hours', start_within = '1 hour'"
UNANSWERED = """
WITH asking AS (
    UPDATE runs SET status = 'awaiting_approval', attempt = 1, started_at = now() RETURNING *)
INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, status, expires_at)
SELECT workspace_id, gen_random_uuid(), id, session_id, 1, 'May I?', '[]', 'pending', now() - interval '1 s' FROM asking
"""


async def expire(conn: Connection, limit: int) -> int:
    return len((await parking.expire(conn, limit)).ended)


@pytest.mark.parametrize(
    ("state", "sweep"),
    [(LOST, sweeping.rescue), (STUCK, sweeping.end_stuck), (UNANSWERED, expire)],
    ids=["lost", "stuck", "unanswered"],
)
async def test_who_fires_an_automation_and_who_fails_its_run_do_not_wait_for_each_other(
    house: House, db: Database, state: str, sweep: Callable[[Connection, int], Awaitable[int]]
) -> None:
    """Provoked: the one has locked the automation and is about to look at its runs when the other begins."""
    automation_id = await house.automation({"every": "1h"}, overlap="queue_all")
    async with db.transaction() as conn:
        await running.run_now(conn, house.caller, automation_id)
    await house.execute(state)
    await house.execute("UPDATE triggers SET next_fire_at = now() - interval '1 s'")

    async def swept() -> int:
        async with db.transaction() as conn:
            return await sweep(conn, 10)

    async with db.transaction() as firing:
        assert len(await triggers.lock_due(firing, None, 10)) == 1
        sweeping_up = asyncio.create_task(swept())
        await until(lambda: house.value(WAITS))
        await run_status.hold_lanes(firing, [(house.caller.workspace_id, automation_id)])
    assert await sweeping_up == 1
    assert await house.value("SELECT status FROM runs") == "failed"
    assert await house.value("SELECT failures FROM automations") == 1


async def test_a_run_that_may_begin_does_so_when_one_claimed_with_it_cannot_be_ended(
    house: House, db: Database, claim_now: Any
) -> None:
    """Provoked: somebody has the session of the one whose grant was revoked, and PostgreSQL waits for nobody."""
    good, bad = [await house.automation() for _ in range(2)]
    async with db.transaction() as conn:
        runs = [await running.run_now(conn, house.caller, each) for each in (good, bad)]
    await house.execute(
        "UPDATE grants SET revoked_at = now() FROM automations a WHERE a.grant_id = grants.id AND a.id = %s", bad
    )
    async with db.transaction() as other:
        await other.execute(
            "SELECT FROM sessions s JOIN runs r ON r.session_id = s.id WHERE r.id = %s FOR UPDATE OF s", [runs[1]]
        )
        async with db.connection() as conn:
            await conn.execute("SET lock_timeout = '100ms'")
            claimed = await claim_now(conn)
            await conn.execute("RESET lock_timeout")
    assert [run.id for run in claimed] == [runs[0]]


@pytest.fixture
def claim_now() -> Any:
    async def claim(conn: Connection) -> Any:
        queues = Queues(["default"], ["command"])
        await queues.look(conn)
        given = await queues.to_read(conn, 5)
        return await claiming.claim(conn, WorkerId("w"), queues=given, places=5, lease=LEASE)

    return claim
