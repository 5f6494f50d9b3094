"""Schedules: when they fire, how they are written and read, what is said about them before they are saved."""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from itertools import islice, takewhile
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import Invalid
from rota.model.cron import parse
from rota.model.describe import describe
from rota.model.duration import parse_duration
from rota.model.preview import Fire, preview, warnings
from rota.model.schedule import (
    LAST_YEAR,
    AtSchedule,
    Compiled,
    CronSchedule,
    EverySchedule,
    Kind,
    Schedule,
    editor_form,
    read_schedule,
    short_form,
)
from support.schedule_forms import ZONES, editor_forms, junk, shorthands

NOW = datetime(2026, 5, 5, 12, 0, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


def following(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    while slot := schedule.next_after(after):
        yield (after := slot)


def fires(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    return list(islice(following(schedule, after), count))


def read(form: Any, **options: Any) -> Compiled:
    return read_schedule(form, **{"default_timezone": "Europe/Berlin", "now": NOW, **options})


# ── When they fire ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_interval_first_fires_one_interval_after_its_anchor() -> None:
    schedule = EverySchedule(timedelta(minutes=15), NOW)
    assert schedule.next_after(NOW - timedelta(days=9)) == NOW + timedelta(minutes=15)
    assert schedule.next_after(NOW) == NOW + timedelta(minutes=15)
    assert schedule.next_after(NOW + timedelta(minutes=15)) == NOW + timedelta(minutes=30)


@given(
    st.timedeltas(timedelta(seconds=1), timedelta(days=3653)),
    st.integers(0, 10**6),
    st.timedeltas(-timedelta(days=1), timedelta(days=1)),
)
def test_an_interval_never_drifts(every: timedelta, number: int, off: timedelta) -> None:
    schedule = EverySchedule(every, NOW)
    try:
        slot = NOW + number * every
    except OverflowError:
        return
    if slot.year > LAST_YEAR:
        return
    if number:
        assert schedule.next_after(slot - MICROSECOND) == slot
        assert schedule.latest_until(NOW + every, slot) == slot
        assert schedule.count_slots(NOW + every, slot) == number
        assert schedule.count_slots(slot, slot) == 1
    later = schedule.next_after(max(NOW, slot + off))
    assert later is None or (later - NOW) % every == timedelta(0)


def test_an_interval_counts_elapsed_time_also_when_its_times_are_of_one_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    schedule = EverySchedule(timedelta(days=1), datetime(2026, 3, 28, 12, tzinfo=berlin))
    assert schedule.next_after(datetime(2026, 3, 28, 13, tzinfo=berlin)) == utc(2026, 3, 29, 11)
    assert schedule.latest_until(utc(2026, 3, 29, 11), datetime(2026, 3, 30, 13, tzinfo=berlin)) == utc(2026, 3, 30, 11)
    assert schedule.count_slots(utc(2026, 3, 29, 11), datetime(2026, 3, 30, 12, tzinfo=berlin)) == 1


def test_an_interval_that_outlasts_the_calendar_has_no_next_slot() -> None:
    assert EverySchedule(timedelta(days=3000), NOW).next_after(utc(9998, 1, 1)) is None
    assert EverySchedule(timedelta(days=365), utc(9998, 12, 31)).next_after(utc(9998, 12, 31)) is None


def days_at(days: int, hour: int, zone: str, anchor: datetime) -> EverySchedule:
    return EverySchedule(timedelta(days=days), anchor, days, time(hour), zone)


def test_every_two_days_starts_today_while_the_time_is_still_ahead() -> None:
    schedule = days_at(2, 9, "Europe/Berlin", utc(2026, 5, 5, 6, 59))
    assert fires(schedule, utc(2026, 5, 1), 3) == [utc(2026, 5, day, 7) for day in (5, 7, 9)]


def test_every_two_days_starts_tomorrow_when_the_time_has_passed() -> None:
    schedule = days_at(2, 9, "Europe/Berlin", utc(2026, 5, 5, 7, 0))
    assert fires(schedule, utc(2026, 5, 5, 7, 0), 3) == [utc(2026, 5, day, 7) for day in (6, 8, 10)]


def test_every_two_days_keeps_its_time_on_the_wall_when_the_clock_shifts() -> None:
    schedule = days_at(2, 9, "America/Los_Angeles", utc(2026, 3, 6))
    expected = [utc(2026, 3, 6, 17), utc(2026, 3, 8, 16), utc(2026, 3, 10, 16)]
    assert fires(schedule, utc(2026, 3, 6), 3) == expected


def test_every_two_days_fires_after_a_gap_once_in_a_fold_and_not_on_a_day_that_never_was() -> None:
    gap = days_at(2, 2, "America/New_York", utc(2024, 3, 8))
    assert fires(gap, utc(2024, 3, 8, 8), 2) == [utc(2024, 3, 10, 7), utc(2024, 3, 12, 6)]
    fold = days_at(2, 1, "America/New_York", utc(2024, 11, 1))
    assert fires(fold, utc(2024, 11, 2), 2) == [utc(2024, 11, 3, 5), utc(2024, 11, 5, 6)]
    apia = days_at(2, 12, "Pacific/Apia", utc(2011, 12, 28))
    assert fires(apia, utc(2011, 12, 28), 3) == [utc(2011, 12, 28, 22), utc(2011, 12, 31, 22), utc(2012, 1, 2, 22)]


@settings(max_examples=150)
@given(
    st.integers(1, 9),
    st.times(),
    st.sampled_from(ZONES),
    st.timedeltas(timedelta(days=-6_000), timedelta(days=1_500)).map(NOW.__add__),
    st.timedeltas(timedelta(0), timedelta(days=800)),
)
def test_every_so_many_days_is_counted_as_if_slot_by_slot(
    days: int, at: time, zone: str, anchor: datetime, span: timedelta
) -> None:
    at = at.replace(second=0, microsecond=0)
    schedule = EverySchedule(timedelta(days=days), anchor, days, at, zone)
    found = list(takewhile(lambda slot: slot <= anchor + span, following(schedule, anchor)))
    assert schedule.count_slots(anchor, anchor + span) == len(found)
    assert all(anchor < slot for slot in found)
    if found:
        assert found[0] - anchor <= timedelta(hours=50)
        assert schedule.latest_until(found[0], anchor + span) == found[-1]


def test_at_fires_once() -> None:
    schedule = AtSchedule(NOW)
    assert fires(schedule, NOW - timedelta(days=1), 3) == [NOW]
    assert schedule.next_after(NOW) is None
    assert schedule.latest_until(NOW, NOW + timedelta(days=1)) == NOW
    assert schedule.count_slots(NOW, NOW + timedelta(days=1)) == 1
    assert schedule.count_slots(NOW + MICROSECOND, NOW + timedelta(days=1)) == 0


def test_a_cron_schedule_fires_in_its_zone() -> None:
    schedule = CronSchedule("0 9 * * 1-5", "America/Los_Angeles")
    assert fires(schedule, NOW, 2) == [utc(2026, 5, 5, 16), utc(2026, 5, 6, 16)]
    assert schedule.latest_until(utc(2026, 5, 5, 16), utc(2026, 5, 11)) == utc(2026, 5, 8, 16)
    assert schedule.count_slots(utc(2026, 5, 5, 16), utc(2026, 5, 11)) == 4


# ── Reading a form ──────────────────────────────────────────────────────────────────────────────────────────


def every(text: str, **more: Any) -> EverySchedule:
    return EverySchedule(parse_duration(text), NOW, timezone="Europe/Berlin", **more)


@pytest.mark.parametrize(
    ("form", "kind", "schedule"),
    [
        ({"cron": " 0  9 * * 1-5 "}, "cron", CronSchedule("0 9 * * 1-5", "Europe/Berlin")),
        ({"cron": "@daily", "timezone": "UTC"}, "cron", CronSchedule("@daily", "UTC")),
        ({"cron": "@every 15m"}, "every", every("15m")),
        ({"cron": "@Every 15m"}, "every", every("15m")),
        ({"every": "15m"}, "every", every("15m")),
        ({"every": "@every 90m", "timezone": None}, "every", every("90m")),
        ({"every": "2d", "time": "9:00"}, "every", every("2d", days=2, time_of_day=time(9))),
        ({"every": "1d", "time": "23:59"}, "every", every("1d", days=1, time_of_day=time(23, 59))),
        ({"every": "1s"}, "every", every("1s")),
        ({"at": "2027-01-01T09:00:00Z"}, "at", AtSchedule(utc(2027, 1, 1, 9), "Europe/Berlin")),
        ({"at": "2027-01-01T09:00+02:00"}, "at", AtSchedule(utc(2027, 1, 1, 7), "Europe/Berlin")),
        ({"at": "2027-01-01 09:00"}, "at", AtSchedule(utc(2027, 1, 1, 8), "Europe/Berlin")),
        (
            {"at": "2027-01-01T09:00", "timezone": "Asia/Kolkata"},
            "at",
            AtSchedule(utc(2027, 1, 1, 3, 30), "Asia/Kolkata"),
        ),
        (
            {"at": "2027-03-14T02:30", "timezone": "America/New_York"},
            "at",
            AtSchedule(utc(2027, 3, 14, 7), "America/New_York"),
        ),
        (
            {"at": "2026-11-01T01:30", "timezone": "America/New_York"},
            "at",
            AtSchedule(utc(2026, 11, 1, 5, 30), "America/New_York"),
        ),
        ({"at": datetime(2027, 1, 1, 9, tzinfo=UTC)}, "at", AtSchedule(utc(2027, 1, 1, 9), "Europe/Berlin")),
    ],
)
def test_a_shorthand_is_understood(form: Any, kind: Kind, schedule: Schedule) -> None:
    assert read(form) == Compiled(kind, schedule)


@pytest.mark.parametrize(
    ("form", "schedule"),
    [
        ({"mode": "interval", "every": 1, "unit": "minutes"}, CronSchedule("* * * * *", "Europe/Berlin")),
        ({"mode": "interval", "every": 5, "unit": "minutes"}, CronSchedule("*/5 * * * *", "Europe/Berlin")),
        ({"mode": "interval", "every": 30, "unit": "minutes"}, CronSchedule("*/30 * * * *", "Europe/Berlin")),
        ({"mode": "interval", "every": 7, "unit": "minutes"}, every("7m")),
        ({"mode": "interval", "every": 60, "unit": "minutes"}, every("60m")),
        ({"mode": "interval", "every": 90, "unit": "minutes"}, every("90m")),
        ({"mode": "interval", "every": 1, "unit": "hours"}, CronSchedule("0 * * * *", "Europe/Berlin")),
        ({"mode": "interval", "every": 2, "unit": "hours"}, CronSchedule("0 */2 * * *", "Europe/Berlin")),
        ({"mode": "interval", "every": 5, "unit": "hours"}, every("5h")),
        ({"mode": "interval", "every": 24, "unit": "hours"}, every("24h")),
        ({"mode": "interval", "every": 36, "unit": "hours"}, every("36h")),
        ({"mode": "interval", "every": 1, "unit": "days", "time": "09:05"}, CronSchedule("5 9 * * *", "Europe/Berlin")),
        (
            {"mode": "interval", "every": 2, "unit": "days", "time": "09:00"},
            every("2d", days=2, time_of_day=time(9)),
        ),
        (
            {"mode": "weekly", "weekdays": ["fri", "mon", "fri"], "time": "09:00", "timezone": "UTC"},
            CronSchedule("0 9 * * 1,5", "UTC"),
        ),
        ({"mode": "weekly", "weekdays": ["sun"], "time": "0:30"}, CronSchedule("30 0 * * 0", "Europe/Berlin")),
        ({"mode": "advanced", "cron": "0 0 L * *"}, CronSchedule("0 0 L * *", "Europe/Berlin")),
        ({"mode": "advanced", "cron": "@every  90m"}, every("90m")),
    ],
)
def test_the_editors_modes_compile_to_exactly_what_they_say(form: Any, schedule: Schedule) -> None:
    compiled = read(form)
    assert compiled.schedule == schedule
    assert compiled.editor_mode == form["mode"]
    assert compiled.kind == ("cron" if isinstance(schedule, CronSchedule) else "every")


def test_the_editors_form_is_kept_normalised() -> None:
    form = {"mode": "weekly", "weekdays": ["sun", "fri", "mon"], "time": "9:00", "timezone": "UTC"}
    assert read(form).editor == {**form, "weekdays": ["mon", "fri", "sun"], "time": "09:00"}


@pytest.mark.parametrize(
    ("form", "code", "field", "said"),
    [
        ({}, "invalid_schedule", "schedule", "one of cron, every and at"),
        ({"crn": "0 9 * * *"}, "invalid_schedule", "schedule", "Did you mean “cron”?"),
        ([], "invalid_schedule", "schedule", "object"),
        ("0 9 * * *", "invalid_schedule", "schedule", "object"),
        ({"cron": "0 9 * * *", "every": "15m"}, "invalid_schedule", "every", "only one"),
        ({"cron": "0 9 * * *", "timezon": "UTC"}, "invalid_schedule", "timezon", "Did you mean “timezone”?"),
        ({"cron": "0 9 * * *", "time": "09:00"}, "invalid_schedule", "time", "no key 'time'"),
        ({"cron": "0 9 * * *", 7: 1}, "invalid_schedule", "7", "no key 7"),
        ({"cron": None}, "invalid_cron", "cron", "text"),
        ({"cron": 5}, "invalid_cron", "cron", "text"),
        ({"cron": ["0 9 * * *"]}, "invalid_cron", "cron", "text"),
        ({"cron": "0 0 31 2 *"}, "invalid_cron", "cron", "never"),
        ({"cron": "*/5 2 * 3 0#2", "timezone": "America/New_York"}, "invalid_cron", "cron", "America/New_York"),
        ({"cron": "@every 0s"}, "invalid_duration", "cron", "no time"),
        ({"cron": "@every"}, "invalid_duration", "cron", "such as"),
        ({"cron": "0 9 * * *", "timezone": "Europe/Berln"}, "unknown_timezone", "timezone", "“Europe/Berlin”?"),
        ({"cron": "0 9 * * *", "timezone": "../Berlin"}, "unknown_timezone", "timezone", "IANA"),
        ({"cron": "0 9 * * *", "timezone": 1}, "unknown_timezone", "timezone", "text"),
        ({"cron": "0 9 * * *", "timezone": []}, "unknown_timezone", "timezone", "text"),
        ({"every": 15}, "invalid_duration", "every", "such as"),
        ({"every": "0.5s"}, "invalid_schedule", "every", "one second"),
        ({"every": "-1m"}, "invalid_duration", "every", "such as"),
        ({"every": "36h", "time": "09:00"}, "invalid_schedule", "time", "whole days"),
        ({"every": "2d", "time": "24:00"}, "invalid_schedule", "time", "“23:59”"),
        ({"every": "2d", "time": 540}, "invalid_schedule", "time", "text"),
        ({"every": "2d", "time": "09:00:00"}, "invalid_schedule", "time", "“09:00”"),
        ({"at": "2026-05-05T12:00:00Z"}, "invalid_schedule", "at", "2026-05-05T14:00:00 in Europe/Berlin is in the past"),
        ({"at": "2027-01-01"}, "invalid_schedule", "at", "both"),
        ({"at": "tomorrow"}, "invalid_schedule", "at", "such as"),
        ({"at": "2027-02-30T09:00Z"}, "invalid_schedule", "at", "is not one"),
        ({"at": "9999-12-31T23:59-12:00"}, "invalid_schedule", "at", "1970 to 9998"),
        ({"at": "9999-12-31T23:59", "timezone": "America/New_York"}, "invalid_schedule", "at", "1970 to 9998"),
        ({"at": "9999-12-31T23:59Z", "timezone": "Pacific/Kiritimati"}, "invalid_schedule", "at", "1970 to 9998"),
        ({"at": "0001-01-01T00:00+12:00"}, "invalid_schedule", "at", "1970 to 9998"),
        ({"at": "٢٠٢٧-01-01T09:00Z"}, "invalid_schedule", "at", "both"),
        ({"at": 1}, "invalid_schedule", "at", "is not one"),
        ({"at": None}, "invalid_schedule", "at", "is not one"),
        ({"mode": "wekly"}, "invalid_schedule", "mode", "Did you mean “weekly”?"),
        ({"mode": None}, "invalid_schedule", "mode", "interval, weekly, advanced"),
        ({"mode": "interval", "every": 1, "unit": "days"}, "invalid_schedule", "time", "Days need a time"),
        ({"mode": "interval", "every": 2, "unit": "hours", "time": "09:00"}, "invalid_schedule", "time", "leave"),
        ({"mode": "interval", "every": 2, "unit": "weeks"}, "invalid_schedule", "unit", "minutes, hours, days"),
        ({"mode": "interval", "every": 2}, "invalid_schedule", "unit", "minutes, hours, days"),
        ({"mode": "interval", "every": True, "unit": "hours"}, "invalid_schedule", "every", "whole number"),
        ({"mode": "interval", "every": 0, "unit": "hours"}, "invalid_schedule", "every", "whole number"),
        ({"mode": "interval", "every": 1.5, "unit": "hours"}, "invalid_schedule", "every", "whole number"),
        ({"mode": "interval", "every": 10**30, "unit": "hours"}, "invalid_schedule", "every", "whole number"),
        ({"mode": "weekly", "time": "09:00"}, "invalid_schedule", "weekdays", "list"),
        ({"mode": "weekly", "weekdays": [], "time": "09:00"}, "invalid_schedule", "weekdays", "list"),
        ({"mode": "weekly", "weekdays": "mon", "time": "09:00"}, "invalid_schedule", "weekdays", "list"),
        ({"mode": "weekly", "weekdays": ["mno"], "time": "09:00"}, "invalid_schedule", "weekdays", "use sun, mon"),
        ({"mode": "weekly", "weekdays": [1], "time": "09:00"}, "invalid_schedule", "weekdays", "use sun, mon"),
        ({"mode": "weekly", "weekdays": ["mon"]}, "invalid_schedule", "time", "time of day"),
        ({"mode": "advanced"}, "invalid_cron", "cron", "text"),
        ({"mode": "advanced", "cron": "0 9 * * *", "every": 1}, "invalid_schedule", "every", "no key"),
    ],
)  # fmt: skip
def test_a_form_is_refused_with_its_field_and_what_would_be_right(form: Any, code: str, field: str, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(form)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert said in refused.value.message


def test_a_time_that_a_zone_skipped_for_good_is_refused() -> None:
    with pytest.raises(Invalid, match="never came"):
        read({"at": "2011-12-30T12:00", "timezone": "Pacific/Apia"}, now=utc(2011, 1, 1))


known_keys = st.sampled_from(["cron", "every", "at", "mode", "unit", "time", "timezone", "weekdays"])
modes = st.sampled_from(["interval", "weekly", "advanced", "days", "minutes", "UTC", "0 9 * * *"])


@settings(max_examples=250)
@given(junk | st.dictionaries(known_keys | st.text(max_size=5), modes | junk, max_size=5))
def test_any_form_is_read_or_refused(form: Any) -> None:
    try:
        answer: object = read(form).schedule
    except Invalid as refused:
        answer = refused.message.encode() + (refused.field or "").encode("ascii")
    assert answer


# ── The editor's round trip ─────────────────────────────────────────────────────────────────────────────────


@given(editor_forms)
def test_saving_what_the_editor_shows_changes_nothing(form: dict[str, Any]) -> None:
    compiled = read(form)
    shown = editor_form(compiled.schedule, compiled.editor_mode, compiled.editor)
    assert shown == compiled.editor
    assert read(shown) == compiled


@given(editor_forms | shorthands)
def test_what_the_editor_shows_gives_the_same_schedule_however_it_was_made(form: dict[str, Any]) -> None:
    schedule = read(form).schedule
    assert read(editor_form(schedule)).schedule == schedule
    assert read(editor_form(schedule, "weekly")).schedule == schedule
    assert read(short_form(schedule)).schedule == schedule


def test_an_editors_form_that_no_longer_fits_is_not_shown() -> None:
    old = {"mode": "weekly", "weekdays": ["mon"], "time": "09:00", "timezone": "UTC"}
    shown = editor_form(CronSchedule("0 10 * * 1", "UTC"), "weekly", old)
    assert shown == {"mode": "advanced", "cron": "0 10 * * 1", "timezone": "UTC"}


# ── In words ────────────────────────────────────────────────────────────────────────────────────────────────

LA = "America/Los_Angeles"


@pytest.mark.parametrize(
    ("expr", "zone", "words"),
    [
        ("* * * * *", LA, "Every minute"),
        ("*/15 * * * *", LA, "Every 15 minutes"),
        ("0,30 * * * *", LA, "Every 30 minutes"),
        ("*/15 * * * *", "Asia/Kathmandu", "Every 15 minutes"),
        ("*/20 * * * *", LA, "Every 20 minutes"),
        ("*/20 * * * *", "Australia/Lord_Howe", "Every hour at :00, :20 and :40, Lord Howe"),
        ("5 * * * *", LA, "Every hour at :05"),
        ("@hourly", "UTC", "Every hour at :00"),
        ("5,35 * * * *", "UTC", "Every hour at :05 and :35"),
        ("0 * * * *", "Asia/Kolkata", "Every hour at :00, Kolkata"),
        ("*/90 * * * *", LA, "Every hour at :00"),
        ("*/7 * * * *", LA, "Cron “*/7 * * * *”, Los Angeles"),
        ("0 */2 * * *", LA, "Every 2 hours from 00:00, Los Angeles"),
        ("0 1/2 * * *", LA, "Every 2 hours from 01:00, Los Angeles"),
        ("0 */5 * * *", LA, "Every day, every 5 hours from 00:00 to 20:00, Los Angeles"),
        ("0 0-23 * * *", LA, "Every day, every hour from 00:00 to 23:00, Los Angeles"),
        ("0 9-17 * * 1-5", LA, "Every weekday, every hour from 09:00 to 17:00, Los Angeles"),
        ("*/15 9-17 * * 1-5", LA, "Every weekday, every 15 minutes from 09:00 to 17:45, Los Angeles"),
        ("*/15 * * * 1-5", LA, "Every weekday, every 15 minutes, Los Angeles"),
        ("* 9 * * *", LA, "Every day, every minute from 09:00 to 09:59, Los Angeles"),
        ("0 9 * * *", "Europe/Berlin", "Every day at 09:00, Berlin"),
        ("0 9,17 * * *", "UTC", "Every day at 09:00 and 17:00, UTC"),
        ("0 9 * * 1-5", LA, "Every weekday at 09:00, Los Angeles"),
        ("0 9 * * MON-FRI", LA, "Every weekday at 09:00, Los Angeles"),
        ("0 9 * * 1,5", "UTC", "Every Monday and Friday at 09:00, UTC"),
        ("0 9 * * 0,6", "UTC", "Every Saturday and Sunday at 09:00, UTC"),
        ("0 9 * * 0-7", "UTC", "Every day at 09:00, UTC"),
        ("0 9 1-31 * 1", "UTC", "Every day at 09:00, UTC"),
        ("0 0 1 * *", "UTC", "On the 1st of every month at 00:00, UTC"),
        ("0 0 1,15 * *", "UTC", "On the 1st and 15th of every month at 00:00, UTC"),
        ("0 0 2,3,11,12,13,22 * *", "UTC", "On the 2nd, 3rd, 11th, 12th, 13th and 22nd of every month at 00:00, UTC"),
        ("0 0 31 * *", "UTC", "On the 31st of every month that has one, at 00:00, UTC"),
        ("0 0 30,31 * *", "UTC", "Cron “0 0 30,31 * *”, UTC"),
        ("0 0 31 1,3 *", "UTC", "On the 31st of January and March at 00:00, UTC"),
        ("0 0 31 3,4 *", "UTC", "Cron “0 0 31 3,4 *”, UTC"),
        ("0 18 L * *", "Europe/Paris", "On the last day of every month at 18:00, Paris"),
        ("0 18 LW * *", "UTC", "On the last weekday of every month at 18:00, UTC"),
        ("0 18 1,L * *", "UTC", "On the 1st and the last day of every month at 18:00, UTC"),
        ("0 9 1W * *", "UTC", "On the first weekday of every month at 09:00, UTC"),
        ("0 9 15W * *", "UTC", "On the weekday nearest the 15th of every month at 09:00, UTC"),
        ("0 9 31W * *", "UTC", "Cron “0 9 31W * *”, UTC"),
        ("0 9 ? * 2#2", "UTC", "On the second Tuesday of every month at 09:00, UTC"),
        ("0 9 * * 5L", "UTC", "On the last Friday of every month at 09:00, UTC"),
        ("0 9 * * 5#5", "UTC", "On the fifth Friday of every month that has one, at 09:00, UTC"),
        ("0 0 * 2 1#5", "UTC", "Cron “0 0 * 2 1#5”, UTC"),
        ("0 9 * * 1#1,1#3", "UTC", "On the first Monday and the third Monday of every month at 09:00, UTC"),
        ("@yearly", "UTC", "Every year on 1 January at 00:00, UTC"),
        ("0 0 29 2 *", "UTC", "On 29 February in leap years at 00:00, UTC"),
        ("0 0 1 */3 *", "UTC", "On the 1st of January, April, July and October at 00:00, UTC"),
        ("0 0 9 4-10 *", "UTC", "On the 9th of every month from April to October at 00:00, UTC"),
        ("0 0 * 6,7 1", "UTC", "Every Monday in June and July at 00:00, UTC"),
        ("0 12 * 12 *", "UTC", "Every day in December at 12:00, UTC"),
        ("30 4 1,15 * 5", "UTC", "On the 1st and 15th of every month and on every Friday at 04:30, UTC"),
        ("30 4 1 * 2#2", "UTC", "On the 1st of every month and on the second Tuesday of every month at 04:30, UTC"),
        ("0 0 */2 * *", "UTC", "Cron “0 0 */2 * *”, UTC"),
        ("1 1 */100,1-7 * MON", "UTC", "Cron “1 1 */100,1-7 * MON”, UTC"),
        ("0 9 * * *", "America/Argentina/Buenos_Aires", "Every day at 09:00, Buenos Aires"),
    ],
)
def test_a_cron_schedule_is_said_in_words(expr: str, zone: str, words: str) -> None:
    assert describe(CronSchedule(expr, zone)) == words


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (every("15m"), "Every 15 minutes"),
        (every("90m"), "Every 90 minutes"),
        (every("1h"), "Every hour"),
        (every("2h"), "Every 2 hours"),
        (every("1d"), "Every 24 hours"),
        (every("2d"), "Every 2 days (48 hours)"),
        (every("30s"), "Every 30 seconds"),
        (every("1.5s"), "Every 1.5 seconds"),
        (every("3h15m1s"), "Every 3 hours, 15 minutes and 1 second"),
        (days_at(2, 9, "Europe/London", NOW), "Every 2 days at 09:00, London"),
        (days_at(1, 9, "Europe/London", NOW), "Every day at 09:00, London"),
        (AtSchedule(utc(2027, 1, 1, 9)), "Once, on 1 January 2027 at 09:00, UTC"),
        (AtSchedule(utc(2027, 1, 1, 20), "Asia/Tokyo"), "Once, on 2 January 2027 at 05:00, Tokyo"),
        (AtSchedule(utc(2027, 1, 1, 9, 0, 30)), "Once, on 1 January 2027 at 09:00:30, UTC"),
        (AtSchedule(utc(9999, 12, 31, 23), "Pacific/Kiritimati"), "Once, on 31 December 9999 at 23:00, UTC"),
    ],
)
def test_other_schedules_are_said_in_words(schedule: Schedule, words: str) -> None:
    assert describe(schedule) == words


def test_no_two_expressions_that_differ_are_said_in_the_same_words() -> None:
    choose = Random(7).choice
    said: dict[str, Any] = {}
    for _ in range(8_000):
        fields = (
            choose(["0", "5", "*", "*/5", "*/7", "*/15", "5/15", "0,30", "10-20", "0-50/10", "*/90", "59"]),
            choose(["*", "*/2", "*/5", "1/2", "9", "0", "9,17", "9-17", "0-23", "8-20/4", "0-22/2", "*/24", "22,23"]),
            choose(["*", "1", "1,15", "31", "29", "30,31", "L", "LW", "1W", "2W", "28W", "1,L", "*/2", "1-31", "1-7"]),
            choose(["*", "1", "2", "1,7", "4-10", "2-4", "*/3", "1-12", "1,2,3,5,6,7,9"]),
            choose(["*", "1", "1-5", "0,6", "0-6", "1#1", "1#5", "5L", "1#1,1#3", "*/2", "1,2#2", "7", "0-7"]),
        )
        expr = " ".join(fields)
        try:
            cron = parse(expr)
        except Invalid:
            continue
        words = describe(CronSchedule(expr, "Europe/Berlin"))
        meaning = said.setdefault(words, (expr, cron.minutes, cron.calendar))
        assert meaning[1:] == (cron.minutes, cron.calendar), f"{expr} and {meaning[0]} are both “{words}”"
    assert sum("Cron" not in words for words in said) > 500


# ── Before it is saved ──────────────────────────────────────────────────────────────────────────────────────


def test_a_preview_shows_each_fire_with_its_offset() -> None:
    found = preview(CronSchedule("0 9 * * *", LA), utc(2026, 3, 7), 3)
    assert found[1:] == [
        Fire(utc(2026, 3, 8, 16), "2026-03-08T09:00:00-07:00"),
        Fire(utc(2026, 3, 9, 16), "2026-03-09T09:00:00-07:00"),
    ]
    assert found[0].local == "2026-03-07T09:00:00-08:00"


def test_a_preview_ends_where_the_schedule_does() -> None:
    assert preview(AtSchedule(NOW), NOW - MICROSECOND, 3) == [Fire(NOW, "2026-05-05T12:00:00+00:00")]
    assert preview(AtSchedule(NOW, "Asia/Tokyo"), NOW - MICROSECOND, 3) == [Fire(NOW, "2026-05-05T21:00:00+09:00")]
    assert preview(AtSchedule(NOW), NOW, 3) == []


def codes(schedule: Schedule, after: datetime = NOW, **options: Any) -> list[str]:
    return [warning.code for warning in warnings(schedule, after, **options)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (CronSchedule("0 9 * * *", LA), []),
        (CronSchedule("30 2 * * *", LA), ["dst_gap"]),
        (CronSchedule("30 1 * * *", LA), ["dst_fold"]),
        (CronSchedule("30 1,2 * * *", LA), ["dst_fold", "dst_gap"]),
        (CronSchedule("30 1,2 * * *", "Asia/Kolkata"), []),
        (CronSchedule("30 * * * *", LA), []),
        (CronSchedule("*/20 2 * * *", LA), ["dst_gap"]),
        (CronSchedule("30 2 * * 1", LA), []),  # the clock shifts on Sundays
        (CronSchedule("0 3 * * *", LA), []),
        (CronSchedule("30 2 1,15 * 0", LA), ["dom_dow_or", "dst_gap"]),
        (CronSchedule("0 9 29 2 *", LA), ["far"]),
        (CronSchedule("*/90 * * * *", LA), ["uneven_step"]),
        (CronSchedule("*/7 */5 * * *", LA), ["uneven_step", "uneven_step", "dst_fold", "dst_gap"]),
        (CronSchedule("*/15 */6 * * *", LA), ["dst_fold", "dst_gap"]),
        (CronSchedule("*/15 */6 * * *", "UTC"), []),
        (days_at(1, 2, LA, NOW), ["dst_gap"]),
        (days_at(7, 2, LA, NOW), []),  # Tuesdays
        (EverySchedule(timedelta(minutes=7), NOW), []),
        (AtSchedule(NOW + timedelta(days=400)), ["far"]),
        (AtSchedule(NOW + timedelta(days=300)), []),
    ],
)
def test_what_may_surprise_is_said_before_it_happens(schedule: Schedule, expected: list[str]) -> None:
    assert codes(schedule) == expected


def test_a_warning_names_the_day_and_what_becomes_of_the_time() -> None:
    gap, fold = warnings(CronSchedule("30 1,2 * * *", LA), utc(2026, 1, 1))[:2]
    assert gap.message == "On 8 March 2026 the clock in Los Angeles skips 02:00 to 03:00; 02:30 fires at 03:00 instead."
    assert fold.message == (
        "On 1 November 2026 the clock in Los Angeles shows 01:00 to 02:00 twice; 01:30 fires once, the first time."
    )
    apia = warnings(CronSchedule("0 12 * * *", "Pacific/Apia"), utc(2011, 12, 1))
    assert apia[0].message == "On 30 December 2011 the clock in Apia skips 00:00 to 00:00; 12:00 does not fire."


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            {"mode": "interval", "every": 2, "unit": "hours", "timezone": "Europe/Berlin"},
            [
                "On 29 March 2026 the clock in Berlin skips 02:00 to 03:00; 02:00 does not fire, and 3h pass between two fires, not 2h.",
                "On 25 October 2026 the clock in Berlin shows 02:00 to 03:00 twice; 02:00 fires twice, and 1h pass between two fires, not 2h.",
            ],
        ),
        (
            {"cron": "0 */6 * * *", "timezone": LA},
            [
                "On 8 March 2026 the clock in Los Angeles skips 02:00 to 03:00; 5h pass between two fires, not 6h.",
                "On 1 November 2026 the clock in Los Angeles shows 01:00 to 02:00 twice; 7h pass between two fires, not 6h.",
            ],
        ),
        (
            {"cron": "*/30 2 * * *", "timezone": LA},
            ["On 8 March 2026 the clock in Los Angeles skips 02:00 to 03:00; 02:00 does not fire."],
        ),
        (
            {"at": "2026-03-08T02:30", "timezone": LA},
            ["On 8 March 2026 the clock in Los Angeles skips 02:00 to 03:00; 02:30 fires at 03:00 instead."],
        ),
        ({"cron": "*/20 * * * *", "timezone": LA}, []),
        ({"cron": "0 * * * *", "timezone": LA}, []),
        ({"cron": "*/5 9-17 * * *", "timezone": LA}, []),
        ({"cron": "0 */2 * * 1-5", "timezone": LA}, []),
        ({"cron": "0 */2 * * *", "timezone": "UTC"}, []),
    ],
)
def test_a_warning_says_where_the_clock_shifts_the_steps_of_what_follows_it(
    form: dict[str, Any], expected: list[str]
) -> None:
    start = utc(2026, 3, 1)
    found = warnings(read(form, now=start).schedule, start)
    assert [each.message for each in found if "2026" in each.message] == expected


def test_fires_closer_than_a_run_takes_are_dense() -> None:
    busy = CronSchedule("0,5 9 * * *", "UTC")
    assert codes(busy, usual_duration=timedelta(minutes=6)) == ["dense"]
    assert codes(busy, usual_duration=timedelta(minutes=5)) == []
    assert codes(busy, minimum_interval=timedelta(minutes=10), usual_duration=timedelta(hours=1)) == ["dense"]
    assert codes(AtSchedule(NOW + timedelta(days=1)), minimum_interval=timedelta(minutes=10)) == []
    said = warnings(busy, NOW, usual_duration=timedelta(minutes=6))[0].message
    assert said == "Fires come as close as 5m; a run usually takes 6m."
