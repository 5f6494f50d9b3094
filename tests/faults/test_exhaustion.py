"""Connections to the database or file descriptors run out: callers are told at once, leases and runs go on."""

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from psycopg import AsyncConnection

from support.fleet import Fleet

LASTING = "echo begun; until [ -e $evidence/go ]; do sleep 0.05; done; echo Done"


def get(url: str, token: str) -> tuple[int, float, Any]:
    """Status, seconds and answer."""
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    began = time.monotonic()
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, time.monotonic() - began, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, time.monotonic() - began, json.load(refused)


async def test_an_exhausted_pool_answers_503_quickly_and_does_not_touch_the_heartbeats(fleet: Fleet) -> None:
    token = await fleet.token()
    process = fleet.start("api,watch,worker", ROTA_POOL_SIZE="2", ROTA_LEASE_SECONDS="8", ROTA_HEARTBEAT_SECONDS="0.3")
    url = await asyncio.to_thread(process.url)
    automations = f"{url}/api/v1/workspaces/default/automations"
    run_id = await fleet.run(await fleet.agent("lasting", LASTING))
    await fleet.at_work(run_id)
    async with await AsyncConnection.connect(fleet.url) as holding:
        await holding.execute("LOCK TABLE agents IN ACCESS EXCLUSIVE MODE")  # every request waits for it, or claims
        first = [asyncio.create_task(asyncio.to_thread(get, automations, token)) for _ in range(4)]
        await fleet.until("SELECT count(*) >= 2 FROM pg_locks WHERE NOT granted AND relation = 'agents'::regclass")
        status, seconds, told = await asyncio.to_thread(get, automations, token)
        assert (status, told["code"]) == (503, "busy")
        assert seconds < 20, "callers are told before their own patience ends"
        lease = (await fleet.find_run())["lease_until"]

        async def is_renewed() -> bool:
            return bool((await fleet.find_run())["lease_until"] > lease)

        await fleet.until_true(is_renewed, "the lease is renewed")
    for each in first:
        assert (await each)[0] in {200, 503}
    assert (await asyncio.to_thread(get, automations, token))[0] == 200
    (fleet.directory / "evidence" / "go").touch()
    assert await fleet.ended(run_id) == "succeeded"
    run = await fleet.find_run()
    assert (run["attempt"], run["rescues"]) == (1, 0)
    await fleet.keeps_its_promises()


FEW_FILES = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")


async def test_connections_leave_file_descriptors_to_runs_and_are_paused_quietly(fleet: Fleet) -> None:
    token = await fleet.token()
    await fleet.every_second(3, agent=await fleet.agent("quick", "echo Done"))
    process = fleet.start("api,scheduler,watch,worker", prefix=FEW_FILES)
    url = await asyncio.to_thread(process.url)
    there = urlsplit(url)
    with ExitStack() as open_connections:
        began, before = time.monotonic(), len(process.said)
        for _ in range(80):
            client = open_connections.enter_context(socket.create_connection((there.hostname, there.port)))
            client.sendall(b"GET / HT")  # and no more
        await asyncio.to_thread(process.wait_for, "http.accept_paused")
        await fleet.fired(10)
        said, elapsed = process.said[before:], time.monotonic() - began
        assert sum("accept" in line for line in said) <= elapsed + 1
    status, _, _ = await asyncio.to_thread(get, f"{url}/api/v1/workspaces/default/automations", token)
    assert status == 200
    assert not [run for run in await fleet.find_runs() if run["status"] == "failed" or run["rescues"]]
    await fleet.keeps_its_promises()
