"""The page of the fleet: how late runs start, over the whole day."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from httpx import AsyncClient

from rota.db import runs
from rota.model.ids import id_at
from support.run_state import from_now, running


async def test_lateness_is_told_for_every_stretch_of_the_day_from_its_newest_runs(
    admin: AsyncClient, house: Any
) -> None:
    ended = await house.ended_run(await house.automation())  # by hand: it has no slot, so it cannot be late
    now = await house.value("SELECT date_bin('10 minutes', now(), 'epoch')")
    for hours, lates in ((23, (9.0, 1.0, 1.0, 1.0)), (2, (4.0,))):
        for number, late in enumerate(lates):
            slot = now - timedelta(hours=hours) + timedelta(seconds=number + 1)
            started = slot + timedelta(seconds=late)
            await house.add_run(
                id=UUID(int=id_at(slot).int + 1), session_id=ended["session_id"], status="succeeded", slot=slot, ready_at=None,
                queued_at=slot, started_at=started, finished_at=started,
            )  # fmt: skip
    span = {"start": now - timedelta(hours=24), "end": now + timedelta(minutes=9), "bucket": timedelta(minutes=10)}
    async with house.db.connection() as conn:
        found = await runs.lateness(conn, house.caller.workspace_id, **span, limit=3)
    told = [(now - each["at"], each["median"], each["most"]) for each in found]
    assert told == [
        (timedelta(hours=23), 1.0, 1.0),
        (timedelta(hours=2), 4.0, 4.0),
    ]  # the first is not of the newest three
    page = (await admin.get("/w/default/fleet")).text
    assert re.search(r"Queued</dt>\s*<dd>0\b", page)
    assert "Start delay" in page
    assert "no runs yet" not in page
    assert "No data yet" in page  # instead of empty axes: no snapshot was taken


async def test_what_a_run_says_does_not_send_the_page_anew_with_every_heartbeat(admin: AsyncClient, house: Any) -> None:
    async def seen(last_line: str) -> list[str]:
        runs_of_it = f'[{{"workspace_id": "{house.caller.workspace_id}", "last_line": "{last_line}"}}]'
        await house.execute(
            "INSERT INTO workers (id, host, pid, places, kinds, pools, at_work) VALUES ('w', 'h', 1, 5, '{}', '{}', %s)"
            " ON CONFLICT (id) DO UPDATE SET at_work = excluded.at_work",
            runs_of_it,
        )
        return re.findall(r"live=([\w-]+)", (await admin.get("/w/default/fleet")).text)

    assert await seen("Reading page 1") == await seen("Reading page 2")


async def test_a_dead_worker_is_busy_with_nothing_and_shows_what_took_its_runs(admin: AsyncClient, house: Any) -> None:
    run = await house.running_run(await house.automation())
    at_work = {"workspace_id": house.caller.workspace_id, "run_id": run["id"], "attempt": 1, "last_line": "Halfway"}
    await house.execute(
        "INSERT INTO workers (id, host, pid, places, busy, kinds, pools, at_work) VALUES ('w', 'h', 1, 1, 1, '{}', '{}', %s)",
        orjson.dumps([at_work]).decode(),
    )

    async def shown() -> tuple[dict[str, Any], str]:
        [worker] = (await admin.get("/api/v1/workspaces/default/workers")).json()["items"]
        return worker, (await admin.get("/w/default/fleet")).text

    worker, page = await shown()
    assert (worker["status"], worker["busy"], worker["runs"][0]["last_line"]) == ("busy", 1, "Halfway")

    await house.execute("UPDATE workers SET last_seen_at = last_seen_at - interval '31 seconds'")
    worker, page = await shown()
    assert (worker["status"], worker["busy"], worker["runs"][0]["last_line"]) == ("dead", 0, "")
    assert worker["runs"][0]["since"]["worker_id"] == "w"
    assert "waiting to be taken back when its lease ends" in page
    assert "0 of 1" in page

    await house.set_run(run["id"], status="queued", worker_id=None, lease_until=None, ready_at=from_now(), rescues=1)
    assert "waiting for another worker" in (await shown())[1]

    await house.set_run(run["id"], **running(attempt=2, worker_id="next", ready_at=None))
    worker, page = await shown()
    since = {"status": "running", "attempt": 2, "worker_id": "next", "session_id": str(run["session_id"])}
    assert worker["runs"][0]["since"] == since
    assert "attempt 2 on next" in page
    assert f"/sessions/{run['session_id']}" in page
