"""The log names each run that a rescue pass changed."""

import pytest

from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.watch.rescue import Rescue
from support.house import House
from support.run_state import from_now


async def test_the_log_names_each_rescued_and_each_stuck_run(
    house: House, db: Database, wakes: Wakes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lost = await house.running_run(await house.automation())
    await house.set_run(lost["id"], lease_until=from_now(seconds=-1))
    stuck = await house.queue_run(await house.automation())
    await house.set_run(stuck["id"], ready_at=from_now(hours=-1))
    await Rescue(db, wakes).once()
    lines = {record.getMessage(): vars(record) for record in caplog.records}
    rescued, failed = lines["run.rescued"], lines["run.stuck"]
    assert (rescued["run_id"], rescued["trace_id"], rescued["worker_id"]) == (lost["id"], lost["trace_id"], "w")
    assert (rescued["attempt"], rescued["status"]) == (1, "queued")
    assert (failed["run_id"], failed["trace_id"], failed["status"]) == (stuck["id"], stuck["trace_id"], "failed")
