"""A database that restarts, hangs up, forgets to answer or falls silent, under load."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from rota.db.embedded import EmbeddedPostgres
from rota.db.pool import Database
from support import run_state
from support.fleet import Fleet
from support.house import House
from support.postgres_proxy import Proxy
from support.rota_process import furnished
from support.waiting import until

from .test_workers import LASTING

TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = ANY(%s) ORDER BY random() LIMIT %s) victim
"""


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[tuple[EmbeddedPostgres, str]]:
    """A server that this test may restart."""
    server = EmbeddedPostgres(await asyncio.to_thread(furnished, tmp_path / "postgres"))
    await asyncio.to_thread(server.start)
    yield server, server.owner_url
    await asyncio.to_thread(server.stop)


def stop_immediately(home: Path) -> None:
    """As `pg_ctl stop -m immediate`: no goodbye, and recovery from the log at the next start."""
    [file] = home.rglob("postmaster.pid")
    postmaster = int(file.read_text().split()[0])
    os.kill(postmaster, signal.SIGQUIT)


async def test_a_postgres_that_is_restarted_immediately_under_load_loses_nothing(
    own_server: tuple[EmbeddedPostgres, str], tmp_path: Path
) -> None:
    server, url = own_server
    db = Database(url)
    await db.open()
    fleet = Fleet(url, await House.build(db), tmp_path)
    try:
        await fleet.every_second(10)
        await db.close()
        for _ in range(2):
            fleet.start()
        await fleet.fired(5)
        for _ in range(2):
            await fleet.dismiss_judge()
            stop_immediately(tmp_path / "postgres")
            await asyncio.to_thread(server.ensure_running)
            await fleet.fired(5)
        await fleet.keeps_its_promises()
    finally:
        fleet.close()
        await fleet.dismiss_judge()


async def test_backends_that_are_terminated_at_random_under_load_lose_nothing(fleet: Fleet) -> None:
    await fleet.every_second(10)
    fleet.start()
    await fleet.fired(5)
    for _ in range(8):
        assert await fleet.ask(TERMINATE, ["rota", "rota listener"], 3)
        await fleet.fired(2)
    await fleet.keeps_its_promises()


async def test_when_only_the_listening_connection_is_terminated_it_comes_back_and_looks(fleet: Fleet) -> None:
    quick = await fleet.agent("quick", "echo Done")
    fleet.start("worker", ROTA_POLL_SECONDS="600")
    await fleet.until("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rota listener'")
    assert await fleet.ended(await fleet.run(quick)) == "succeeded"
    assert await fleet.ask(TERMINATE, ["rota listener"], 10)
    assert await fleet.ended(await fleet.run(quick)) == "succeeded"  # its notification came to nobody
    await fleet.keeps_its_promises()


async def test_when_no_notification_ever_arrives_everything_still_happens(fleet: Fleet) -> None:
    elsewhere = make_conninfo(fleet.url, dbname="postgres")  # notifications don't cross databases
    await fleet.every_second(3)
    fleet.start(ROTA_LISTEN_URL=elsewhere)
    run_id = await fleet.run(await fleet.agent("lasting", LASTING))
    await fleet.at_work(run_id)
    await fleet.fired(6)
    await fleet.cancel_unheard(id=run_id)
    assert await fleet.ended(run_id) == "cancelled"
    await fleet.keeps_its_promises()


async def test_commits_whose_answer_is_lost_are_neither_repeated_nor_forgotten(fleet: Fleet) -> None:
    proxy = Proxy(fleet.url)
    async with proxy.open(fleet.url) as url:
        await fleet.every_second(10)
        fleet.start(url=url)
        await fleet.fired(5)
        proxy.lose_answers_to_commits(every=2, most=6)
        await until(lambda: _lost(proxy, 6), within=40)
        await fleet.fired(10)
        await fleet.keeps_its_promises()
        fleet.close()


async def _lost(proxy: Proxy, count: int) -> bool:
    return proxy.lost >= count


async def test_a_worker_in_a_black_hole_stops_its_agents_in_time_and_comes_back(fleet: Fleet) -> None:
    proxy = Proxy(fleet.url)
    longer = {"ROTA_LEASE_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "0.5"}
    async with proxy.open(fleet.url) as url:
        worker = fleet.start("worker", url=url, **longer)
        run_id = await fleet.run(await fleet.agent("lasting", LASTING))
        await fleet.at_work(run_id)
        proxy.fall_silent()
        async with fleet.helping():
            assert await fleet.ended(run_id) == "succeeded"
            assert fleet.evidence("met") == []  # the first agent was gone before the second began
            worker.wait_for("run.lost")
            await fleet.keeps_its_promises()
        proxy.speak_again()
        second = await fleet.run(await fleet.agent("quick", "echo Done"))
        assert await fleet.ended(second, within=20) == "succeeded"
        await fleet.keeps_its_promises()
        fleet.close()


async def test_rows_that_cannot_be_read_fail_or_rest_alone(fleet: Fleet) -> None:
    await fleet.every_second(3)
    bad_trigger = await fleet.house.automation({"cron": "* * * * *"})
    await fleet.ask("WITH u AS (UPDATE triggers SET starts_at = 'infinity', next_fire_at = now() WHERE automation_id = %s)"
                    " SELECT 1", bad_trigger)  # fmt: skip
    bad_run = await fleet.run(await fleet.agent("quick", "echo Done"))
    async with fleet.house.db.connection() as conn:
        await run_state.make_unreadable(conn, bad_run)
    fleet.start()
    await fleet.fired(6)
    assert await fleet.ended(bad_run) == "failed"
    await fleet.until("SELECT parked_error IS NOT NULL FROM triggers WHERE automation_id = %s", bad_trigger)
    await fleet.keeps_its_promises()
