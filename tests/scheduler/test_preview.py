"""What a schedule would do, before it is saved: fires in UTC and in its zone, words, and warnings."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.errors import Invalid
from rota.scheduler.inbound import publish_event
from rota.scheduler.preview import CROWD, Preview, preview
from support.house import House
from support.run_state import from_now

LOS_ANGELES = "America/Los_Angeles"


async def look(house: House, schedule: dict[str, Any], **options: Any) -> Preview:
    given = {"after": datetime(2026, 3, 1, tzinfo=UTC), "count": 3, **options}
    async with house.db.transaction() as conn:
        return await preview(conn, house.caller, schedule, **given)


async def test_it_shows_the_next_fires_with_their_offset_and_the_schedule_in_words(house: House) -> None:
    shown = await look(house, {"cron": "0 9 * * 1-5", "timezone": LOS_ANGELES}, after=datetime(2026, 3, 6, tzinfo=UTC))
    assert shown.text == "Every weekday at 09:00, Los Angeles"
    assert [fire.local for fire in shown.fires] == [
        "2026-03-06T09:00:00-08:00",
        "2026-03-09T09:00:00-07:00",
        "2026-03-10T09:00:00-07:00",
    ]
    assert shown.fires[1].at == datetime(2026, 3, 9, 16, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "code"),
    [
        ({"cron": "30 2 * * *", "timezone": LOS_ANGELES}, "dst_gap"),
        ({"cron": "30 1 * * *", "timezone": LOS_ANGELES}, "dst_fold"),
        ({"at": "2026-03-08T02:30", "timezone": LOS_ANGELES}, "dst_gap"),
        ({"at": "2026-11-01T01:59:59", "timezone": LOS_ANGELES}, "dst_fold"),
        ({"cron": "0 9 13 * 5"}, "dom_dow_or"),
        ({"at": "2030-01-01T00:00:00Z"}, "far"),
    ],
)
async def test_it_warns_of_what_may_surprise(house: House, schedule: dict[str, Any], code: str) -> None:
    assert code in [warning.code for warning in (await look(house, schedule)).warnings]


@pytest.mark.parametrize(
    "schedule",
    [
        {"cron": "0 9 * * *"},
        {"at": "2026-03-08T01:59:59"},
        {"at": "2026-03-08T03:00"},
        {"at": "2026-11-01T00:59:59"},
        {"at": "2026-11-01T02:00"},
        {"at": "2026-11-01T01:30:00-08:00"},  # the second time, as its offset says
    ],
)
async def test_a_plain_schedule_has_no_warning(house: House, schedule: dict[str, Any]) -> None:
    assert (await look(house, {**schedule, "timezone": LOS_ANGELES})).warnings == []


async def test_a_single_time_that_the_clock_skips_fires_later_with_a_warning(house: House) -> None:
    shown = await look(house, {"at": "2026-03-08T02:30", "timezone": LOS_ANGELES})
    assert [fire.local for fire in shown.fires] == ["2026-03-08T03:00:00-07:00"]
    assert [each.code for each in shown.warnings] == ["dst_gap"]


async def test_it_warns_when_the_minute_is_crowded(house: House) -> None:
    busy = datetime(2026, 3, 2, 9, tzinfo=UTC)
    for _ in range(CROWD):
        one = await house.automation({"cron": "0 9 * * *"}, next_fire_at=busy + timedelta(seconds=1))
    before = busy - timedelta(hours=1)
    assert [each.code for each in (await look(house, {"cron": "0 9 * * *"}, after=before)).warnings] == ["crowded"]
    own = await look(house, {"cron": "0 9 * * *"}, after=before, automation=str(one))
    assert own.warnings == [], "it is no other than itself"
    await house.automation({"cron": "0 9 * * *"}, next_fire_at=busy)
    [warning] = (await look(house, {"cron": "0 9 * * *"}, after=before, most_counted=CROWD)).warnings
    assert warning.message.startswith("20 or more other automations"), "all are not counted"
    assert (await look(house, {"cron": "1 9 * * *"}, after=busy - timedelta(hours=1))).warnings == []


async def test_it_warns_when_runs_usually_take_longer_than_the_interval(house: House) -> None:
    automation = await house.automation({"every": "1h"})
    await house.ended_run(automation, source="schedule", started_at=from_now(minutes=-10))
    shown = await look(house, {"every": "5m"}, automation=str(automation))
    assert [warning.code for warning in shown.warnings] == ["dense"]
    assert (await look(house, {"every": "15m"}, automation=str(automation))).warnings == []


async def test_it_warns_when_the_interval_is_shorter_than_the_workspaces_minimum(house: House) -> None:
    await house.execute("UPDATE workspaces SET minimum_interval = '10 minutes'")
    assert [warning.code for warning in (await look(house, {"every": "5m"})).warnings] == ["dense"]


async def test_a_wrong_schedule_is_refused_with_its_field(house: House) -> None:
    with pytest.raises(Invalid) as refused:
        await look(house, {"cron": "61 * * * *"})
    assert refused.value.field == "schedule.cron"
    assert await house.value("SELECT count(*) FROM automations") == 0


async def test_an_event_fires_nothing_in_another_workspace(house: House) -> None:
    from rota.roster.first_start import settle_in

    await house.automation({"event": "invoice.paid"})
    async with house.db.transaction() as conn:
        other = (await settle_in(conn, "other")).caller
        assert await publish_event(conn, other, "invoice.paid", None, None) == {}
    assert await house.ledger() == []
