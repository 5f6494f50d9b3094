"""Promises 1 and 2 under replicas, crashes and edits, each provoked for real."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from rota.db import triggers
from rota.db.listener import Wakes
from rota.db.pool import Connection, Database
from rota.model.ids import AutomationId
from rota.roster import automations, running
from rota.runs import sweeping
from rota.scheduler.tick import CONTENDED_SECONDS, Scheduler
from support import scheduler_process
from support.house import NOON, Clock, House
from support.run_state import find_runs
from support.waiting import until

REPLICA = scheduler_process.__file__
ONCE = {"at": "2999-01-01T00:00:00Z"}  # a slot that a test puts somewhere else, and no other
HOURLY = {"cron": "0 * * * *", "timezone": "UTC"}
FAILPOINTS = ("scheduler.locked", "scheduler.started", "scheduler.written", "scheduler.committed")

FILL = """
WITH model AS (SELECT * FROM automations LIMIT 1), made AS (
    INSERT INTO automations (workspace_id, id, slug, name, agent_id, owner_id, grant_id, prompt, overlap)
    SELECT workspace_id, gen_random_uuid(), 'a' || n, 'A', agent_id, owner_id, grant_id, 'p', 'allow'
      FROM model, generate_series(1, %(count)s) n
 RETURNING workspace_id, id)
INSERT INTO triggers (workspace_id, id, automation_id, kind, cron, timezone, anchor_at, next_fire_at)
SELECT workspace_id, gen_random_uuid(), id, 'cron', '* * * * *', 'UTC', %(at)s, %(at)s FROM made
"""

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
AT_THE_GATE = "(SELECT pg_advisory_xact_lock(7)::text) IS NOT NULL"


def replica(url: str, start: float, factor: float, minutes: float, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, REPLICA, url, str(start), str(factor), str(minutes)]
    return subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE)


async def fill(house: House, count: int) -> None:
    await house.automation()
    async with house.db.connection() as conn:
        await conn.execute(FILL, {"count": count, "at": NOON})


async def ended(processes: list[subprocess.Popen[bytes]]) -> tuple[list[int], str]:
    """How they ended, and all that they said about it."""
    said = await asyncio.gather(*(asyncio.to_thread(each.communicate, timeout=90) for each in processes))
    return [each.returncode for each in processes], b"".join(errors for _, errors in said).decode()


async def test_eight_replicas_fire_every_slot_once_and_lose_none(house: House, database_url: str) -> None:
    await fill(house, 500)
    start = time.time() + 4.0
    processes = [replica(database_url, start, factor=60, minutes=5) for _ in range(8)]
    codes, said = await ended(processes)
    assert codes == [0] * 8, said[-2000:]
    assert "deadlock" not in said
    runs = await house.runs()
    assert len({(run["trigger_id"], run["slot"]) for run in runs}) == len(runs)
    due = "SELECT sum(extract(epoch FROM next_fire_at - %s) / 60)::integer FROM triggers"
    accounted = sum(1 + run["missed_count"] for run in runs)
    assert accounted == await house.value(due, NOON)
    assert accounted >= 500 * 5


@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_a_scheduler_killed_at_any_point_of_a_pass_leaves_every_slot_accounted_for(
    house: House, database_url: str, failpoint: str, db: Database, wakes: Wakes
) -> None:
    await fill(house, 50)
    killed = replica(database_url, time.time(), factor=1, minutes=1, ROTA_TEST_FAILPOINT=failpoint)
    assert await ended([killed]) == ([-signal.SIGKILL], "")
    written = await house.runs()
    assert len(written) == (50 if failpoint == "scheduler.committed" else 0)  # all of the batch or none of it
    await until(lambda: _nobody_holds_a_lock(house))
    await Scheduler(db, wakes, clock=Clock(NOON + timedelta(seconds=59))).once()
    assert await house.has_runs(50)
    assert len({run["trigger_id"] for run in await house.runs(slot=NOON)}) == 50


async def _nobody_holds_a_lock(house: House) -> bool:
    query = """SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle in transaction'"""
    return bool(await house.value(query) == 0)


async def test_a_trigger_that_another_replica_holds_is_passed_over_and_the_others_fire(
    house: House, db: Database, wakes: Wakes, clock: Clock
) -> None:
    """The row lock alone: without SKIP LOCKED this would wait for ever, without FOR UPDATE it would fire both."""
    held = await house.automation(HOURLY, next_fire_at=NOON)
    free = await house.automation(HOURLY, next_fire_at=NOON)
    async with db.transaction() as other:
        await other.execute("SELECT FROM triggers WHERE automation_id = %s FOR UPDATE", [held])
        async with asyncio.timeout(10):
            await Scheduler(db, wakes, clock=clock).once()
        assert [run["automation_id"] for run in await house.ledger()] == [free]
    await Scheduler(db, wakes, clock=clock).once()
    assert len(await house.ledger(held)) == 1


async def test_of_two_triggers_of_one_automation_no_other_replica_fires_the_second_meanwhile(
    house: House, db: Database, clock: Clock
) -> None:
    """Two that looked at the same time would both find that nothing waits. Nor does the other wait for the first."""
    await house.automation(triggers=[HOURLY, {"cron": "*/30 * * * *", "timezone": "UTC"}], next_fire_at=NOON)
    async with db.transaction() as first, db.transaction() as second:
        assert len(await triggers.lock_due(first, clock(), 1)) == 1
        async with asyncio.timeout(10):
            assert await triggers.lock_due(second, clock(), 10) == []


async def test_a_pass_that_postgresql_ends_for_anothers_sake_looks_again_at_once(
    house: House, db: Database, wakes: Wakes, clock: Clock
) -> None:
    """Provoked: it has the automation and waits for a run; who has that run then waits for the automation."""
    automation = AutomationId(await house.automation(HOURLY, next_fire_at=NOON, overlap="queue_all"))
    async with db.transaction() as conn:
        await running.run_now(conn, house.caller, automation)
    scheduler = Scheduler(db, wakes, clock=clock)
    async with db.transaction() as other:
        await other.execute("SET LOCAL deadlock_timeout = '1min'")  # so that it is the scheduler that finds out
        await find_runs(other, "FOR UPDATE")
        firing = asyncio.create_task(scheduler.once())
        await until(lambda: house.value(f"SELECT ({WAITS}) = 1"))
        await other.execute("SELECT FROM automations FOR UPDATE")
    assert await firing == CONTENDED_SECONDS
    await scheduler.once()
    assert [(run["source"], run["slot"]) for run in await house.ledger()] == [("run_now", None), ("schedule", NOON)]


@pytest.mark.parametrize("stopped", ["status = 'paused'", "deleted_at = now()"])
async def test_what_is_paused_or_deleted_does_not_fire_whatever_its_trigger_says(
    house: House, db: Database, clock: Clock, stopped: str
) -> None:
    await house.automation(HOURLY, next_fire_at=NOON)
    await house.execute(f"UPDATE automations SET {stopped}")
    async with db.transaction() as conn:
        assert await triggers.lock_due(conn, clock(), 10) == []


@pytest.mark.parametrize("change", ["pause", "delete", "edit"])
async def test_a_change_while_its_slot_is_being_fired_waits_and_then_holds(
    house: House, db: Database, wakes: Wakes, clock: Clock, change: str
) -> None:
    """The scheduler has locked and written; the change comes in between and must not be lost, nor the slot."""
    automation = await house.automation(ONCE, next_fire_at=NOON)

    async def apply() -> None:
        async with db.transaction() as conn:
            match change:
                case "pause":
                    await automations.pause(conn, house.caller, str(automation))
                case "delete":
                    await automations.delete(conn, house.caller, str(automation))
                case _:
                    await automations.change(conn, house.caller, str(automation), {}, [{"cron": "30 * * * *"}])

    scheduler = Scheduler(db, wakes, clock=clock)
    async with db.connection() as conn, conn.transaction():
        await scheduler_batch(scheduler, conn)
        changing = asyncio.create_task(apply())
        await until(lambda: house.value(WAITS))
    await changing
    clock.advance(hours=1)
    await scheduler.once()
    [run] = await house.ledger()
    assert run["slot"] == NOON
    expected = {"pause": ("skipped", "paused"), "delete": ("skipped", "deleted"), "edit": ("queued", None)}
    assert (run["status"], run["skip_reason"]) == expected[change]


async def scheduler_batch(scheduler: Scheduler, conn: Connection) -> None:
    """One batch inside a transaction that the test ends."""
    assert await scheduler.fire_batch(conn) == 1


async def pause(house: House, conn: Connection, automation: str, _: UUID) -> None:
    await automations.pause(conn, house.caller, automation)


async def delete(house: House, conn: Connection, automation: str, _: UUID) -> None:
    await automations.delete(conn, house.caller, automation)


async def save(house: House, conn: Connection, automation: str, _: UUID) -> None:
    await automations.change(conn, house.caller, automation, {}, [ONCE])


async def change_trigger(house: House, conn: Connection, automation: str, trigger: UUID) -> None:
    await automations.change_trigger(conn, house.caller, automation, trigger, {"enabled": False})


async def remove_trigger(house: House, conn: Connection, automation: str, trigger: UUID) -> None:
    await automations.remove_trigger(conn, house.caller, automation, trigger)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(pause, "paused"), (delete, "deleted"), (save, "missed"), (change_trigger, "missed"), (remove_trigger, "missed")],
)
async def test_slots_that_were_due_when_a_change_came_first_are_in_the_ledger_and_do_not_run(
    house: House, db: Database, wakes: Wakes, change: Any, reason: str
) -> None:
    """Nobody fired for a while, and then somebody stops it: the slots before that were due."""
    since = await house.value("SELECT now() - interval '3 h 30 min'")
    automation = await house.automation({"every": "1h"}, next_fire_at=since)
    trigger = await house.value("SELECT id FROM triggers")
    async with db.transaction() as conn:
        await change(house, conn, str(automation), trigger)
        await Scheduler(db, wakes).once()  # the trigger is locked: nothing fires, nothing waits
    await Scheduler(db, wakes).once()
    [run] = await house.ledger()
    assert (run["status"], run["skip_reason"], run["slot"]) == ("skipped", reason, since + timedelta(hours=3))
    assert run["missed"]["count"] == 3


async def test_slots_that_were_due_when_failures_paused_it_are_in_the_ledger(house: House, db: Database) -> None:
    due_at = await house.value("SELECT now() - interval '30 min'")
    automation = await house.automation({"every": "1h"}, next_fire_at=due_at, pause_after_failures=1)
    async with db.transaction() as conn:
        failing = await running.run_now(conn, house.caller, AutomationId(automation))
    run = await house.run(failing)
    await house.set_run(failing, ready_at=run["ready_at"] - run["start_within"])
    async with db.transaction() as conn:
        await sweeping.end_stuck(conn, 10)
    first, second = await house.ledger()
    assert (first["error_class"], second["skip_reason"], second["slot"]) == ("stuck", "paused", due_at)


async def test_queue_one_sees_a_run_now_that_was_committed_while_it_took_its_locks(
    house: House, wakes: Wakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at what is due is held between its beginning and its locks, as a busy database would."""
    automation_id = AutomationId(await house.automation(HOURLY, next_fire_at=NOON, overlap="queue_one"))
    await house.running_run(automation_id)
    monkeypatch.setattr(triggers, "DUE", triggers.DUE.replace("WHERE next", f"WHERE {AT_THE_GATE} AND next"))
    async with house.db.connection() as gate:
        await gate.execute("SELECT pg_advisory_lock(7)")
        firing = asyncio.create_task(Scheduler(house.db, wakes, clock=Clock()).once())
        await until(
            lambda: house.value("SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        )
        async with house.db.transaction() as conn:
            await running.run_now(conn, house.caller, automation_id)
        await gate.execute("SELECT pg_advisory_unlock(7)")
    await firing
    assert [run["skip_reason"] for run in await house.ledger()] == [None, None, "prior_in_flight"]


async def test_a_change_that_waited_for_its_slot_to_be_fired_counts_from_then(
    house: House, db: Database, wakes: Wakes
) -> None:
    """Its transaction began before the slot and got its turn behind the scheduler."""
    automation = await house.automation({"at": "2999-01-01T00:00:00Z"})
    trigger = await house.value("SELECT id FROM triggers")
    async with db.transaction() as conn:
        await conn.execute("SELECT now()")
        await house.execute("UPDATE triggers SET at = statement_timestamp(), next_fire_at = statement_timestamp()")
        await Scheduler(db, wakes).once()
        await automations.change_trigger(conn, house.caller, str(automation), trigger, {"overlap": "allow"})
    assert await house.value("SELECT next_fire_at FROM triggers") is None, "its slot has its run"
    assert await house.value("SELECT fires FROM triggers") == 1


@pytest.mark.parametrize(("change", "reason"), [(pause, "paused"), (delete, "deleted"), (remove_trigger, "missed")])
async def test_a_slot_that_came_while_a_change_waited_for_its_turn_is_in_the_ledger(
    house: House, db: Database, change: Any, reason: str
) -> None:
    automation = await house.automation({"every": "1h"})
    trigger = await house.value("SELECT id FROM triggers")
    async with db.transaction() as conn:
        await conn.execute("SELECT now()")
        await house.execute("UPDATE triggers SET next_fire_at = clock_timestamp()")
        await change(house, conn, str(automation), trigger)
    assert [run["skip_reason"] for run in await house.ledger()] == [reason]
