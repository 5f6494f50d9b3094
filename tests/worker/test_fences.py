"""Each fence by itself: what is refused although nobody else has taken the run yet, and who may not end unseen."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from rota.db import aftermath, attempts, budgets, checkpoints, events, run_status
from rota.db.listener import RUNS, Wakes
from rota.db.pool import Connection, Database
from rota.db.usage import Charge
from rota.model.approval import APPROVE_OR_REFUSE, Question
from rota.model.executor import Assignment, Desk
from rota.model.ids import WorkerId
from rota.model.outcome import ErrorClass, Failed, Outcome, Parked, Succeeded
from rota.model.run import Claimed
from rota.roster import agents, automations, running
from rota.runs import cancelling, claiming, parking, settling, sweeping
from rota.runs.settling import Result
from rota.scheduler.inbound import publish_event
from rota.sessions import approvals
from rota.timeouts import STOP_AT
from rota.worker.queues import Queues
from rota.worker.worker import MOST_AT_ONCE, Worker
from support import run_state
from support.house import House
from support.run_state import FromNow, from_now
from support.waiting import until

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
ASK = """
INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, status, expires_at)
VALUES (%s, gen_random_uuid(), %s, %s, 1, 'May I?', '[]', 'pending', now() + interval '1 h')
"""
ANSWER = """
UPDATE approvals SET status = 'approved', option_id = 'yes', answered_at = now()
 WHERE id = (SELECT id FROM approvals WHERE status = 'pending' LIMIT 1)
"""
LOSSES: list[dict[str, Any]] = [{"lease_until": from_now(seconds=-1)}, {"attempt": 2}, {"status": "queued"}]
LOSS_IDS = ["expired", "rescued", "queued"]
QUESTION = Question("May I?", APPROVE_OR_REFUSE)
REVOKED = "SELECT g.revoked_at IS NOT NULL FROM grants g JOIN automations a ON a.grant_id = g.id"


async def ask_each(house: House) -> None:
    """A question of each run, written beside all that asks otherwise."""
    for run in await house.runs():
        await house.execute(ASK, run["workspace_id"], run["id"], run["session_id"])


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


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
async def test_words_are_refused_once_the_lease_is_over_or_gone(
    house: House, db: Database, claimed: Claimed, loss: dict[str, Any]
) -> None:
    await house.set_run(**loss)
    async with db.transaction() as conn:
        assert await events.hold(conn, [(claimed.workspace_id, claimed.id, claimed.attempt)]) == set()


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
async def test_an_outcome_is_refused_once_the_lease_is_over_or_gone(
    house: House, db: Database, claimed: Claimed, loss: dict[str, Any]
) -> None:
    await house.set_run(**loss)
    async with db.transaction() as conn:
        assert not await settling.settle(conn, [Result(claimed, Succeeded())])
    assert (await house.run())["status"] != "succeeded"


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
async def test_a_lease_is_not_renewed_once_it_is_over_or_gone(
    house: House, db: Database, claimed: Claimed, loss: dict[str, Any]
) -> None:
    await house.set_run(**loss)
    before = (await house.run())["lease_until"]
    async with db.transaction() as conn:
        key = (claimed.workspace_id, claimed.id, claimed.attempt)
        assert await attempts.renew(conn, [key], timedelta(minutes=5)) == {}
    assert (await house.run())["lease_until"] == before


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
async def test_a_checkpoint_is_refused_once_the_lease_is_over_or_gone(
    house: House, db: Database, claimed: Claimed, loss: dict[str, Any]
) -> None:
    key = (claimed.workspace_id, claimed.id, claimed.attempt)
    await house.set_run(**loss)
    async with db.transaction() as conn:
        assert not await checkpoints.store(conn, *key, b"after")
    assert await house.value("SELECT count(*) FROM checkpoints") == 0


@pytest.mark.parametrize(("source", "thread"), [("run_now", "session_id"), ("task", "id")])
async def test_a_session_has_one_checkpoint_and_each_of_its_tasks_its_own(
    house: House, db: Database, claimed: Claimed, source: str, thread: str
) -> None:
    """And nobody takes the run away while one is being stored."""
    await house.set_run(source=source)
    async with db.transaction() as conn:
        assert await checkpoints.store(conn, claimed.workspace_id, claimed.id, claimed.attempt, b"here")
        taking = asyncio.create_task(house.set_run(attempt=2))
        await until(lambda: house.value(WAITS))
    await taking
    assert await house.value("SELECT thread FROM checkpoints") == getattr(claimed, thread)


@pytest.mark.parametrize("ended", ["revoked_at", "expires_at"])
async def test_a_renewal_asks_whose_grant_has_ended_to_stop(
    house: House, db: Database, claimed: Claimed, ended: str
) -> None:
    await house.execute(f"UPDATE grants SET {ended} = now()")
    async with db.transaction() as conn:
        key = (claimed.workspace_id, claimed.id, claimed.attempt)
        assert await attempts.renew(conn, [key], timedelta(minutes=1)) == {claimed.id: True}


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


async def test_a_rescue_leaves_alone_whose_renewal_is_being_written_and_takes_back_the_others(
    house: House, db: Database, run_now: Any
) -> None:
    """Provoked: what is committed is a lease that is over. To wait for the one would leave all others lost."""
    for _ in range(2):
        await run_now(await house.automation())
    async with db.transaction() as conn:
        renewed, lost = await claim_one(conn), await claim_one(conn)
    await house.set_runs(lease_until=from_now(seconds=-1))
    async with db.transaction() as renewing:
        await run_state.change_runs(renewing, {"id": renewed.id}, {"lease_until": from_now(minutes=1)})
        async with asyncio.timeout(10), db.transaction() as conn:
            assert await sweeping.rescue(conn, 10) == 1
    assert (await house.run(status="queued"))["id"] == lost.id


async def test_nobody_can_take_a_run_away_while_its_words_are_being_written(
    house: House, db: Database, claimed: Claimed
) -> None:
    async with db.transaction() as writing:
        await events.hold(writing, [(claimed.workspace_id, claimed.id, claimed.attempt)])
        taking = asyncio.create_task(house.set_run(attempt=2))
        await until(lambda: house.value(WAITS))
    await taking


async def test_nobody_can_take_a_run_away_while_its_question_is_being_written(
    house: House, db: Database, claimed: Claimed
) -> None:
    async with db.transaction() as asking:
        key = (claimed.workspace_id, claimed.id, claimed.attempt)
        await approvals.ask(asking, *key, QUESTION, keeps_process=False)
        taking = asyncio.create_task(house.set_run(attempt=2))
        await until(lambda: house.value(WAITS))
    await taking


async def test_an_attempt_that_asks_the_same_twice_asks_two_questions(
    house: House, db: Database, claimed: Claimed
) -> None:
    """Only a later attempt takes over what was asked without a key."""
    key = (claimed.workspace_id, claimed.id)
    async with db.transaction() as conn:
        first, second = [await approvals.ask(conn, *key, 1, QUESTION, keeps_process=False) for _ in range(2)]
        assert first.id != second.id
        await run_state.change_runs(conn, {}, {"attempt": 2})
        assert (await approvals.ask(conn, *key, 2, QUESTION, keeps_process=False)).id == second.id


async def test_a_question_that_is_just_being_asked_again_does_not_expire_beside_its_run(
    house: House, db: Database, claimed: Claimed
) -> None:
    """Provoked: or the run would wait for an answer that nobody can give, and nothing would end it."""
    async with db.transaction() as conn:
        await approvals.ask(conn, claimed.workspace_id, claimed.id, 1, QUESTION, keeps_process=False)
    await house.execute("UPDATE approvals SET expires_at = now()")
    await house.set_run(attempt=2)
    async with db.transaction() as asking:
        await approvals.ask(asking, claimed.workspace_id, claimed.id, 2, QUESTION, keeps_process=True)
        async with asyncio.timeout(10), db.transaction() as conn:
            assert await parking.expire(conn, 10) == ([], [])
    async with db.transaction() as conn:
        assert len((await parking.expire(conn, 10)).ended) == 1


@pytest.mark.parametrize(
    ("closed", "error"),
    [
        ("UPDATE approvals SET status = 'expired', answered_at = now()", "approval_expired"),
        ("UPDATE approvals SET status = 'cancelled', answered_at = now()", "executor_error"),
        ("DELETE FROM approvals", "executor_error"),
    ],
)
async def test_a_run_is_not_parked_for_an_answer_that_nobody_can_give_any_more(
    house: House, db: Database, claimed: Claimed, closed: str, error: str
) -> None:
    async with db.transaction() as conn:
        asked = await approvals.ask(conn, claimed.workspace_id, claimed.id, 1, QUESTION, keeps_process=False)
        await conn.execute(closed.encode())
        await settling.settle(conn, [Result(claimed, Parked(asked.id))])
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("failed", error)


async def test_a_lost_run_that_was_to_be_cancelled_is_cancelled_also_if_it_may_not_be_rescued(
    house: House, db: Database, claimed: Claimed
) -> None:
    async with db.transaction() as conn:
        await cancelling.cancel(conn, claimed.workspace_id, claimed.id)
        await run_state.change_runs(conn, {}, {"lease_until": from_now(seconds=-1), "max_rescues": 0})
        assert await sweeping.rescue(conn, 10) == 1
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("cancelled", "cancelled_by_user")


async def test_of_many_questions_that_expire_none_does_before_its_run(house: House, db: Database, run_now: Any) -> None:
    """A sweep takes so many runs: a run whose question is closed before would wait for ever."""
    for _ in range(2):
        await run_now(await house.automation())
    await house.set_runs(status="awaiting_approval", attempt=1, started_at=from_now())
    await ask_each(house)
    for seconds, run in enumerate(await house.runs(), 1):
        expire = "UPDATE approvals SET expires_at = now() - %s WHERE run_id = %s"
        await house.execute(expire, timedelta(seconds=seconds), run["id"])
    for ended in (1, 2):
        async with db.transaction() as conn:
            await parking.expire(conn, 1)
        assert await house.has_runs(ended, status="failed")
        assert await house.value("SELECT count(*) FROM abandonments") == ended  # what each left outside


async def test_an_agent_whose_run_was_taken_from_it_is_stopped_at_the_next_renewal(
    house: House, run_now: Any, shift: Any
) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work(assignment: Assignment, desk: Desk) -> Outcome:
        begun.set()
        try:
            await asyncio.Future()
        finally:
            stopped.set()
        raise AssertionError

    await run_now(await house.automation())
    async with shift(work) as at_work:
        await begun.wait()
        await house.set_run(attempt=2, worker_id="another")
        await at_work.lease.once()
        async with asyncio.timeout(10):
            await stopped.wait()


async def test_agents_are_stopped_in_time_after_the_last_renewal_was_begun(
    house: House, db: Database, shift: Any
) -> None:
    """Provoked: a renewal waits. It does not put off the hour by as long; nor is the hour before it any longer right."""
    clock = asyncio.get_running_loop().time
    async with shift(None, lease=60.0) as idle:
        await idle.lease.once()
        before = idle.lease.alarm
        async with db.transaction() as other:
            await other.execute("SELECT FROM workers FOR UPDATE")
            renewing = asyncio.create_task(idle.lease.once())
            await until(lambda: house.value(WAITS))
            waited_until = clock()
        await renewing
        alarm = idle.lease.alarm
        assert before.cancelled()
        assert not alarm.cancelled()
        assert clock() < alarm.when() < waited_until + 60.0 * STOP_AT


async def test_what_is_claimed_after_agents_were_stopped_in_time_is_stopped_too(shift: Any) -> None:
    async with shift(None, lease=60.0) as idle:
        idle.lease.stop_agents()
        again = idle.lease.alarm
        assert not again.cancelled()
        assert again.when() <= asyncio.get_running_loop().time() + 20.0


async def test_an_agent_that_was_stopped_for_its_lease_writes_nothing_though_that_still_holds(
    house: House, run_now: Any, shift: Any
) -> None:
    """So its run counts as lost with its worker, and is not tried for ever."""
    begun = asyncio.Event()

    async def work(assignment: Assignment, desk: Desk) -> Outcome:
        begun.set()
        return await asyncio.Future[Outcome]()

    await run_now(await house.automation())
    async with shift(work) as at_work:
        await begun.wait()
        at_work.worker.drop_all()
        await until(lambda: _nobody_is_at_work(at_work.worker))
        await at_work.worker.settler.finish()
    assert (await house.run())["status"] == "running"


async def _nobody_is_at_work(worker: Worker) -> bool:
    return not worker.attempts


async def test_what_is_capped_stays_locked_until_a_worker_has_claimed_for_it(
    house: House, run_now: Any, shift: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or another worker would fill the same gap between the look and the claim."""
    free: list[int] = []
    claim = claiming.claim

    async def looked_at(*args: Any, **values: Any) -> list[Claimed]:
        free.append(await house.value("SELECT count(*) FROM (SELECT FROM agents FOR UPDATE SKIP LOCKED) others"))
        return await claim(*args, **values)

    async def at_once(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded()

    monkeypatch.setattr(claiming, "claim", looked_at)
    async with house.db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"max_concurrent": 1})
    await run_now(await house.automation())
    async with shift(at_once):
        await until(lambda: house.runs(status="succeeded"))
    assert free[0] == 0


async def test_a_worker_whose_outcomes_are_not_written_claims_only_so_many_more(
    house: House, wakes: Wakes, shift: Any
) -> None:
    kept: list[Result] = []

    async def at_once(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded()

    async with shift(at_once, places=1) as at_work:
        hand_in, at_work.worker.settler.hand_in = at_work.worker.settler.hand_in, kept.append
        await house.queue_runs(MOST_AT_ONCE + 3)
        wakes.send(RUNS)
        await until(lambda: _are(kept, MOST_AT_ONCE))
        await at_work.worker.once()
        assert len(at_work.worker.attempts) == MOST_AT_ONCE
        for result in kept:
            hand_in(result)


async def _are(kept: list[Result], count: int) -> bool:
    return len(kept) == count


async def test_a_worker_looks_everywhere_when_its_notifications_may_have_been_lost(
    house: House, unheard: Database, shift: Any
) -> None:
    """Its listening connection is cut, and it would look by itself in an hour."""
    automation = await house.automation()

    async def at_once(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded()

    async with shift(at_once, poll=3600.0):
        async with unheard.transaction() as conn:
            await running.run_now(conn, house.caller, automation)
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name"
        await house.execute(f"{cut} = 'rota listener'")
        await until(lambda: house.runs(status="succeeded"))


async def test_only_what_is_deleted_loses_its_grant_with_its_last_run(house: House, db: Database) -> None:
    """It may have been restored since somebody saw that it was deleted."""
    automation = await house.automation()
    async with db.transaction() as conn:
        await aftermath.revoke_of_deleted(conn, [(house.caller.workspace_id, automation)])
    assert not await house.value(REVOKED)


@pytest.mark.parametrize("overlap", ["queue_all", "allow"])
async def test_a_run_that_comes_while_its_lanes_holder_is_ending_does_not_wait_for_ever(
    house: House, db: Database, overlap: str
) -> None:
    """Provoked: the holder's end is written but not committed when the next run arrives. One that may run beside others
    is in no lane, and is waited for all the same."""
    await house.automation(triggers=[{"event": "go", "overlap": overlap}, {"event": "then"}])
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
    async with db.transaction() as conn:
        holder = await claim_one(conn)

    async def arrive() -> None:
        async with db.transaction() as conn:
            await publish_event(conn, house.caller, "then", None, "second")

    async with db.transaction() as ending:
        await settling.settle(ending, [Result(holder, Succeeded())])
        arriving = asyncio.create_task(arrive())
        await until(lambda: house.value(WAITS))
    await arriving
    first, second = await house.ledger()
    assert (first["status"], second["status"]) == ("succeeded", "queued")
    assert second["ready_at"] is not None


async def test_whoever_came_to_hold_the_lane_while_its_holder_ended_cannot_end_unseen_either(
    house: House, db: Database
) -> None:
    """Provoked: a run arrives while the end of the holder is written but not committed, which makes the next one ready."""
    automation_id = await house.automation({"event": "go"})
    async with db.transaction() as conn:
        for key in ("first", "second"):
            await publish_event(conn, house.caller, "go", None, key)
        holder = await claim_one(conn)
    held, arrived = asyncio.Event(), asyncio.Event()

    async def arrive() -> None:
        async with db.transaction() as conn:
            await run_status.hold_lanes(conn, [(house.caller.workspace_id, automation_id)])
            held.set()
            await arrived.wait()

    async with db.transaction() as ending:
        await settling.settle(ending, [Result(holder, Succeeded())])
        arriving = asyncio.create_task(arrive())
        await until(lambda: house.value(WAITS))
    await held.wait()
    cancelled = {"finished_at": from_now(), "status": "cancelled", "error_class": "cancelled_by_user"}
    ended = asyncio.create_task(house.set_runs({"finished_at": None}, **cancelled))
    await until(lambda: house.value(WAITS))
    assert await house.has_runs(1, finished_at=None)
    arrived.set()
    await asyncio.gather(arriving, ended)
    assert await house.has_runs(0, finished_at=None)


async def test_who_comes_to_a_lane_holds_its_holder_and_none_of_those_who_wait(house: House, db: Database) -> None:
    """However long the line is, then, who comes costs the same."""
    automation_id = await house.automation({"event": "go"})
    async with db.transaction() as conn:
        for key in range(4):
            await publish_event(conn, house.caller, "go", None, str(key))
    async with db.transaction() as conn:
        await run_status.hold_lanes(conn, [(house.caller.workspace_id, automation_id)])
        async with db.transaction() as other:
            free = await run_state.find_runs(other, "FOR UPDATE SKIP LOCKED")
            assert [run["ready_at"] for run in free] == [None] * 3


async def test_who_ends_a_run_does_not_wait_for_who_ends_the_next_of_its_lane(house: House, db: Database) -> None:
    """Provoked: that one is being cancelled. The one behind it becomes ready."""
    await house.automation({"event": "go"})
    async with db.transaction() as conn:
        for key in ("first", "second", "third"):
            await publish_event(conn, house.caller, "go", None, key)
        holder = await claim_one(conn)
    _, second, _ = await house.ledger()
    async with house.locked_runs(id=second["id"]), asyncio.timeout(10), db.transaction() as conn:
        await settling.settle(conn, [Result(holder, Succeeded())])
    assert [run["ready_at"] is not None for run in await house.ledger()] == [True, False, True]


async def test_a_parked_run_ends_as_soon_as_it_is_asked_to(house: House, db: Database, claimed: Claimed) -> None:
    await house.set_run(status="awaiting_approval", lease_until=None)
    async with db.transaction() as conn:
        await cancelling.cancel(conn, claimed.workspace_id, claimed.id)
    [run] = await house.ledger()
    assert (run["status"], run["error_class"]) == ("cancelled", "cancelled_by_user")


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
    assert run["worker_id"] == "w"


async def cancel(conn: Connection, house: House, automation: str) -> None:
    [run] = await house.ledger()
    await cancelling.cancel(conn, house.caller.workspace_id, run["id"])


async def pause(conn: Connection, house: House, automation: str) -> None:
    await automations.pause(conn, house.caller, automation)


async def replace(conn: Connection, house: House, automation: str) -> None:
    await publish_event(conn, house.caller, "go", None, "second")


async def revoke(conn: Connection, house: House, automation: str) -> None:
    grant = await house.value("SELECT grant_id FROM automations")
    await cancelling.stop_grants(conn, house.caller.workspace_id, [grant])


@pytest.mark.parametrize(
    ("stop", "asked"), [(cancel, "cancelled_by_user"), (pause, None), (replace, "replaced"), (revoke, "grant_invalid")]
)
async def test_who_ends_what_waits_does_not_end_what_is_just_being_claimed(
    house: House, db: Database, stop: Any, asked: str | None
) -> None:
    """Provoked: the claim is written but not committed. Then the run is asked to end, if what runs is to end too."""
    automation = str(await house.automation({"event": "go"}, overlap="replace"))
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")

    async def stopping() -> None:
        async with db.transaction() as conn:
            await stop(conn, house, automation)

    async with db.transaction() as claiming_it:
        run = await claim_one(claiming_it)
        stopped = asyncio.create_task(stopping())
        await until(lambda: house.value(WAITS))
    await stopped
    found = await house.run(run.id)
    assert (found["status"], found["cancel_reason"]) == ("running", asked)


async def test_a_task_waits_for_a_place_as_long_as_it_takes(house: House, db: Database, run_now: Any) -> None:
    await run_now(await house.automation())
    await house.set_run(source="task", start_within=timedelta(seconds=1), ready_at=from_now(days=-1))
    async with db.transaction() as conn:
        assert await sweeping.end_stuck(conn, 10) == 0


@pytest.mark.parametrize(("lease", "go_on"), [({"lease_until": None}, run_status.resume), ({}, run_status.go_on)])
async def test_who_asked_twice_goes_on_when_both_are_answered(
    house: House, db: Database, claimed: Claimed, lease: dict[str, None], go_on: Any
) -> None:
    await house.set_run(status="awaiting_approval", **lease)
    for _ in range(2):
        await ask_each(house)
    for all_are in (False, True):
        await house.execute(ANSWER)
        async with db.transaction() as conn:
            assert bool(await go_on(conn, claimed.workspace_id, claimed.id)) == all_are


@pytest.mark.parametrize(("lease", "goes_on"), [(from_now(minutes=1), True), (from_now(seconds=-1), False)])
async def test_who_is_answered_goes_on_only_while_its_lease_holds(
    house: House, db: Database, claimed: Claimed, lease: FromNow, goes_on: bool
) -> None:
    """One that was lost meanwhile is the rescue's."""
    await house.set_run(status="awaiting_approval", lease_until=lease)
    async with db.transaction() as conn:
        assert await run_status.go_on(conn, claimed.workspace_id, claimed.id) == goes_on


async def test_a_run_ends_for_the_first_reason_for_which_it_was_asked_to(
    house: House, db: Database, claimed: Claimed
) -> None:
    await house.set_run(budget={"tokens": "10"})
    where = (claimed.workspace_id, claimed.id)
    async with db.transaction() as conn:
        await cancelling.cancel(conn, *where)
        judged = await budgets.judge_charges(
            conn, [Charge(*where, claimed.attempt, "tokens", Decimal(11))], totals=False
        )
        assert judged.exceeded
        await settling.settle(conn, [Result(claimed, None)])
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


async def test_the_net_under_promotion_finds_a_lane_once_it_would_be_promoted_and_not_before(
    house: House, db: Database
) -> None:
    automation = await house.automation({"event": "go"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
        holder = await claim_one(conn)
    async with db.transaction() as conn:
        await automations.change(conn, house.caller, str(automation), {"session": "same"}, None)
        await publish_event(conn, house.caller, "go", None, "second")
        assert await run_status.free_lanes(conn, 10) == []  # or as many as a pass takes would hide the others
    async with db.transaction() as conn:
        await settling.settle(conn, [Result(holder, Succeeded())])
        assert await sweeping.free_lanes(conn, 10) == 1
    _, second = await house.ledger()
    assert second["ready_at"] is not None
