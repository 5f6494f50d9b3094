"""Budgets: set aside when fired, settled at the end, a hard stop while running, and never overspent together."""

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rota.db import accounts as account_rows
from rota.db import budgets, events, runs, spending
from rota.db.listener import RUNS, Listener, Wakes
from rota.db.pool import Database
from rota.executors.command import CommandExecutor
from rota.model.budget import SECONDS
from rota.model.executor import Assignment, Desk
from rota.model.ids import ApprovalId, WorkerId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Parked, Succeeded
from rota.model.run import Claimed
from rota.roster import accounts, agents, automations, running
from rota.runs import budgeting, cancelling, claiming, settling, sweeping
from rota.runs.settling import Result
from rota.scheduler.tick import Scheduler
from rota.trace.record import Recorder
from rota.worker.queues import Queues
from rota.worker.worker import Worker
from support import run_state
from support.house import NOON, Clock, House
from support.run_state import PRESENT, from_now
from support.running_worker import at_work
from support.waiting import until

TEN_OF_HUNDRED = {"per_run": {"tokens": 10}, "per_month": {"tokens": 100}}
ONE_AT_A_TIME = {"per_run": {"tokens": 10}, "per_month": {"tokens": 10}}
WAITING_FOR_A_LOCK = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def spend_nine(assignment: Assignment, desk: Desk) -> Outcome:
    for _ in range(3):
        await desk.usage("tokens", 3)
    return Succeeded()


async def spend_all(assignment: Assignment, desk: Desk) -> Outcome:
    for _ in range(1000):
        await desk.usage("tokens", 4)
    raise AssertionError("nobody stopped it")


def ended(house: House, run_id: Any) -> Any:
    async def check() -> dict[str, Any] | None:
        async with house.db.connection() as conn:
            found = await runs.find(conn, house.caller.workspace_id, run_id)
        assert found
        return found if found["finished_at"] else None

    return check


async def give_account(house: House, budget: str) -> None:
    await house.execute("UPDATE accounts SET budget = %s", budget)


async def purse(house: House) -> tuple[Decimal | float, Decimal | float]:
    """What is spent for good, and what is set aside."""
    spent = (
        "SELECT coalesce((SELECT sum(spent) FROM spending), 0) + coalesce((SELECT sum(settled) FROM reservations), 0)"
    )
    aside = "SELECT coalesce(sum(amount), 0) FROM reservations WHERE settled IS NULL"
    return await house.value(spent), await house.value(aside)


async def test_forty_runs_at_once_never_spend_more_than_their_one_budget(
    database_url: str, house: House, shift: Any, run_now: Any
) -> None:
    await give_account(house, '{"per_run": {"tokens": 10}, "per_month": {"tokens": 100}}')
    errands = [await house.automation(name=f"Errand {number}") for number in range(41)]
    first, *others = errands
    await run_now(first)  # makes the purse
    crowd = Database(database_url, size=20)
    await crowd.open()

    async def start(automation: Any) -> None:
        async with crowd.transaction() as conn:
            await running.run_now(conn, house.caller, automation)

    async def crowded() -> bool:
        return bool(await house.value(WAITING_FOR_A_LOCK) >= 15)

    async with house.db.transaction() as conn:
        await conn.execute("SELECT FROM spending FOR UPDATE")
        starting = [asyncio.create_task(start(each)) for each in others[:39]]
        await until(crowded)
    await asyncio.gather(*starting)
    await crowd.close()
    assert await purse(house) == (0, 100)
    async with shift(spend_nine, places=40):
        ledger = [await until(ended(house, run["id"])) for run in await house.ledger()]
        assert sorted(run["status"] for run in ledger) == ["skipped"] * 30 + ["succeeded"] * 10
        assert {run["skip_reason"] for run in ledger if run["status"] == "skipped"} == {"budget"}
        assert await purse(house) == (90, 0)
        last = await until(ended(house, await run_now(others[39])))  # what the others left over is enough for one more
        assert last["status"] == "succeeded"
        assert (await until(ended(house, await run_now(first))))["skip_reason"] == "budget"
    assert await house.value("SELECT sum(amount) FROM usage WHERE unit = 'tokens'") == 99
    assert await house.value("SELECT count(*) FROM automations WHERE status = 'active'") == 41


async def test_the_first_who_need_a_new_purse_do_not_overspend_it_either(house: House) -> None:
    """It is made by the first of them. Those who wait for that have not locked it yet."""
    await give_account(house, '{"per_run": {"tokens": 10}, "per_month": {"tokens": 20}}')
    first, *others = [await house.automation(name=f"Errand {number}") for number in range(6)]

    async def start(automation: Any) -> None:
        async with house.db.transaction() as conn:
            await running.run_now(conn, house.caller, automation)

    async def all_wait() -> bool:
        return bool(await house.value(WAITING_FOR_A_LOCK) == len(others))

    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, first)
        starting = [asyncio.create_task(start(each)) for each in others]
        await until(all_wait)
    await asyncio.gather(*starting)
    assert await purse(house) == (0, 20)
    assert sorted(run["status"] for run in await house.ledger()) == ["queued"] * 2 + ["skipped"] * 4


async def test_an_agent_that_has_spent_its_budget_is_stopped_and_the_ledger_keeps_what_it_spent(
    house: House, shift: Any, run_now: Any
) -> None:
    run_id = await run_now(await house.automation(budget=TEN_OF_HUNDRED, max_attempts=3))
    async with shift(spend_all):
        run = await until(ended(house, run_id))
    assert (run["status"], run["error_class"], run["attempt"]) == ("failed", "budget_exceeded", 1)
    assert run["error_detail"] == "Spent 12 tokens of its limit of 10 tokens."
    assert run["usage"]["tokens"] == 12
    assert await purse(house) == (12, 0)


async def test_a_cap_for_each_run_needs_no_month_and_counts_all_its_attempts(
    house: House, shift: Any, run_now: Any
) -> None:
    async def spend_and_fail(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.usage("money", 0.2)
        return Failed(ErrorClass.AGENT_ERROR, "Not yet.")

    run_id = await run_now(await house.automation(budget={"per_run": {"money": "0.50"}}, max_attempts=9))
    async with shift(spend_and_fail):

        async def hurried() -> Any:
            await house.set_runs({"status": "queued"}, ready_at=from_now())
            return await ended(house, run_id)()

        run = await until(hurried)
    assert (run["error_class"], run["attempt"]) == ("budget_exceeded", 3)
    assert run["usage"]["money"] == 0.6
    assert await house.value("SELECT count(*) FROM reservations") == 0


@pytest.mark.parametrize("left", [0.05, 0])
async def test_running_time_is_measured_and_ends_with_the_budget(
    house: House, shift: Any, run_now: Any, left: float
) -> None:
    async def dawdle(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.usage(SECONDS, 1_000_000)  # what an agent says of it does not count
        await asyncio.Event().wait()
        raise AssertionError

    budget = {"per_run": {"seconds": 30}, "per_month": {"seconds": 60}}
    run_id = await run_now(await house.automation(budget=budget))
    await house.set_run(budget={"seconds": str(left)})
    async with shift(dawdle):
        run = await until(ended(house, run_id))
    assert (run["error_class"], run["tries"]) == ("budget_exceeded", 1)
    assert left <= run["usage"]["seconds"] < 30
    spent, aside = await purse(house)
    assert (float(spent), aside) == (float(run["usage"]["seconds"]), 0)


async def test_running_time_of_earlier_attempts_counts_too(
    house: House, wakes: Wakes, shift: Any, run_now: Any
) -> None:
    async def dawdle(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.attempt == 1:
            return Failed(ErrorClass.AGENT_ERROR, "Not now.")
        await asyncio.Event().wait()
        raise AssertionError

    run_id = await run_now(await house.automation(budget={"per_run": {"seconds": 3600}}, max_attempts=2))
    async with shift(dawdle):
        await until(lambda: house.value("SELECT count(*) = 1 FROM usage WHERE unit = 'seconds'"))
        await until(lambda: house.runs(status="queued"))
        await house.execute("UPDATE usage SET amount = 3600 WHERE unit = 'seconds'")
        await house.set_run(ready_at=from_now())
        wakes.send(RUNS)
        run = await until(ended(house, run_id))
    assert (run["error_class"], run["attempt"]) == ("budget_exceeded", 2)


async def cancelled(house: House, run_id: Any, automation: Any) -> None:
    async with house.db.transaction() as conn:
        await cancelling.cancel(conn, house.caller.workspace_id, run_id)


async def paused(house: House, run_id: Any, automation: Any) -> None:
    await house.set_run(trigger_id=uuid4())
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, str(automation))


async def lost(house: House, run_id: Any, automation: Any) -> None:
    await house.set_run(**run_state.lost(max_rescues=1))
    async with house.db.transaction() as conn:
        assert await sweeping.rescue(conn, 10) == 1
    assert await purse(house) == (0, 10)  # it is queued again, and may still spend
    await house.set_run(**run_state.lost(attempt=2))
    async with house.db.transaction() as conn:
        await sweeping.rescue(conn, 10)


async def stuck(house: House, run_id: Any, automation: Any) -> None:
    await house.set_run(ready_at=from_now(days=-1))
    async with house.db.transaction() as conn:
        await sweeping.end_stuck(conn, 10)


@pytest.mark.parametrize("end", [cancelled, paused, lost, stuck])
async def test_whatever_ends_a_run_gives_back_what_it_did_not_spend(house: House, run_now: Any, end: Any) -> None:
    automation = await house.automation(budget=ONE_AT_A_TIME, overlap="allow")
    run_id = await run_now(automation)
    assert await purse(house) == (0, 10)
    await end(house, run_id, automation)
    assert (await house.ledger())[0]["finished_at"]
    assert await purse(house) == (0, 0)
    await run_now(automation)
    assert await purse(house) == (0, 10)


async def test_a_slot_for_which_nothing_is_left_is_skipped_and_the_schedule_goes_on(
    house: House, wakes: Wakes, clock: Clock
) -> None:
    due: dict[str, Any] = {"next_fire_at": NOON, "schedule": {"cron": "0 * * * *", "timezone": "UTC", "max_fires": 2}}
    automation = await house.automation(budget=ONE_AT_A_TIME, overlap="allow", **due)
    scheduler = Scheduler(house.db, wakes, clock=clock)
    await scheduler.once()
    clock.advance(hours=1)
    await scheduler.once()
    first, second = await house.ledger(automation)
    assert (first["status"], first["skip_reason"]) == ("queued", None)
    assert (second["status"], second["skip_reason"], second["session_id"]) == ("skipped", "budget", None)
    assert await house.value("SELECT (next_fire_at, fires)::text FROM triggers") == '("2026-06-01 14:00:00+00",1)'
    assert await house.value("SELECT status FROM automations") == "active"


async def test_a_slot_that_has_its_run_sets_nothing_aside_again(house: House, wakes: Wakes, clock: Clock) -> None:
    due: dict[str, Any] = {"next_fire_at": NOON, "schedule": {"cron": "0 * * * *", "timezone": "UTC"}}
    await house.automation(budget=TEN_OF_HUNDRED, overlap="allow", **due)
    for _ in range(2):
        await Scheduler(house.db, wakes, clock=clock).once()
        await house.execute("UPDATE triggers SET next_fire_at = %s", NOON)
    assert len(await house.ledger()) == 1
    assert await purse(house) == (0, 10)


async def test_a_run_that_cannot_start_for_want_of_budget_replaces_nothing(
    house: House, wakes: Wakes, clock: Clock
) -> None:
    due: dict[str, Any] = {"next_fire_at": NOON, "schedule": {"cron": "0 * * * *", "timezone": "UTC"}}
    await house.automation(budget=ONE_AT_A_TIME, overlap="replace", **due)
    for _ in range(2):
        await Scheduler(house.db, wakes, clock=clock).once()
        clock.advance(hours=1)
    assert [run["status"] for run in await house.ledger()] == ["queued", "skipped"]
    assert await house.has_runs(0, cancel_requested_at=PRESENT)


async def test_without_any_budget_nothing_is_asked(
    house: House, wakes: Wakes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgeting, "reserve", None)
    await house.automation(next_fire_at=NOON, schedule={"cron": "0 * * * *", "timezone": "UTC"})
    await Scheduler(house.db, wakes, clock=clock).once()
    assert len(await house.ledger()) == 1


async def test_a_new_budget_counts_what_the_month_has_spent_already(house: House, shift: Any, run_now: Any) -> None:
    automation = await house.automation()
    async with shift(spend_nine):
        await until(ended(house, await run_now(automation)))
    async with house.db.transaction() as conn:
        await automations.change(conn, house.caller, str(automation), {"budget": ONE_AT_A_TIME}, None)
    await run_now(automation)
    assert [run["skip_reason"] for run in await house.ledger()] == [None, "budget"]
    last_month = {"per_run": {"tokens": 10}, "per_month": {"tokens": 19}}
    async with house.db.transaction() as conn:
        await automations.change(conn, house.caller, str(automation), {"budget": last_month}, None)
    await run_now(automation)
    assert await purse(house) == (9, 10)


async def test_another_months_spending_does_not_count(house: House, run_now: Any) -> None:
    automation = await house.automation(budget=ONE_AT_A_TIME)
    await house.execute(
        "INSERT INTO spending SELECT workspace_id, id, date_trunc('month', now() - interval '40 days'), 'tokens', 10, 10"
        " FROM automations"
    )
    await run_now(automation)
    assert [run["status"] for run in await house.ledger(automation)] == ["queued"]


async def test_somebody_is_told_once_when_most_of_it_is_spent(
    house: House, shift: Any, run_now: Any, caplog: pytest.LogCaptureFixture
) -> None:
    automation = await house.automation(budget={"per_run": {"tokens": 10}, "per_month": {"tokens": 30}})
    async with shift(spend_nine):
        for told in (0, 0, 1):
            await until(ended(house, await run_now(automation)))
            assert [record.message for record in caplog.records].count("budget.low") == told
    await run_now(automation)
    assert await house.value("SELECT count(*) FROM spending WHERE warned_at IS NOT NULL") == 1
    assert await house.value("SELECT count(*) FROM notifications WHERE kind = 'budget_low'") == 1
    assert [record.message for record in caplog.records].count("budget.low") == 1


async def test_who_changes_a_budget_and_who_fires_do_not_miss_each_other(house: House, run_now: Any) -> None:
    """The purse is gone when the one who waited for it gets it: it is made anew."""
    automation = await house.automation(budget=TEN_OF_HUNDRED, overlap="allow")
    await run_now(automation)
    other = await house.automation(name="Other")
    await give_account(house, '{"per_run": {"tokens": 10}, "per_month": {"tokens": 20}}')
    await run_now(other)

    async def waiting() -> bool:
        return bool(await house.value(WAITING_FOR_A_LOCK))

    async with house.db.transaction() as conn:
        account = await house.value("SELECT id FROM accounts")
        await spending.forget(conn, house.caller.workspace_id, account)
        third = await house.automation(name="Third")
        late = asyncio.create_task(run_now(third))
        await until(waiting)
    await late
    assert [run["status"] for run in await house.ledger(third)] == ["queued"]
    assert await house.value("SELECT count(*) FROM reservations WHERE holder_id = %s", account) == 2


# ── A cap is exceeded by at most one report ──────────────────────────────────────────────────────────────────────

REPORT = json.dumps({"type": "usage", "unit": "tokens", "amount": 45})
PRINT_EIGHT = f"import time; print(({REPORT!r} + chr(10)) * 8, end='', flush=True); time.sleep(60)"


async def claim_one(house: House) -> Claimed:
    """The next run, as a worker takes it."""
    async with house.db.transaction() as conn:
        queues = Queues(["default"], ["command"])
        await queues.look(conn)
        ready = await queues.to_read(conn, 1)
        [run] = await claiming.claim(conn, WorkerId("w"), queues=ready, places=1, lease=timedelta(minutes=1))
    return run


async def of_account(house: House) -> Any:
    async with house.db.connection() as conn:
        found = await account_rows.page(conn, house.caller.workspace_id, before=None, limit=1)
        [account] = await accounts.with_month(conn, house.caller, found)
    return account["spending"]["tokens"]["spent"]


async def start_all(house: House, count: int, **values: Any) -> Sequence[Any]:
    errands = [await house.automation(name=f"Errand {number}", **values) for number in range(count)]
    async with house.db.transaction() as conn:
        return [await running.run_now(conn, house.caller, each) for each in errands]


@pytest.mark.parametrize(("count", "spent"), [(1, 90), (2, 135)])
async def test_a_program_that_prints_many_reports_at_once_exceeds_its_caps_by_one(
    house: House, wakes: Wakes, listener: Listener, tmp_path: Path, count: int, spent: int
) -> None:
    """One run reaches its own cap with the second report; two of them reach the account's with the third."""
    async with house.db.transaction() as conn:
        config = {"argv": [sys.executable, "-c", PRINT_EIGHT]}
        await agents.create(conn, house.caller, {"name": "Printer", "executor": "command", "config": config})
    await give_account(house, '{"per_run": {"tokens": 50}, "per_month": {"tokens": 120}}')
    started = await start_all(house, count, agent="printer")
    recorder = Recorder(house.db, wakes)
    executors = {"command": CommandExecutor(grace=timedelta(seconds=1))}
    worker = Worker(house.db, wakes, recorder, executors, url="http://rota.test", home=tmp_path, places=5)
    async with at_work(worker, recorder, listener):
        found = [await until(ended(house, run_id)) for run_id in started]
    assert {(run["status"], run["error_class"]) for run in found} == {("failed", "budget_exceeded")}
    assert sum(run["usage"]["tokens"] for run in found) == spent
    assert await of_account(house) == spent


async def test_runs_of_one_account_that_report_at_the_same_moment_exceed_its_cap_by_one_report(
    database_url: str, house: House, wakes: Wakes
) -> None:
    """Provoked: somebody holds the month while eight recorders come with a report each. Each run alone could go on."""
    await give_account(house, '{"per_run": {"tokens": 50}, "per_month": {"tokens": 400}}')
    await start_all(house, 8)
    claimed = [await claim_one(house) for _ in range(8)]
    await house.execute("UPDATE spending SET spent = 340")  # as if others had spent most of it
    crowd = Database(database_url, size=8)
    await crowd.open()
    desks = [Recorder(crowd, wakes).desk(run) for run in claimed]
    stopped: list[str] = []
    for desk in desks:
        desk.over_budget = stopped.append

    async def all_wait() -> bool:
        return bool(await house.value(WAITING_FOR_A_LOCK) == 8)

    async with house.db.transaction() as conn:
        await conn.execute("SELECT FROM spending FOR UPDATE")
        reporting = [asyncio.create_task(desk.usage("tokens", 40)) for desk in desks]
        await until(all_wait)
    await asyncio.gather(*reporting)
    assert await house.value("SELECT sum(amount) FROM usage") == 80
    assert set(stopped) == {"Its account spent 420 tokens of its limit of 400 tokens for the month."}
    assert await house.has_runs(7, cancel_reason="budget_exceeded")
    for desk in desks:  # the one that was below the cap when it reported goes on until its next report
        await desk.usage("tokens", 1)
    assert len(stopped) == 8
    assert await house.value("SELECT sum(amount) FROM usage") == 80
    await crowd.close()


async def test_two_tasks_of_one_agent_that_report_at_once_are_judged_one_by_one(house: House, wakes: Wakes) -> None:
    await start_all(house, 1, budget={"per_run": {"tokens": 10}})
    desk = Recorder(house.db, wakes).desk(await claim_one(house))
    await asyncio.gather(*(desk.usage("tokens", 8) for _ in range(5)))
    assert await house.value("SELECT sum(amount) FROM usage") == 16


async def test_what_a_stopped_run_reports_in_another_unit_does_not_count_either(house: House, wakes: Wakes) -> None:
    await start_all(house, 1, budget={"per_run": {"tokens": 10}})
    desk = Recorder(house.db, wakes).desk(await claim_one(house))
    for unit in ("tokens", "money", "pages"):
        await desk.usage(unit, 10)
    await desk.ran(timedelta(seconds=3))
    await desk.finish()
    assert await house.value("SELECT string_agg(unit, ' ' ORDER BY unit) FROM usage") == "seconds tokens"


async def test_a_run_whose_worker_dies_as_it_reaches_its_cap_fails_for_it(house: House, wakes: Wakes) -> None:
    await start_all(house, 1, budget=TEN_OF_HUNDRED, max_attempts=3)
    await Recorder(house.db, wakes).desk(await claim_one(house)).usage("tokens", 12)
    await house.set_run(lease_until=from_now())
    async with house.db.transaction() as conn:
        assert await sweeping.rescue(conn, 10) == 1
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("failed", "budget_exceeded")
    assert await purse(house) == (12, 0)


@pytest.mark.parametrize(
    "outcome", [Succeeded("Done."), Parked(ApprovalId(new_id())), Failed(ErrorClass.AGENT_ERROR, "x")]
)
async def test_a_run_that_reached_its_cap_fails_however_its_agent_ended(
    house: House, db: Database, wakes: Wakes, outcome: Outcome
) -> None:
    """Its last report reached the cap, and it came to its end before it was stopped."""
    await start_all(house, 1, budget=TEN_OF_HUNDRED, max_attempts=3)
    run = await claim_one(house)
    await Recorder(db, wakes).desk(run).usage("tokens", 12)
    async with db.transaction() as conn:
        await settling.settle(conn, [Result(run, outcome)])
    [found] = await house.ledger()
    assert (found["status"], found["error_class"]) == ("failed", "budget_exceeded")
    assert await purse(house) == (12, 0)


async def test_a_run_without_a_budget_pays_nothing_for_those_that_have_one(
    house: House, wakes: Wakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of the database that was not asked before, and others of the run are not kept out."""
    monkeypatch.setattr(budgets, "judge_charges", None)
    monkeypatch.setattr(events, "HOLD_ALONE", None)
    await start_all(house, 1)
    desk = Recorder(house.db, wakes).desk(await claim_one(house))
    await desk.usage("tokens", 12)
    await desk.finish()
    assert await house.value("SELECT amount FROM usage") == 12
