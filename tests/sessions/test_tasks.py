"""The task DAG: order, failure and skips, pausing, retries, and the races between workers."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from rota.db import run_status, sessions
from rota.db import tasks as rows
from rota.db.listener import RUNS
from rota.db.pool import Connection
from rota.db.run_status import Ended
from rota.errors import Conflict, Invalid, Lost
from rota.model.executor import Assignment, Desk
from rota.model.ids import RunId, SessionId, WorkerId, new_id
from rota.model.outcome import Cancelled, ErrorClass, Failed, Outcome, Succeeded
from rota.model.run import Claimed, Status
from rota.model.task import TaskForm
from rota.roster import agents, running
from rota.runs import claiming, settling, tasking
from rota.runs.settling import Result
from rota.scheduler.inbound import publish_event
from rota.sessions import chat, tasks
from rota.worker.queues import Queues
from support.house import House
from support.run_state import PRESENT, from_now
from support.waiting import until

Workshop = Any
WAITING_FOR_A_LOCK = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def task(key: str, *depends_on: str, **values: Any) -> TaskForm:
    return TaskForm("worker", key, f"Do {key}.", depends_on=depends_on, **values)


def diamond() -> list[TaskForm]:
    return [task("top"), task("left", "top"), task("right", "top"), task("bottom", "left", "right")]


def failing(*keys: str) -> Any:
    async def script(assignment: Assignment, desk: Desk) -> Outcome:
        key = assignment.payload["task"]["key"]
        if key in keys:
            return Failed(ErrorClass.AGENT_ERROR, f"{key} broke.")
        return Succeeded(f"{key} is done.")

    return script


async def test_a_task_starts_when_what_it_waits_for_is_done_and_is_told_how_that_went(
    workshop: Workshop, crew: Any
) -> None:
    session = await workshop.goal(*diamond())
    assert await workshop.tasks(session) == {"top": "ready", "left": "pending", "right": "pending", "bottom": "pending"}
    async with crew(failing()) as agents_at_work:
        await until(workshop.is_(session, "done"))
    order = [each.payload["task"]["key"] for each in agents_at_work.assignments]
    assert order[0] == "top"
    assert sorted(order[1:3]) == ["left", "right"]
    assert order[3:] == ["bottom"]
    last = agents_at_work.assignments[-1]
    assert (last.prompt, last.source, last.transcript) == ("Do bottom.", "task", [])
    assert last.payload["goal"] == "Tidy the house"
    assert {(each["key"], each["summary"]) for each in last.payload["dependencies"]} == {
        ("left", "left is done."), ("right", "right is done."),
    }  # fmt: skip
    assert set((await workshop.tasks(session)).values()) == {"done"}
    assert await workshop.log(session, "session") == [(None, "done")]
    log = await workshop.log(session, "task")
    for each in diamond():
        assert [status for key, status in log if key == each.key] == ["pending", "ready", "running", "done"]


async def test_a_failure_skips_all_that_waits_for_it_and_nothing_else(workshop: Workshop, crew: Any) -> None:
    session = await workshop.goal(
        *diamond(), task("after", "bottom"), task("aside", "right"), task("alone")
    )  # fmt: skip
    async with crew(failing("left")):
        await until(workshop.is_(session, "failed"))
    assert await workshop.tasks(session) == {
        "top": "done", "left": "failed", "right": "done", "bottom": "skipped", "after": "skipped", "aside": "done",
        "alone": "done",
    }  # fmt: skip
    assert (await workshop.task(session, "left"))["reason"] == "agent_error"
    assert (await workshop.task(session, "after"))["reason"] == "dependency_failed"


async def test_a_task_that_waits_for_two_that_fail_is_skipped_once(workshop: Workshop, crew: Any) -> None:
    session = await workshop.goal(task("left"), task("right"), task("bottom", "left", "right"))
    async with crew(failing("left", "right")):
        await until(workshop.is_(session, "failed"))
    assert (await workshop.log(session, "task")).count(("bottom", "skipped")) == 1


async def test_a_retry_revives_nothing_that_ended_with_its_session_nor_what_waits_for_that(
    workshop: Workshop, house: House
) -> None:
    """`both` was skipped for the failed task, and waits for `late` too, which ended with the session."""
    forms = [task("failed"), task("slow"), task("late", "slow"), task("both", "failed", "late"), task("next", "slow")]
    session = await workshop.goal(*forms)
    async with house.db.transaction() as conn:
        runs = {each.payload["task"]["key"]: each for each in await claim_all(conn)}
        await settling.settle(conn, [Result(runs["failed"], Failed(ErrorClass.AGENT_ERROR, "No.", retryable=False))])
    await workshop.change(session, "complete")
    async with house.db.transaction() as conn:
        await settling.settle(conn, [Result(runs["slow"], Cancelled())])
    for key in ("failed", "slow"):
        async with house.db.transaction() as conn:
            await running.retry(conn, house.caller, runs[key].id)
    assert await workshop.tasks(session) == {
        "failed": "ready", "slow": "ready", "late": "skipped", "both": "skipped", "next": "skipped",
    }  # fmt: skip


async def test_a_retry_of_the_failed_run_revives_what_was_skipped_for_it_alone(
    workshop: Workshop, crew: Any, house: House
) -> None:
    session = await workshop.goal(
        task("a"), task("b"), task("of-a", "a"), task("of-both", "a", "b"), task("end", "of-a")
    )
    async with crew(failing("a", "b")) as agents_at_work:
        await until(workshop.is_(session, "failed"))
        failed = (await workshop.task(session, "a"))["run_id"]
        agents_at_work.script = failing()
        async with house.db.transaction() as conn:
            again = await running.retry(conn, house.caller, failed)
        assert await workshop.status(session) == "active"
        workshop.wakes.send("rota_runs")
        await until(workshop.is_(session, "failed"))
        assert await workshop.tasks(session) == {
            "a": "done", "b": "failed", "of-a": "done", "of-both": "skipped", "end": "done",
        }  # fmt: skip
        with pytest.raises(Conflict) as refused:
            async with house.db.transaction() as conn:
                await running.retry(conn, house.caller, failed)
        assert refused.value.code == "not_retryable"
        async with house.db.transaction() as conn:
            await running.retry(conn, house.caller, (await workshop.task(session, "b"))["run_id"])
        workshop.wakes.send("rota_runs")
        await until(workshop.is_(session, "done"))
    assert set((await workshop.tasks(session)).values()) == {"done"}
    assert (await workshop.task(session, "a"))["run_id"] == again
    assert (await house.run(again))["retry_of"] == failed


async def test_a_paused_session_starts_nothing_and_goes_on_when_it_is_resumed(workshop: Workshop, crew: Any) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait(assignment: Assignment, desk: Desk) -> Outcome:
        begun.set()
        await may_end.wait()
        return Succeeded()

    session = await workshop.goal(task("a"), task("b", "a"))
    async with crew(wait, places=1) as agents_at_work:
        await begun.wait()
        await workshop.add(session, task("c"))
        await workshop.change(session, "pause")
        may_end.set()

        async def a_is_done() -> bool:
            return bool((await workshop.tasks(session))["a"] == "done")

        await until(a_is_done)
        assert await workshop.tasks(session) == {"a": "done", "b": "pending", "c": "ready"}
        assert await workshop.house.has_runs(1, status="queued", ready_at=None)
        await workshop.change(session, "resume")
        await until(workshop.is_(session, "done"))
    assert [each.payload["task"]["key"] for each in agents_at_work.assignments] in (["a", "c", "b"], ["a", "b", "c"])
    assert [status for _, status in await workshop.log(session, "session")] == ["paused", "active", "done"]


async def test_a_task_that_is_tried_again_waits_while_its_session_is_paused(workshop: Workshop, crew: Any) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def fail_first(assignment: Assignment, desk: Desk) -> Outcome:
        begun.set()
        await may_end.wait()
        return Failed(ErrorClass.AGENT_ERROR, "Not yet.") if assignment.attempt == 1 else Succeeded()

    session = await workshop.goal(task("a", max_attempts=2))
    async with crew(fail_first):
        await begun.wait()
        await workshop.change(session, "pause")
        may_end.set()
        await until(lambda: workshop.house.has_runs(1, status="queued", ready_at=None))
        await workshop.change(session, "resume")
        await until(workshop.is_(session, "done"))


async def test_a_task_that_is_tried_again_goes_on_while_its_session_is_active(workshop: Workshop, crew: Any) -> None:
    async def script(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded() if assignment.attempt > 1 else Failed(ErrorClass.AGENT_ERROR, "Once more.")

    session = await workshop.goal(task("only", max_attempts=2))
    async with crew(script) as agents_at_work:
        await until(lambda: workshop.house.has_runs(1, tries=1, ready_at=PRESENT))
        await workshop.house.set_run(ready_at=from_now())  # not after a pause
        workshop.wakes.send(RUNS, {workshop.workspace_id})
        await until(workshop.is_(session, "done"))
    assert [each.attempt for each in agents_at_work.assignments] == [1, 2]
    statuses = [status for _, status in await workshop.log(session, "task")]
    assert statuses == ["pending", "ready", "running", "ready", "running", "done"]


async def test_a_draft_starts_nothing_until_it_is_enabled(workshop: Workshop, crew: Any, house: House) -> None:
    session = await workshop.goal(*diamond(), draft=True)
    await workshop.add(session, task("more"))
    assert set((await workshop.tasks(session)).values()) == {"pending"}
    assert await house.ledger() == []
    await workshop.change(session, "enable")
    async with crew():
        await until(workshop.is_(session, "done"))


async def test_ending_a_session_by_hand_skips_what_has_not_begun_and_stops_what_runs(
    workshop: Workshop, crew: Any, house: House
) -> None:
    begun = asyncio.Event()

    async def forever(assignment: Assignment, desk: Desk) -> Outcome:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    session = await workshop.goal(task("a"), task("b"), task("c", "a"))
    async with crew(forever, places=1):
        await begun.wait()
        await workshop.change(session, "complete")
        await until(lambda: house.has_runs(2, status="cancelled"))
    assert await workshop.tasks(session) == {"a": "failed", "b": "failed", "c": "skipped"}
    assert await workshop.status(session) == "done"
    await workshop.change(session, "archive")
    with pytest.raises(Conflict) as refused:
        await workshop.add(session, task("late"))
    assert (refused.value.code, refused.value.facts["session_status"]) == ("wrong_state", "archived")


async def test_of_many_tasks_that_end_at_once_none_is_compared_with_the_others(house: House) -> None:
    """Of thirty thousand it took minutes, in which their process did nothing else."""

    class Single(Ended):
        __hash__ = Ended.__hash__

        def __eq__(self, other: object) -> bool:
            raise AssertionError("each is looked at by itself")

    workspace_id, session_id = house.caller.workspace_id, SessionId(new_id())
    ended = [
        Single(workspace_id, RunId(new_id()), session_id, None, None, 0, Status.CANCELLED, "task", None, None, None, "")
        for _ in range(2)
    ]
    async with house.db.transaction() as conn:
        assert await tasking.end(conn, ended, set()) == set()


async def test_new_tasks_make_an_ended_session_active_again(workshop: Workshop, crew: Any) -> None:
    session = await workshop.goal(task("a"))
    async with crew(failing("bad")):
        await until(workshop.is_(session, "done"))
        await workshop.add(session, task("bad", "a"), task("good", "a"))
        await until(workshop.is_(session, "failed"))
        await workshop.add(session, task("behind", "bad"), task("further", "behind"))
        assert (await workshop.tasks(session))["further"] == "skipped"
    assert await workshop.status(session) == "failed", "it does not wait for what never begins"


@pytest.mark.parametrize(
    ("forms", "code", "told"),
    [
        ([task("a", "b"), task("b", "c"), task("c", "a")], "task_cycle", "wait for each other: "),
        ([task("a", "a")], "task_cycle", "a → a"),
        ([task("a", "nowhere")], "unknown_task", "'nowhere'"),
        ([task("a"), task("a")], "task_exists", "'a' stands twice"),
        ([task("there")], "task_exists", "'there' already"),
        ([TaskForm("judge", "a", "Judge.")], "unknown_role", "it has worker"),
        ([TaskForm("worker", "a")], "nothing_to_do", "prompt"),
        ([task("no spaces")], "invalid_task_key", "letters"),
    ],
)
async def test_a_batch_that_cannot_be_is_refused_whole(
    workshop: Workshop, house: House, forms: list[TaskForm], code: str, told: str
) -> None:
    session = await workshop.goal(task("there"))
    with pytest.raises((Invalid, Conflict), match=told) as refused:
        await workshop.add(session, task("fine"), *forms)
    assert refused.value.code == code
    assert (refused.value.field or "").startswith("tasks")
    assert await workshop.tasks(session) == {"there": "ready"}


async def test_a_cycle_is_named_with_its_path(workshop: Workshop) -> None:
    session = await workshop.goal()
    with pytest.raises(Invalid) as refused:
        await workshop.add(session, task("a", "c"), task("b", "a"), task("c", "b"), task("free"))
    path = refused.value.facts["path"]
    assert len(path) == 4
    assert path[0] == path[-1]
    needs = {"a": "c", "b": "a", "c": "b"}
    assert all(needs[one] == next_ for one, next_ in pairwise(path))


async def test_a_task_of_a_paused_agent_fails_visibly(workshop: Workshop, house: House, crew: Any) -> None:
    session = await workshop.goal(task("a"), task("b", "a"), draft=True)
    async with house.db.transaction() as conn:
        await agents.change(conn, house.caller, "worker-bee", {"status": "paused"})
    await workshop.change(session, "enable")
    assert await workshop.tasks(session) == {"a": "failed", "b": "skipped"}
    assert (await workshop.task(session, "a"))["reason"] == "agent_paused"
    assert await workshop.status(session) == "failed"


async def test_an_agent_of_an_automation_takes_the_seats_that_it_names(
    house: House, workshop: Workshop, crew: Any
) -> None:
    async def plan(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.source != "task":
            where = (assignment.workspace_id, assignment.session_id)
            forms = [TaskForm("scout", "seek", "Seek."), TaskForm("judge", "weigh", "Weigh.", depends_on=("seek",))]
            async with house.db.transaction() as conn:
                await tasks.add(conn, *where, forms, attempt=(assignment.run_id, assignment.attempt))
        return Succeeded(assignment.source)

    automation = await house.automation()
    async with house.db.transaction() as conn:
        run = await running.run_now(conn, house.caller, automation)
    session = (await house.run(run))["session_id"]
    async with crew(plan):
        await until(workshop.is_(session, "done"))
    assert await workshop.tasks(session) == {"seek": "done", "weigh": "done"}
    planning = await house.run(run)
    same = "SELECT count(*) FROM session_roles WHERE agent_id = %s AND grant_id = %s"
    assert await house.value(same, planning["agent_id"], planning["grant_id"]) == 2
    assert len(await house.ledger(automation)) == 1, "tasks are no runs of the automation"


# Races --------------------------------------------------------------------------------------------------------------


async def claim_all(conn: Connection) -> list[Claimed]:
    queues = Queues(["default"], ["command"])
    await queues.look(conn)
    hashes = [bytes([each]) * 32 for each in range(10)]
    async with conn.transaction():
        rows = await queues.to_read(conn, 10)
        return await claiming.claim(
            conn, WorkerId("w"), queues=rows, places=10, lease=running.DIRECT_TIMEOUT, token_hashes=hashes
        )  # fmt: skip


async def settled(conn: Connection, *runs: Claimed) -> None:
    done = await settling.settle(conn, [Result(run, Succeeded("Done.")) for run in runs])
    assert len(done) == len(runs)


@pytest.mark.parametrize("verb", ["pause", "complete"])
async def test_what_an_automation_does_in_a_session_is_neither_held_nor_ended_with_it(
    workshop: Workshop, house: House, verb: str
) -> None:
    """One of its runs is at work in the session, another waits in it."""
    await house.automation({"event": "go"}, overlap="allow")
    async with house.db.transaction() as conn:
        [at_work] = (await publish_event(conn, house.caller, "go", None, "first")).values()
        await claim_all(conn)
        await publish_event(conn, house.caller, "go", None, "second")
    session = (await house.run(at_work))["session_id"]
    await house.set_runs(session_id=session)
    await workshop.change(session, verb)
    first, second = await house.ledger()
    assert (first["status"], second["status"]) == ("running", "queued")
    assert first["cancel_requested_at"] is None
    assert second["ready_at"] is not None


@pytest.mark.parametrize("verb", ["pause", "complete"])
async def test_who_changes_a_session_waits_for_who_ends_its_run_and_holds_nothing_meanwhile(
    workshop: Workshop, house: House, verb: str
) -> None:
    """Provoked: that one has the run, and needs the session next."""
    session = await workshop.goal(task("only"))
    async with house.db.transaction() as conn:
        await claim_all(conn)
    async with house.locked_runs() as ending:
        changing = asyncio.create_task(workshop.change(session, verb))
        await until(lambda: house.value(WAITING_FOR_A_LOCK))
        await ending.execute("SELECT FROM sessions FOR NO KEY UPDATE NOWAIT")
    await changing
    assert await workshop.status(session) == ("paused" if verb == "pause" else "done")


@pytest.mark.parametrize("change", [run_status.hold, run_status.end_of_session])
async def test_who_has_a_session_does_not_wait_for_who_claims_its_run(
    workshop: Workshop, house: House, change: Any
) -> None:
    """Provoked: the claim has the run and waits for the session. A run that is being claimed counts as claimed."""
    session = await workshop.goal(task("only"))

    async def claim() -> list[Claimed]:
        async with house.db.transaction() as conn:
            return await claim_all(conn)

    async with house.db.transaction() as conn:
        await sessions.lock(conn, workshop.workspace_id, session)
        claiming_it = asyncio.create_task(claim())
        await until(lambda: house.value(WAITING_FOR_A_LOCK))
        await change(conn, workshop.workspace_id, session)
    assert len(await claiming_it) == 1
    assert (await house.run())["status"] == "running"


async def test_turns_are_neither_held_nor_let_go_with_their_session(workshop: Workshop, house: House) -> None:
    """The first of them is ready, the second waits for it."""
    await house.automation(session="same")
    session = await house.value("SELECT session_id FROM automations")
    for _ in range(2):
        async with house.db.transaction() as conn:
            await chat.turn(conn, house.caller, session, prompt="And now?")
    for verb in ("pause", "resume"):
        await workshop.change(session, verb)
        assert [run["ready_at"] is not None for run in await house.ledger()] == [True, False]


async def test_two_workers_that_finish_siblings_at_once_start_their_successor_exactly_once(
    workshop: Workshop, house: House
) -> None:
    """One holds its transaction open, the other is seen to wait for it, then both commit."""
    session = await workshop.goal(task("left"), task("right"), task("bottom", "left", "right"))
    async with house.db.connection() as conn:
        left, right = await claim_all(conn)
    async with house.db.connection() as one, house.db.connection() as two:
        async with one.transaction():
            await settled(one, left)
            [still] = await (await one.execute("SELECT status FROM tasks WHERE key = 'bottom'")).fetchone() or [None]
            assert still == "pending", "it waits for both"

            async def finish() -> None:
                async with two.transaction():
                    await settled(two, right)

            second = asyncio.create_task(finish())
            await until(lambda: house.value(f"{WAITING_FOR_A_LOCK} HAVING count(*) = 1"))
        await second
    assert await workshop.tasks(session) == {"left": "done", "right": "done", "bottom": "ready"}
    assert await house.has_runs(3)
    assert await house.value("SELECT unmet FROM tasks WHERE key = 'bottom'") == 0


async def test_a_failure_and_a_success_of_siblings_at_once_skip_their_successor(
    workshop: Workshop, house: House
) -> None:
    session = await workshop.goal(task("left"), task("right"), task("bottom", "left", "right"))
    async with house.db.transaction() as conn:
        left, right = await claim_all(conn)
    async with house.db.transaction() as conn:
        bad = Result(left, Failed(ErrorClass.AGENT_ERROR, "No."))
        await settling.settle(conn, [bad, Result(right, Succeeded())])
    assert (await workshop.tasks(session))["bottom"] == "skipped"
    assert await workshop.status(session) == "failed"


async def test_a_session_is_paused_while_a_task_ends_and_its_successor_is_held(
    workshop: Workshop, house: House
) -> None:
    session = await workshop.goal(task("a"), task("b", "a"))
    async with house.db.connection() as conn:
        [run] = await claim_all(conn)
    async with house.db.connection() as one:
        async with one.transaction():
            await settled(one, run)  # the successor's run is written, and not yet committed
            pausing = asyncio.create_task(workshop.change(session, "pause"))
            await until(lambda: house.value(f"{WAITING_FOR_A_LOCK} HAVING count(*) = 1"))
        await pausing
    assert await workshop.tasks(session) == {"a": "done", "b": "ready"}
    assert (await house.run(status="queued"))["ready_at"] is None
    async with house.db.connection() as conn:
        assert await claim_all(conn) == []
        assert await run_status.free_lanes(conn, 10) == []  # held is not the same as waiting for a lane


async def test_an_attempt_that_begins_anew_finds_the_tasks_of_the_one_before(workshop: Workshop, house: House) -> None:
    session = await workshop.goal(task("plan"))
    where = (workshop.workspace_id, SessionId(session))
    async with house.db.transaction() as conn:
        [run] = await claim_all(conn)
        await tasks.add(conn, *where, [task("a"), task("b", "a")], attempt=(RunId(run.id), 1))
        with pytest.raises(Conflict, match="'a'") as refused:
            await tasks.add(conn, *where, [task("a")], attempt=(RunId(run.id), 1))
        assert refused.value.code == "task_exists"
    before = await workshop.task(session, "a")
    await house.set_run(run.id, attempt=2)
    async with house.db.transaction() as conn:
        more = [task("a"), task("b", "a"), task("c", "b")]
        batch = await tasks.add(conn, *where, more, attempt=(RunId(run.id), 2))
        assert [each["key"] for each in await rows.page(conn, where, batch=batch)] == ["a", "b", "c"]
    assert await workshop.task(session, "a") == {**before, "batch": batch}
    with pytest.raises(Conflict, match="'plan'") as refused:
        async with house.db.transaction() as conn:
            await tasks.add(conn, *where, [task("plan")], attempt=(RunId(run.id), 2))
    assert refused.value.code == "task_exists"


async def test_an_agent_adds_tasks_only_while_it_holds_its_lease_and_is_not_being_stopped(
    workshop: Workshop, house: House
) -> None:
    session = await workshop.goal(task("plan"))
    async with house.db.transaction() as conn:
        [run] = await claim_all(conn)
        fence = (RunId(run.id), run.attempt)
        await tasks.add(conn, workshop.workspace_id, SessionId(session), [task("by-agent")], attempt=fence)
    assert (await workshop.task(session, "by-agent"))["added_by_run"] == run.id
    later = (RunId(run.id), run.attempt + 1)
    async with house.db.transaction() as conn:
        with pytest.raises(Lost):
            await tasks.add(conn, workshop.workspace_id, SessionId(session), [task("zombie")], attempt=later)
    await workshop.change(session, "complete")
    async with house.db.transaction() as conn:
        with pytest.raises(Conflict) as refused:
            await tasks.add(conn, workshop.workspace_id, SessionId(session), [task("last-word")], attempt=fence)
    assert refused.value.code == "run_stopping"
    assert set(await workshop.tasks(session)) == {"plan", "by-agent"}
    assert await workshop.status(session) == "done"
