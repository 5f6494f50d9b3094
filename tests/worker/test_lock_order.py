"""Who fires and who ends runs take their locks in one order, so that neither loses its batch to the other."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest

from rota.db import aftermath, attempts, budgets, events, run_status, triggers
from rota.db.events import NewEvent
from rota.db.pool import Connection, Database
from rota.db.usage import Charge
from rota.model.ids import WorkerId
from rota.model.message import NewMessage
from rota.model.outcome import Succeeded
from rota.model.run import Claimed
from rota.roster import running
from rota.runs import claiming, ending, parking, settling, sweeping
from rota.runs.settling import Result
from rota.scheduler.inbound import publish_event
from rota.sessions import messages
from rota.worker.queues import Queues
from support import run_state
from support.house import House
from support.run_state import RUNS, from_now
from support.waiting import until

State = Callable[[House], Awaitable[None]]
Resume = Callable[[Connection], Awaitable[None]]

LEASE = timedelta(minutes=1)
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
ASK = """
INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, status, expires_at)
VALUES (%s, gen_random_uuid(), %s, %s, 1, 'May I?', '[]', 'pending', now() - interval '1 s')
"""
AT_WORK = run_state.running(attempt=2)


async def lose(house: House) -> None:
    await house.set_run(**run_state.lost(started_at=from_now(), max_rescues=0))


async def get_stuck(house: House) -> None:
    await house.set_run(ready_at=from_now(hours=-2), start_within=timedelta(hours=1))


async def wait_in_vain(house: House) -> None:
    """Ask a question whose time is up."""
    run = await house.set_run(status="awaiting_approval", attempt=1, started_at=from_now())
    await house.execute(ASK, run["workspace_id"], run["id"], run["session_id"])


async def begin_again(conn: Connection) -> None:
    await run_state.change_runs(conn, {}, AT_WORK)


async def begin_again_answered(conn: Connection) -> None:
    await conn.execute("UPDATE approvals SET status = 'expired', answered_at = now()")
    await begin_again(conn)


async def expire(conn: Connection, limit: int) -> int:
    return len((await parking.expire(conn, limit)).ended)


@pytest.mark.parametrize(
    ("state", "sweep"),
    [(lose, sweeping.rescue), (get_stuck, sweeping.end_stuck), (wait_in_vain, expire)],
    ids=["lost", "stuck", "unanswered"],
)
async def test_who_fires_an_automation_and_who_fails_its_run_do_not_wait_for_each_other(
    house: House, db: Database, state: State, sweep: Callable[[Connection, int], Awaitable[int]]
) -> None:
    """Provoked: the one has locked the automation and is about to look at its runs when the other begins."""
    automation_id = await house.automation({"every": "1h"}, overlap="queue_all")
    async with db.transaction() as conn:
        await running.run_now(conn, house.caller, automation_id)
    await state(house)
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
    assert (await house.run())["status"] == "failed"
    assert await house.value("SELECT failures FROM automations") == 1


@pytest.mark.parametrize(
    ("state", "sweep", "go_on"),
    [
        (lose, sweeping.rescue, begin_again), (get_stuck, sweeping.end_stuck, begin_again),
        (wait_in_vain, expire, begin_again_answered),
    ],
    ids=["lost", "stuck", "unanswered"],
)  # fmt: skip
async def test_a_run_that_went_on_while_its_automation_was_waited_for_is_left_alone(
    house: House, db: Database, state: State, sweep: Callable[[Connection, int], Awaitable[int]], go_on: Resume
) -> None:
    """Provoked: the sweep has found it and waits for the automation; another one has it again before that is free."""
    automation_id = await house.automation()
    async with db.transaction() as conn:
        await running.run_now(conn, house.caller, automation_id)
    await state(house)

    async def swept() -> int:
        async with db.transaction() as conn:
            return await sweep(conn, 10)

    async with db.transaction() as other:
        await other.execute("SELECT FROM automations FOR NO KEY UPDATE")
        sweeping_up = asyncio.create_task(swept())
        await until(lambda: house.value(WAITS))
        await go_on(other)
    assert await sweeping_up == 0
    run = await house.run()
    assert (run["status"], run["attempt"]) == ("running", 2)


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
    refused = await house.run(runs[1])
    async with db.transaction() as other:
        await other.execute("SELECT FROM sessions WHERE id = %s FOR UPDATE", [refused["session_id"]])
        async with db.connection() as conn:
            await conn.execute("SET lock_timeout = '100ms'")
            claimed = await claim_now(conn)
            await conn.execute("RESET lock_timeout")
    assert [run.id for run in claimed] == [runs[0]]


async def test_a_run_that_is_refused_is_ended_with_all_that_follows_from_it_or_not_at_all(
    house: House, db: Database, claim_now: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.automation({"event": "go"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, None)
    await house.execute("UPDATE grants SET revoked_at = now()")

    async def fail(conn: Connection, ended: Any) -> None:
        raise psycopg.OperationalError

    with monkeypatch.context() as broken:
        broken.setattr(ending, "end", fail)
        async with db.connection() as conn:
            assert await claim_now(conn) == []
    assert (await house.run())["status"] == "running"  # until its lease ends


async def test_who_fires_an_automation_and_who_refuses_its_run_do_not_wait_for_each_other(
    house: House, db: Database, claim_now: Any
) -> None:
    """Provoked: a run that had begun before is claimed on a grant that no longer holds, so it fails, while somebody has locked
    its automation and is about to look at its runs."""
    automation_id = await house.automation(overlap="queue_all")
    async with db.transaction() as conn:
        await running.run_now(conn, house.caller, automation_id)
    await house.set_run(attempt=1)
    await house.execute("UPDATE grants SET revoked_at = now()")

    async def refuse() -> None:
        async with db.connection() as conn:
            assert await claim_now(conn) == []

    async with db.transaction() as firing:
        await aftermath.hold(firing, [(house.caller.workspace_id, automation_id)])
        refusing = asyncio.create_task(refuse())
        await until(lambda: house.value(WAITS))
        await run_status.hold_lanes(firing, [(house.caller.workspace_id, automation_id)])
    await refusing
    run = await house.run()
    assert (run["status"], run["error_class"]) == ("failed", "grant_invalid")
    assert await house.value("SELECT failures FROM automations") == 1


async def test_who_starts_a_run_waits_for_its_session_before_it_holds_a_purse(house: House, db: Database) -> None:
    """As those do who end one: provoked by somebody who writes in the session."""
    budget = {"per_run": {"tokens": 10}, "per_month": {"tokens": 100}}
    await house.automation({"event": "go"}, session="same", budget=budget)
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")

    async def fire_again() -> None:
        async with db.transaction() as conn:
            await publish_event(conn, house.caller, "go", None, "second")

    async with db.transaction() as writing:
        await writing.execute("SELECT FROM sessions FOR NO KEY UPDATE")
        firing = asyncio.create_task(fire_again())
        await until(lambda: house.value(WAITS))
        assert len(await rows(house, "SELECT holder_id FROM spending FOR UPDATE NOWAIT")) == 1
    await firing
    assert await house.value("SELECT sum(amount) FROM reservations") == 20


async def settle(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    await settling.settle(conn, [Result(each, Succeeded()) for each in runs])


async def renew(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    await attempts.renew(conn, [(each.workspace_id, each.id, each.attempt) for each in runs], LEASE)


async def hold(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    await events.hold(conn, [(each.workspace_id, each.id, each.attempt) for each in runs])


async def tell(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    await events.append(conn, [NewEvent(each.workspace_id, each.session_id, "output", {}) for each in runs])


async def send(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    sent = [NewMessage(each.workspace_id, each.session_id, "hi", "all", "agent", each.id, 1) for each in runs]
    await messages.publish(conn, sent)


async def wait_behind(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    await run_status.hold_lanes(conn, [(each.workspace_id, UUID(str(each.automation_id))) for each in runs])


async def fire(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    await publish_event(conn, house.caller, "go", None, None)


async def fail(conn: Connection, house: House, runs: Sequence[Claimed]) -> None:
    await aftermath.hold(conn, [(each.workspace_id, UUID(str(each.automation_id))) for each in runs])


@pytest.mark.parametrize(
    ("writer", "table"),
    [
        (settle, RUNS), (renew, RUNS), (hold, RUNS), (send, RUNS), (wait_behind, RUNS),
        (settle, "sessions"), (tell, "sessions"), (send, "sessions"), (fire, "automations"), (fail, "automations"),
    ],
)  # fmt: skip
async def test_whoever_needs_several_rows_locks_them_in_the_order_of_their_ids(
    house: House, db: Database, claim_now: Any, writer: Any, table: str
) -> None:
    """Provoked: the last of them is held, and asked for first. All before it are locked by who waits for it. They stand in
    the table the other way round, so that neither is the order in which they happen to be read."""
    for _ in range(3):
        await house.automation({"event": "go"})
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, None)
        runs = sorted(await claim_now(conn), key=lambda run: run.id, reverse=True)
        await turn_round(conn, table)
    first, _, last = [each for (each,) in await rows(house, f"SELECT id FROM {table} ORDER BY id")]

    async def write() -> None:
        async with db.transaction() as conn:
            await writer(conn, house, runs)

    async with db.transaction() as other:
        await other.execute(f"SELECT FROM {table} WHERE id = %s FOR UPDATE".encode(), [last])
        waiting = asyncio.create_task(write())
        await until(lambda: house.value(WAITS))
        free = f"SELECT id FROM {table} WHERE id <> %s FOR UPDATE SKIP LOCKED"
        assert await rows(house, free, last) == []
    await waiting
    assert first < last


async def turn_round(conn: Connection, table: str) -> None:
    """Each row anew, the last first."""
    found = await (await conn.execute(f"SELECT id FROM {table} ORDER BY id DESC".encode())).fetchall()
    for row in found:
        changed = "updated_at" if table == "sessions" else "revision"
        await conn.execute(f"UPDATE {table} SET {changed} = {changed} WHERE id = %s".encode(), row)


async def rows(house: House, query: str, *given: Any) -> list[Any]:
    async with house.db.connection() as conn:
        return await (await conn.execute(query.encode(), given)).fetchall()


@pytest.fixture
def claim_now() -> Any:
    async def claim(conn: Connection) -> Any:
        queues = Queues(["default"], ["command"])
        await queues.look(conn)
        given = await queues.to_read(conn, 5)
        return await claiming.claim(conn, WorkerId("w"), queues=given, places=5, lease=LEASE)

    return claim


async def test_who_reports_and_who_replaces_the_reporting_run_do_not_wait_for_each_other(
    house: House, db: Database, claim_now: Any
) -> None:
    """Provoked: the report has its run, and is about to lock the month, when another run is fired in its place."""
    month = {"per_run": {"tokens": 10}, "per_month": {"tokens": 100}}
    await house.automation({"event": "go"}, overlap="replace", budget=month)
    async with db.transaction() as conn:
        await publish_event(conn, house.caller, "go", None, "first")
        [run] = await claim_now(conn)

    async def replace() -> None:
        async with db.transaction() as conn:
            await publish_event(conn, house.caller, "go", None, "second")

    attempt = (run.workspace_id, run.id, run.attempt)
    async with db.transaction() as reporting:
        assert await events.hold(reporting, [attempt], alone=True)
        replacing = asyncio.create_task(replace())
        await until(lambda: house.value(WAITS))
        charge = Charge(*attempt, "tokens", Decimal(4))
        judged = await budgets.judge_charges(reporting, [charge], totals=False)
        assert judged.accepted == [charge]
    await replacing
    assert (await house.run(run.id))["cancel_reason"] == "replaced"
