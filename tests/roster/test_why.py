"""Why it did or did not run: the ledger's answer for a minute."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from house import NOON

from rota.model.schedule import CronSchedule
from rota.roster.why import MINUTE, recorded, unrecorded

HOURLY = CronSchedule("0 * * * *", "UTC")


def run(slot: datetime, status: str = "succeeded", missed_since: datetime | None = None) -> dict[str, Any]:
    missed = {"count": 1, "since": missed_since.isoformat()} if missed_since else None
    return {"slot": slot, "status": status, "missed": missed}


def automation(**values: Any) -> dict[str, Any]:
    return {"created_at": NOON - timedelta(days=9), "deleted_at": None, **values}


@pytest.mark.parametrize(
    ("ledger", "code"),
    [
        ([run(NOON)], "ran"),
        ([run(NOON + timedelta(seconds=59))], "ran"),
        ([run(NOON, "skipped")], "skipped"),
        ([run(NOON + timedelta(hours=3), missed_since=NOON)], "missed"),
        ([run(NOON + timedelta(hours=3), "skipped", missed_since=NOON - timedelta(hours=1))], "missed"),
    ],
)
def test_what_the_ledger_has_is_told(ledger: list[dict[str, Any]], code: str) -> None:
    told = recorded(ledger, NOON)
    assert told
    assert (told.code, told.run) == (code, ledger[0])


def test_a_row_for_another_minute_says_nothing() -> None:
    others = [run(NOON - MINUTE), run(NOON + MINUTE), run(NOON + timedelta(hours=3), missed_since=NOON + MINUTE)]
    assert recorded(others, NOON) is None


@pytest.mark.parametrize(
    ("changes", "minute", "code"),
    [
        ({}, NOON + timedelta(minutes=5), "not_due"),
        ({}, NOON, "off"),
        ({}, NOON + timedelta(hours=9), "to_come"),
        ({"deleted_at": NOON - timedelta(hours=2)}, NOON, "deleted"),
        ({"created_at": NOON + timedelta(hours=1)}, NOON, "not_yet_saved"),
    ],
)
def test_where_there_is_no_slot_the_reason_is_told(changes: dict[str, Any], minute: datetime, code: str) -> None:
    told = unrecorded(automation(**changes), [HOURLY], minute, NOON + timedelta(hours=4))
    assert told.code == code
    if code == "not_due":
        assert told.next_slot == NOON + timedelta(hours=1)
        assert "Every hour" in told.text


def test_without_a_schedule_it_runs_only_when_called() -> None:
    assert unrecorded(automation(), [], NOON, NOON).code == "no_schedule"
