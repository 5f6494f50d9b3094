"""While a workspace is paused, none of its triggers starts a run, and its schedules rest as those of a paused agent do."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.errors import Forbidden, Invalid
from rota.model.caller import Level
from rota.model.ids import AutomationId
from rota.roster import agents, automations, pausing, running
from rota.roster.why import why
from rota.scheduler.inbound import publish_event
from rota.scheduler.tick import Scheduler
from support.house import NOON, Clock, House
from support.waiting import until

HOURLY = {"cron": "0 * * * *", "timezone": "UTC"}
PAID = {"event": "invoice.paid"}
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def scheduler(db: Database, wakes: Wakes, clock: Clock) -> Scheduler:
    return Scheduler(db, wakes, clock=clock)


async def pause(house: House, reason: str = "The budget is spent", end: datetime | None = None) -> None:
    async with house.db.transaction() as conn:
        await pausing.pause(conn, house.caller, reason=reason, until=end)


async def resume(house: House) -> None:
    async with house.db.transaction() as conn:
        await pausing.resume(conn, house.caller)


async def present(house: House) -> datetime:
    return await house.value("SELECT clock_timestamp()")  # type: ignore[no-any-return]


async def next_fires(house: House) -> list[datetime | None]:
    return await house.value("SELECT array_agg(next_fire_at ORDER BY id) FROM triggers")  # type: ignore[no-any-return]


async def skip_reasons(house: House) -> list[Any]:
    return [run["skip_reason"] for run in await house.ledger()]


async def fire_hours(scheduler: Scheduler, clock: Clock, hours: int) -> None:
    for _ in range(hours):
        await scheduler.once()
        clock.advance(hours=1)


async def publish(house: House, event: str = "invoice.paid") -> None:
    async with house.db.transaction() as conn:
        await publish_event(conn, house.caller, event, None, None)


async def pauses_of(house: House, columns: str) -> Sequence[Any]:
    return await house.value(f"SELECT array_agg(({columns})::text ORDER BY paused_at) FROM pauses") or []


async def code_at(house: House, automation: UUID, minute: datetime) -> tuple[str, str]:
    async with house.db.transaction() as conn:
        found = await automations.find(conn, house.caller, str(automation))
        answer = await why(conn, house.caller.workspace_id, found, minute, "UTC")
        return answer.code, answer.text


async def test_a_pause_writes_one_row_for_each_schedule(house: House, scheduler: Scheduler, clock: Clock) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await house.automation({**HOURLY, "cron": "30 * * * *"}, next_fire_at=NOON + timedelta(minutes=30))
    await pause(house)
    await fire_hours(scheduler, clock, 5)
    assert await skip_reasons(house) == ["paused", "paused"]
    assert await next_fires(house) == [None, None]


async def test_a_resumed_workspace_counts_from_now(house: House, scheduler: Scheduler, clock: Clock) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await house.automation({**HOURLY, "cron": "30 * * * *"}, next_fire_at=NOON + timedelta(minutes=30))
    await pause(house)
    await scheduler.once()
    await resume(house)
    now = await present(house)
    fires = await next_fires(house)
    assert all(each and now - timedelta(seconds=60) < each <= now + timedelta(hours=1) for each in fires)
    # The second was due by the database's clock and had not been fired: it is in the ledger too.
    assert await skip_reasons(house) == ["paused", "paused"]
    await resume(house)
    assert await next_fires(house) == fires


async def test_a_paused_workspace_takes_in_events_and_skips_their_runs(house: House) -> None:
    await house.automation(PAID)
    await pause(house)
    await publish(house)
    await resume(house)
    await publish(house)
    assert await skip_reasons(house) == ["paused", None]


async def test_pausing_skips_what_waits_and_lets_people_go_on(house: House) -> None:
    await house.automation(PAID, overlap="allow")
    other = AutomationId(await house.automation())
    started = await house.running_run(other)
    await publish(house)
    await pause(house)
    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, AutomationId(await house.automation()))
    assert [(run["source"], run["status"]) for run in await house.ledger() if run["id"] != started["id"]] == [
        ("event", "skipped"),
        ("run_now", "queued"),
    ]
    assert (await house.run(started["id"]))["status"] == "running"


async def test_what_is_paused_itself_stays_so(house: House, scheduler: Scheduler) -> None:
    async with house.db.transaction() as conn:
        other = {"name": "Other bee", "executor": "command", "config": {"argv": ["true"]}}
        await agents.create(conn, house.caller, other)
    paused = await house.automation(HOURLY, next_fire_at=NOON)
    await house.automation(HOURLY, next_fire_at=NOON, agent="other-bee")
    await house.automation(HOURLY, next_fire_at=NOON)
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, str(paused))
        await agents.change(conn, house.caller, "other-bee", {"status": "paused"})
    await pause(house)
    await scheduler.once()
    await resume(house)
    assert [each is None for each in await next_fires(house)] == [True, True, False]
    async with house.db.transaction() as conn:
        await agents.change(conn, house.caller, "other-bee", {"status": "active"})
    assert [each is None for each in await next_fires(house)] == [True, False, False]


@pytest.mark.parametrize("change", ["create", "resume", "restore", "edit", "resume_agent"])
async def test_what_is_saved_or_resumed_during_the_pause_rests_until_its_end(
    house: House, scheduler: Scheduler, change: str
) -> None:
    automation = str(await house.automation(HOURLY, next_fire_at=NOON)) if change != "create" else ""
    async with house.db.transaction() as conn:
        if change == "resume":
            await automations.pause(conn, house.caller, automation)
        if change == "restore":
            await automations.delete(conn, house.caller, automation)
        if change == "resume_agent":
            await agents.change(conn, house.caller, "worker-bee", {"status": "paused"})
    await pause(house)
    await scheduler.once()
    async with house.db.transaction() as conn:
        await change_of(conn, house, change, automation)
    assert await next_fires(house) == [None]
    await resume(house)
    [following] = await next_fires(house)
    assert following


async def change_of(conn: Any, house: House, change: str, automation: str) -> None:
    match change:
        case "create":
            values = {"name": "New", "agent": "worker-bee", "prompt": "Sweep."}
            await automations.create(conn, house.caller, values, [HOURLY])
        case "resume":
            await automations.resume(conn, house.caller, automation)
        case "restore":
            await automations.restore(conn, house.caller, automation)
        case "edit":
            form = {"cron": "15 * * * *", "timezone": "UTC"}
            await automations.change(conn, house.caller, automation, {}, [form])
        case _:
            await agents.change(conn, house.caller, "worker-bee", {"status": "active"})


async def test_at_its_end_a_pause_is_over_and_slots_since_then_are_made_up_for(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    end = (await present(house)).replace(minute=30, second=0, microsecond=0) + timedelta(hours=2)
    slot = end.replace(minute=0)
    await house.automation(HOURLY, next_fire_at=slot)
    await pause(house, end=end)
    clock.now = slot
    await scheduler.once()
    assert await next_fires(house) == [None]
    clock.now = slot + timedelta(hours=3)  # no scheduler was there when the pause ended
    await scheduler.once()
    assert [(run["slot"], run["skip_reason"], run["missed"]) for run in await house.ledger()] == [
        (slot, "paused", None),
        (slot + timedelta(hours=3), None, {"count": 2, "since": (slot + timedelta(hours=1)).isoformat()}),
    ]
    assert await pauses_of(house, "resumed_at = until AND resumed_by IS NULL") == ["true"]


async def test_a_scheduler_sleeps_until_the_end_of_a_pause(house: House, scheduler: Scheduler, clock: Clock) -> None:
    clock.now = await present(house)
    await pause(house, end=clock.now + timedelta(seconds=12))
    assert 11 < await scheduler.once() <= 12


async def test_a_pause_whose_end_has_passed_is_over_before_anybody_looks(house: House, scheduler: Scheduler) -> None:
    await house.automation(PAID)
    await house.automation(HOURLY, next_fire_at=NOON)
    await pause(house, end=await present(house) + timedelta(hours=1))
    await scheduler.once()
    await house.execute("UPDATE pauses SET until = clock_timestamp()")
    await publish(house)
    assert await skip_reasons(house) == ["paused", None]
    await pause(house, "Again")
    assert await pauses_of(house, "reason, resumed_at IS NULL") == ['("The budget is spent",f)', "(Again,t)"]


async def test_a_workspace_is_resumed_while_its_schedule_is_being_skipped(house: House, scheduler: Scheduler) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await pause(house)
    async with house.db.transaction() as conn:
        await conn.execute("LOCK TABLE runs IN SHARE MODE")  # the scheduler has decided, and waits to write
        firing = asyncio.create_task(scheduler.once())
        await until(lambda: house.value(f"SELECT ({WAITING}) = 1"))
        resuming = asyncio.create_task(resume(house))
        await until(lambda: house.value(f"SELECT ({WAITING}) = 2"))
    await asyncio.gather(firing, resuming)
    assert await skip_reasons(house) == ["paused"]
    [following] = await next_fires(house)
    assert following


async def test_a_workspace_that_is_paused_while_its_schedule_fires_keeps_no_run_waiting(
    house: House, scheduler: Scheduler
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    async with house.db.transaction() as conn:
        await conn.execute("LOCK TABLE runs IN SHARE MODE")
        firing = asyncio.create_task(scheduler.once())
        await until(lambda: house.value(f"SELECT ({WAITING}) = 1"))
        pausing_it = asyncio.create_task(pause(house))
        await until(lambda: house.value(f"SELECT ({WAITING}) = 2"))
    await asyncio.gather(firing, pausing_it)
    assert await skip_reasons(house) == ["paused"]


async def test_an_automation_that_is_created_while_the_workspace_is_resumed_fires(house: House) -> None:
    await pause(house)
    async with house.db.transaction() as conn:
        values = {"name": "New", "agent": "worker-bee", "prompt": "Sweep."}
        await automations.create(conn, house.caller, values, [HOURLY])
        resuming = asyncio.create_task(resume(house))
        await until(lambda: house.value(f"SELECT ({WAITING}) = 1"))
    await resuming
    [following] = await next_fires(house)
    assert following


async def test_an_automation_that_is_resumed_while_the_workspace_is_resumed_fires(house: House) -> None:
    automation = str(await house.automation(HOURLY, next_fire_at=NOON))
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, automation)
    await pause(house)
    async with house.db.transaction() as conn:
        await automations.resume(conn, house.caller, automation)
        resuming = asyncio.create_task(resume(house))
        await until(lambda: house.value(f"SELECT ({WAITING}) = 1"))
    await resuming
    [following] = await next_fires(house)
    assert following


async def test_two_admins_who_pause_at_once_make_one_pause(house: House) -> None:
    async with house.db.transaction() as conn:
        await pausing.pause(conn, house.caller, reason="First", until=None)
        second = asyncio.create_task(pause(house, "Second"))
        await until(lambda: house.value(f"SELECT ({WAITING}) = 1"))
    await second
    assert await pauses_of(house, "reason") == ["Second"]


async def test_a_pause_that_an_admin_extends_at_its_end_goes_on(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    now = await present(house)
    await pause(house, end=now + timedelta(minutes=1))
    await scheduler.once()
    clock.now = now + timedelta(minutes=2)
    async with house.db.transaction() as conn:
        await pausing.pause(conn, house.caller, reason="Longer", until=now + timedelta(hours=9))
        async with asyncio.timeout(10):
            await scheduler.once()  # it does not wait for the admin
    await scheduler.once()
    assert await pauses_of(house, "resumed_at IS NULL") == ["true"]
    assert await next_fires(house) == [None]


async def test_every_slot_of_the_pause_has_its_reason(house: House, scheduler: Scheduler, clock: Clock) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    for table, column in (("automations", "created_at"), ("triggers", "anchor_at"), ("revisions", "created_at")):
        await house.execute(f"UPDATE {table} SET {column} = %s", NOON - timedelta(days=9))
    await pause(house, "The budget is spent.")
    await house.execute("UPDATE pauses SET paused_at = %s", NOON - timedelta(minutes=5))
    await fire_hours(scheduler, clock, 3)
    code, text = await code_at(house, automation, NOON)
    assert (code, "The budget is spent." in text) == ("skipped", True)
    code, text = await code_at(house, automation, NOON + timedelta(hours=1))
    assert (code, "The budget is spent." in text) == ("workspace_paused", True)
    assert (await code_at(house, automation, NOON + timedelta(hours=2)))[0] == "workspace_paused"
    assert (await code_at(house, automation, NOON + timedelta(minutes=65)))[0] == "not_due"
    assert (await code_at(house, automation, NOON - timedelta(hours=1)))[0] == "off"
    await resume(house)
    await house.execute("UPDATE pauses SET resumed_at = %s", NOON + timedelta(minutes=90))
    assert (await code_at(house, automation, NOON + timedelta(hours=1)))[0] == "workspace_paused"
    assert (await code_at(house, automation, NOON + timedelta(hours=2)))[0] == "off"


async def test_only_admins_pause_and_no_end_has_passed(house: House) -> None:
    async with house.db.transaction() as conn:
        member = replace(house.caller, level=Level.MEMBER)
        with pytest.raises(Forbidden):
            await pausing.pause(conn, member, reason="Mine", until=None)
        with pytest.raises(Forbidden):
            await pausing.resume(conn, member)
        with pytest.raises(Invalid) as refused:
            await pausing.pause(conn, house.caller, reason="Late", until=NOON)
    assert (refused.value.code, refused.value.field) == ("until_passed", "until")
