"""The page of the fleet: how late runs start, over the whole day."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

from httpx import AsyncClient

from rota.db import runs
from rota.model.ids import id_at


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
    assert re.search(r"Waiting here</dt>\s*<dd>0\b", page)
    assert "Start late by" in page
    assert "no runs yet" not in page


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
