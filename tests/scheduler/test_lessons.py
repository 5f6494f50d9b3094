"""Lessons from the systems before us; each test has the name of what went wrong there."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from rota.db import runs
from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.errors import Invalid
from rota.model.schedule import read_schedule
from rota.roster import agents, automations, running
from rota.scheduler.tick import Scheduler
from support.house import NOON, Clock, House
from support.run_state import from_now

HOURLY = {"cron": "0 * * * *", "timezone": "UTC"}


@pytest.fixture
def scheduler(db: Database, wakes: Wakes, clock: Clock) -> Scheduler:
    return Scheduler(db, wakes, clock=clock)


async def next_fire(house: House, automation: object) -> datetime:
    return await house.value("SELECT next_fire_at FROM triggers WHERE automation_id = %s", automation)  # type: ignore[no-any-return]


async def test_catch_up_is_not_replayed_one_slot_per_tick(house: House, scheduler: Scheduler, clock: Clock) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    clock.advance(hours=6)
    for _ in range(10):
        await scheduler.once()
        clock.advance(seconds=30)
    assert len(await house.ledger()) == 1


async def test_a_trigger_added_to_an_old_agent_first_fires_at_the_next_slot(house: House) -> None:
    await house.execute("UPDATE agents SET created_at = now() - interval '3 years'")
    before = datetime.now(UTC)
    automation = await house.automation(HOURLY)
    assert before < await next_fire(house, automation) <= before + timedelta(hours=1, seconds=1)


async def test_paused_never_fires_and_what_waited_is_skipped(house: House, scheduler: Scheduler, clock: Clock) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    await scheduler.once()
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, str(automation))
    before = await house.ledger()
    for _ in range(16):
        clock.advance(minutes=30)
        await scheduler.once()
    assert await house.ledger() == before
    assert {run["skip_reason"] for run in before} == {"paused"}


async def test_pausing_what_is_paused_leaves_why_it_is(house: House) -> None:
    automation = await house.automation(HOURLY)
    await house.execute(
        "UPDATE automations SET status = 'paused', paused_reason = 'It failed 3 times in a row.', failures = 3"
    )
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, str(automation))
        found = await automations.find(conn, house.caller, str(automation))
    assert (found["paused_reason"], found["failures"]) == ("It failed 3 times in a row.", 3)


async def test_pausing_an_agent_skips_what_waits_for_it(house: House, scheduler: Scheduler) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await scheduler.once()
    async with house.db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"status": "paused"})
    assert [run["skip_reason"] for run in await house.ledger()] == ["agent_paused"]


async def test_a_run_now_goes_on_when_its_automation_is_paused(house: House) -> None:
    automation = await house.automation(HOURLY)
    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, automation)
        await automations.pause(conn, house.caller, str(automation))
    assert [run["status"] for run in await house.ledger()] == ["queued"]


async def test_editing_the_schedule_reaches_the_next_fire_and_only_the_new_one_fires(
    house: House, scheduler: Scheduler, clock: Clock
) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    async with house.db.transaction() as conn:
        form = {"cron": "45 6 * * *", "timezone": "Asia/Tokyo"}
        await automations.change(conn, house.caller, str(automation), {}, [form])
    due = await next_fire(house, automation)
    assert (due.astimezone(UTC).hour, due.minute) == (21, 45)
    clock.now = due
    await scheduler.once()
    assert [run["slot"] for run in await house.ledger() if run["skip_reason"] != "missed"] == [due]


async def test_re_enabling_does_not_fire_at_once(house: House, scheduler: Scheduler, clock: Clock) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    for change in (automations.pause, automations.resume):
        async with house.db.transaction() as conn:
            await change(conn, house.caller, str(automation))
    clock.now = datetime.now(UTC)
    await scheduler.once()
    assert [run["skip_reason"] for run in await house.ledger()] == ["paused"]  # what was due before
    assert await next_fire(house, automation) > clock.now


async def test_resuming_keeps_the_anchor(house: House) -> None:
    automation = await house.automation({"every": "7m"})
    anchor = await house.value("SELECT anchor_at FROM triggers")
    for change in (automations.pause, automations.resume):
        async with house.db.transaction() as conn:
            await change(conn, house.caller, str(automation))
    assert await house.value("SELECT anchor_at FROM triggers") == anchor
    assert (await next_fire(house, automation) - anchor) % timedelta(minutes=7) == timedelta()


async def test_a_failed_run_never_ends_the_chain(house: House, scheduler: Scheduler, clock: Clock) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    for _ in range(3):
        await scheduler.once()
        failed = {"status": "failed", "finished_at": from_now(), "error_class": "executor_error"}
        await house.set_runs({"status": "queued"}, **failed)
        clock.advance(hours=1)
    assert [run["status"] for run in await house.ledger()] == ["failed"] * 3
    assert await next_fire(house, automation) == NOON + timedelta(hours=3)


def test_over_59_minutes_is_not_silently_hourly() -> None:
    form = {"mode": "interval", "every": 90, "unit": "minutes"}
    compiled = read_schedule(form, default_timezone="UTC", now=NOON)
    assert compiled.kind == "every"
    assert compiled.schedule.next_after(NOON) == NOON + timedelta(minutes=90)


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "* * * * * *", "61 * * * *", "*/0 * * * *", "0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *"]
)
def test_what_cron_cannot_mean_is_refused_at_once(cron: str) -> None:
    started = time.thread_time()  # of this thread's own: others may be at work on this machine
    with pytest.raises(Invalid) as refused:
        read_schedule({"cron": cron}, default_timezone="UTC", now=NOON)
    assert time.thread_time() - started < 0.05
    assert refused.value.field == "cron"


async def test_equal_timestamps_page_without_loss(house: House, scheduler: Scheduler) -> None:
    for _ in range(7):
        await house.automation(HOURLY, next_fire_at=NOON)
    await scheduler.once()
    assert len({run["queued_at"] for run in await house.runs()}) == 1
    seen, before = [], None
    while True:
        async with house.db.connection() as conn:
            page = await runs.page(conn, house.caller.workspace_id, before=before, limit=2)
        if not page:
            break
        seen += [run["id"] for run in page]
        before = page[-1]["id"]
    assert len(seen) == len(set(seen)) == 7


async def test_deleting_and_restoring_counts_from_now_with_a_new_grant(house: House, scheduler: Scheduler) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON)
    grant = await house.value("SELECT grant_id FROM automations")
    await scheduler.once()
    async with house.db.transaction() as conn:
        await automations.delete(conn, house.caller, str(automation))
    assert await house.value("SELECT revoked_at IS NOT NULL FROM grants WHERE id = %s", grant)
    async with house.db.transaction() as conn:
        await automations.restore(conn, house.caller, str(automation))
    assert await house.value("SELECT grant_id FROM automations") != grant
    assert await next_fire(house, automation) > datetime.now(UTC)
    assert {run["skip_reason"] for run in await house.ledger()} == {"deleted"}


async def test_what_is_restored_runs_its_agent_as_it_stands_now(house: House) -> None:
    automation = await house.automation()
    async with house.db.transaction() as conn:
        await automations.delete(conn, house.caller, str(automation))
        await agents.change(conn, house.caller, "worker-bee", {"config": {"argv": ["false"]}})
        await automations.restore(conn, house.caller, str(automation))
        await running.run_now(conn, house.caller, automation)
    run = await house.run()
    of_run = "SELECT spec FROM revisions WHERE subject_id = %s AND revision = %s"
    spec = await house.value(of_run, run["automation_id"], run["revision"])
    assert spec["agent"]["config"] == {"argv": ["false"]}


async def test_a_run_never_sees_an_edit_made_after_it_fired(house: House, scheduler: Scheduler) -> None:
    automation = await house.automation(HOURLY, next_fire_at=NOON, prompt="Old words.")
    await scheduler.once()
    async with house.db.transaction() as conn:
        await automations.change(conn, house.caller, str(automation), {"prompt": "New words."}, None)
        await agents.change(conn, house.caller, "worker-bee", {"config": {"argv": ["false"]}})
    [run] = await house.ledger()
    spec = await house.value(
        "SELECT spec FROM revisions WHERE subject_id = %s AND revision = %s", automation, run["revision"]
    )
    assert (spec["prompt"], spec["agent"]["config"]) == ("Old words.", {"argv": ["true"]})
    assert await house.value("SELECT revision FROM automations") == 3
