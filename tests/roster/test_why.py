"""Why it did or did not run: the ledger's answer for a minute."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from rota.model.schedule import CronSchedule
from rota.roster import automations
from rota.roster.why import MINUTE, Answer, recorded, unrecorded, why
from support.house import NOON, House

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


async def asked(house: House, automation_id: UUID, minute: datetime) -> Answer:
    async with house.db.transaction() as conn:
        found = await automations.find(conn, house.caller, str(automation_id))
        return await why(conn, house.caller.workspace_id, found, minute, "UTC")


async def revised(house: House, automation_id: UUID, *days_ago: int) -> None:
    """Its revisions were saved so many days before noon, the first one first; all but the first changed its prompt."""
    for number, _ in enumerate(days_ago[1:]):
        async with house.db.transaction() as conn:
            await automations.change(conn, house.caller, str(automation_id), {"prompt": f"Do it {number}."}, None)
    for revision, days in enumerate(days_ago, 1):
        saved = "UPDATE revisions SET created_at = %s WHERE subject_id = %s AND revision = %s"
        await house.execute(saved, NOON - timedelta(days=days), automation_id, revision)
    since = NOON - timedelta(days=days_ago[0])
    await house.execute("UPDATE automations SET created_at = %s", since)
    await house.execute("UPDATE triggers SET anchor_at = %s", since)


async def test_a_schedule_with_limits_is_known_of_earlier_revisions_too(house: House) -> None:
    hourly = {"cron": "0 * * * *", "timezone": "UTC", "overlap": "allow", "max_fires": 9}
    automation_id = await house.automation(triggers=[hourly])
    await revised(house, automation_id, 9, 5)
    assert (await asked(house, automation_id, NOON - timedelta(days=7))).code == "off"
    assert (await asked(house, automation_id, NOON - timedelta(days=7, minutes=5))).code == "not_due"


async def test_a_schedule_counts_from_when_it_was_saved_and_not_from_a_change_beside_it(house: House) -> None:
    automation_id = await house.automation({"every": "2d"})
    await revised(house, automation_id, 10, 7, 3)
    assert (await asked(house, automation_id, NOON - timedelta(days=6))).code == "off"
    assert (await asked(house, automation_id, NOON - timedelta(days=5))).code == "not_due"


async def test_of_a_stretch_of_missed_slots_a_minute_between_them_was_not_due(house: House) -> None:
    automation_id = await house.automation({"cron": "0 12 * * *", "timezone": "UTC"}, next_fire_at=NOON)
    await revised(house, automation_id, 9)
    async with house.db.transaction() as conn:
        await automations.pause(conn, house.caller, str(automation_id))
    [row] = await house.ledger()
    assert row["missed"]["count"] > 1
    assert (await asked(house, automation_id, NOON + timedelta(days=1))).code == "missed"
    assert (await asked(house, automation_id, NOON + timedelta(days=1, hours=3))).code == "not_due"
