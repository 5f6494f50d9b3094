"""While an agent is paused, each of its schedules writes one skipped slot and then rests until the agent is resumed."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from rota.db import triggers
from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.roster import agents, automations
from rota.roster.why import why
from rota.scheduler.tick import Scheduler
from support.house import NOON, Clock, House
from support.waiting import until

HOURLY = {"cron": "0 * * * *", "timezone": "UTC"}
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def scheduler(db: Database, wakes: Wakes, clock: Clock) -> Scheduler:
    return Scheduler(db, wakes, clock=clock)


async def set_status(house: House, status: str, agent: str = "worker-bee") -> None:
    async with house.db.transaction() as conn:
        await agents.change(conn, house.caller, agent, {"status": status})


async def next_fires(house: House) -> list[datetime | None]:
    return await house.value("SELECT array_agg(next_fire_at ORDER BY id) FROM triggers")  # type: ignore[no-any-return]


async def skip_reasons(house: House) -> list[Any]:
    return [run["skip_reason"] for run in await house.ledger()]


async def fire_hours(scheduler: Scheduler, clock: Clock, hours: int) -> None:
    for _ in range(hours):
        await scheduler.once()
        clock.advance(hours=1)


async def test_a_pause_writes_one_row_for_each_schedule(house: House, scheduler: Scheduler, clock: Clock) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await set_status(house, "paused")
    await fire_hours(scheduler, clock, 5)
    assert await skip_reasons(house) == ["agent_paused"]
    assert await next_fires(house) == [None]


async def test_a_resumed_agents_schedules_count_from_now(house: House, scheduler: Scheduler, clock: Clock) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await house.automation({**HOURLY, "cron": "30 * * * *"}, next_fire_at=NOON + timedelta(minutes=30))
    paused = await house.automation(HOURLY, next_fire_at=NOON)
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, str(paused))
    await set_status(house, "paused")
    await scheduler.once()
    await set_status(house, "active")
    now = await house.value("SELECT now()")
    first, second, third = await next_fires(house)
    assert first
    assert second
    assert now < first <= now + timedelta(hours=1)
    assert now < second <= now + timedelta(hours=1)
    assert third is None, "its automation is paused itself"
    # The second was due by the database's clock and had not been fired: it is in the ledger too.
    assert [reason for reason in await skip_reasons(house) if reason != "paused"] == ["agent_paused"] * 2


async def test_only_schedules_of_the_resumed_agent_go_on(house: House, scheduler: Scheduler) -> None:
    async with house.db.transaction() as conn:
        other = {"name": "Other bee", "executor": "command", "config": {"argv": ["true"]}}
        await agents.create(conn, house.caller, other)
    await house.automation(HOURLY, next_fire_at=NOON)
    await house.automation(HOURLY, next_fire_at=NOON, agent="other-bee")
    await set_status(house, "paused")
    await set_status(house, "paused", "other-bee")
    await scheduler.once()
    assert await next_fires(house) == [None, None]
    await set_status(house, "active", "other-bee")
    mine, theirs = await next_fires(house)
    assert mine is None
    assert theirs


async def test_an_automation_that_gets_an_active_agent_goes_on(house: House, scheduler: Scheduler) -> None:
    async with house.db.transaction() as conn:
        other = {"name": "Other bee", "executor": "command", "config": {"argv": ["true"]}}
        await agents.create(conn, house.caller, other)
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    await set_status(house, "paused")
    await scheduler.once()
    async with house.db.transaction() as conn:
        await automations.change(conn, house.caller, str(automation), {"agent": "other-bee"}, None)
    [following] = await next_fires(house)
    assert following


async def test_an_agent_that_is_resumed_while_its_schedule_is_being_skipped_goes_on(
    house: House, scheduler: Scheduler
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await set_status(house, "paused")
    async with house.db.transaction() as conn:
        await conn.execute("LOCK TABLE runs IN SHARE MODE")  # the scheduler has decided, and waits to write
        firing = asyncio.create_task(scheduler.once())
        await until(lambda: house.value(f"SELECT ({WAITING}) = 1"))
        resuming = asyncio.create_task(set_status(house, "active"))
        await until(lambda: house.value(f"SELECT ({WAITING}) = 2"))
    await asyncio.gather(firing, resuming)
    assert await skip_reasons(house) == ["agent_paused"]
    [following] = await next_fires(house)
    assert following


async def test_a_schedule_rests_only_while_its_agent_is_paused(house: House) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    trigger_id = await house.value("SELECT id FROM triggers")
    for status, rests in (("active", False), ("paused", True)):
        await house.execute("UPDATE agents SET status = %s", status)
        async with house.db.transaction() as conn:
            await triggers.rest_while_paused(conn, [(house.caller.workspace_id, trigger_id)])
        assert ((await next_fires(house)) == [None]) is rests


async def test_every_slot_of_the_pause_has_its_reason(house: House, scheduler: Scheduler, clock: Clock) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    for table, column in (("automations", "created_at"), ("triggers", "anchor_at"), ("revisions", "created_at")):
        await house.execute(f"UPDATE {table} SET {column} = %s", NOON - timedelta(days=9))
    await set_status(house, "paused")
    await fire_hours(scheduler, clock, 3)
    assert await code_at(house, automation, NOON) == "skipped"
    assert await code_at(house, automation, NOON + timedelta(hours=1)) == "agent_paused"
    assert await code_at(house, automation, NOON + timedelta(hours=2)) == "agent_paused"
    assert await code_at(house, automation, NOON + timedelta(hours=1, minutes=5)) == "not_due"
    assert await code_at(house, automation, NOON - timedelta(hours=1)) == "off"


async def code_at(house: House, automation: UUID, minute: datetime) -> str:
    async with house.db.transaction() as conn:
        found = await automations.find(conn, house.caller, str(automation))
        return (await why(conn, house.caller.workspace_id, found, minute, "UTC")).code
