"""Many short runs cost few statements and fewer notifications."""

import asyncio
from datetime import timedelta
from typing import Any

from psycopg import AsyncConnection

from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.model.executor import Assignment, Desk
from rota.model.outcome import Outcome, Succeeded
from rota.roster import running
from support import live_run_tables, run_state
from support.house import House
from support.waiting import until

RUNS = 100


async def queue_runs(house: House) -> None:
    async with house.db.transaction() as conn:
        for _ in range(RUNS):
            await running.run_agent(conn, house.caller, "worker-bee", {"prompt": "go"})


async def test_a_batch_of_runs_is_told_by_no_more_than_one_notification(
    house: House, db: Database, wakes: Wakes, shift: Any, database_url: str
) -> None:
    await queue_runs(house)
    everybody, at_work, heard = asyncio.Event(), 0, []

    async def wait_for_the_others(assignment: Assignment, desk: Desk) -> Outcome:
        nonlocal at_work
        at_work += 1
        if at_work == RUNS:
            everybody.set()
        await everybody.wait()
        return Succeeded("Done.")

    async with await AsyncConnection.connect(database_url, autocommit=True) as other:
        other.add_notify_handler(lambda told: heard.append((told.channel, told.payload)))
        for channel in ("rota_runs", "rota_sessions", "rota_cancels", "rota_triggers"):
            await other.execute(f"LISTEN {channel}".encode())
        async with shift(wait_for_the_others, places=RUNS):
            await until(lambda: house.has_runs(RUNS, status="succeeded"))
        await wakes.close()
        await other.execute("SELECT 1")
    async with db.connection() as conn:
        batches = await run_state.count_writers(conn)  # the last to write a run was the one that settled it
    assert len(heard) <= batches < RUNS
    sessions = {name for _, payload in heard for name in payload.partition(" ")[0].split(",")}
    assert sessions == {each.hex for each in await house.value("SELECT array_agg(id) FROM sessions")}


async def test_every_run_of_a_batch_has_its_whole_story_in_order(house: House, shift: Any) -> None:
    await queue_runs(house)

    async def succeed(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded("Done.")

    async with shift(succeed, places=RUNS):
        await until(lambda: house.has_runs(RUNS, status="succeeded"))
    told = await house.value(
        """SELECT array_agg(DISTINCT story) FROM (
               SELECT string_agg(seq || ' ' || (data ->> 'status'), ', ' ORDER BY seq) AS story
                 FROM events WHERE kind = 'run' GROUP BY session_id) each"""
    )
    assert told == ["1 queued, 2 running, 3 succeeded"]
    assert await house.value("SELECT count(DISTINCT session_id) FROM events") == RUNS


WRITTEN_IN_PLACE = """
SELECT n_tup_upd >= 200 AND n_tup_hot_upd > 0.75 * n_tup_upd FROM pg_stat_user_tables WHERE relname = 'sessions'
"""


async def test_a_run_begins_and_ends_without_a_new_index_entry_of_its_session(house: House, shift: Any) -> None:
    """An index that has the status, even in its condition, would be one."""
    await house.queue_runs(RUNS)

    async def succeed(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded("Done.")

    async with shift(succeed, places=RUNS):
        await until(lambda: house.value("SELECT count(*) = 100 FROM sessions WHERE status = 'done'"))
    await until(lambda: house.value(WRITTEN_IN_PLACE))


async def test_who_stops_claims_no_more_however_many_wait_and_however_soon_they_end(house: House, shift: Any) -> None:
    await house.queue_runs(1_000)
    began = asyncio.Event()

    async def succeed(assignment: Assignment, desk: Desk) -> Outcome:
        began.set()
        return Succeeded("Done.")

    async with shift(succeed, places=150) as at_work:
        await began.wait()
        await at_work.worker.drain(timedelta(seconds=5), asyncio.Event())
    assert len(await house.runs(status="queued")) >= 500
    async with house.db.connection() as conn:
        assert await live_run_tables.count_taken(conn) == 0


async def test_a_run_that_is_claimed_grows_where_it_stands(house: House, shift: Any) -> None:
    """Elsewhere it would need an entry in each index of the ledger."""
    await queue_runs(house)
    at_work = asyncio.Event()

    async def pages() -> list[float]:
        async with house.db.connection() as conn:
            return await run_state.pages_of_runs(conn)

    async def work(assignment: Assignment, desk: Desk) -> Outcome:
        await at_work.wait()
        return Succeeded("Done.")

    queued = await pages()
    async with shift(work, places=RUNS):
        await until(lambda: house.has_runs(RUNS, status="running"))
        assert await pages() == queued
        at_work.set()
