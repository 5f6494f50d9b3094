"""Processes that freeze inside a transaction: PostgreSQL ends it, so that others go on."""

import asyncio
import json
import signal
import urllib.request
from typing import Any

import psutil
from psycopg import AsyncConnection

from support.fleet import Fleet
from support.rota_process import Rota
from support.waiting import until

# Four seconds of a lease let PostgreSQL end a transaction after one and a half.
LONGER = {"ROTA_LEASE_SECONDS": "4"}
IDLE = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"


async def _frozen(process: Rota) -> bool:
    return bool(psutil.Process(process.process.pid).status() == psutil.STATUS_STOPPED)


async def test_a_scheduler_frozen_between_lock_and_commit_holds_up_no_other_and_repeats_nothing(fleet: Fleet) -> None:
    frozen = fleet.start("scheduler", ROTA_TEST_FREEZEPOINT="scheduler.written", **LONGER)
    await asyncio.to_thread(frozen.wait_for, "rota.started")
    await fleet.every_second(3)
    await fleet.ask("SELECT pg_notify('rota_triggers', '')")
    await until(lambda: _frozen(frozen), within=40)
    assert await fleet.ask(f"SELECT ({IDLE}) = 1")
    fleet.start("scheduler,watch,worker", **LONGER)

    async def all_have_fired() -> bool:
        return len({run["automation_id"] for run in await fleet.find_runs()}) == 3

    await fleet.until_true(all_have_fired, "every automation has fired", within=20)
    assert await _frozen(frozen)
    frozen.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(frozen.wait_for, '"trigger.fired"')  # it is a scheduler like any other again
    await fleet.keeps_its_promises()


def rename(url: str, token: str) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(url, b'{"name": "Renamed"}', headers, method="PATCH")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.status, json.load(answer)


async def test_a_request_whose_process_froze_in_its_transaction_is_made_again(fleet: Fleet) -> None:
    token = await fleet.token()
    automation = await fleet.house.automation()
    api = fleet.start("api", **LONGER)
    address = f"{await asyncio.to_thread(api.url)}/api/v1/workspaces/default/automations/{automation}"
    async with await AsyncConnection.connect(fleet.url) as holding:
        await holding.execute("SELECT FROM automations FOR UPDATE")
        asking = asyncio.create_task(asyncio.to_thread(rename, address, token))
        await fleet.until("SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        api.process.send_signal(signal.SIGSTOP)
    await fleet.until(f"SELECT ({IDLE}) = 1")
    await fleet.until(f"SELECT ({IDLE}) = 0", within=4)
    api.process.send_signal(signal.SIGCONT)
    status, told = await asking
    assert (status, told["name"]) == (200, "Renamed")
    assert await fleet.ask("SELECT count(*) FROM audit WHERE action LIKE 'automation.%%'") == 1
