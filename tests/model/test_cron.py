"""Cron is ours, so it is held against the vectors, against cronsim in UTC, and against the clock minute by minute."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import Invalid
from rota.model.cron import (
    count_slots,
    did_you_mean,
    latest_until,
    load_zone,
    next_after,
    parse,
    slot_at,
    zone_names,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "cron.json").read_text())["vectors"]
MINUTE = timedelta(minutes=1)

# A day on which the clock does something, in zones that do it in every way there is.
SHIFTS = [
    ("America/Los_Angeles", date(2026, 3, 8)),
    ("America/Los_Angeles", date(2026, 11, 1)),
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("Australia/Lord_Howe", date(2026, 4, 5)),  # by half an hour
    ("Australia/Lord_Howe", date(2026, 10, 4)),
    ("Asia/Kolkata", date(2026, 5, 5)),  # never
    ("America/Sao_Paulo", date(2018, 2, 18)),  # at midnight
    ("America/Sao_Paulo", date(2018, 11, 4)),
    ("Africa/Casablanca", date(2024, 3, 10)),  # back for Ramadan
    ("Africa/Casablanca", date(2024, 4, 14)),
    ("Pacific/Apia", date(2011, 12, 30)),  # a day that never was
    ("Pacific/Apia", date(2012, 4, 1)),
    ("America/St_Johns", date(2006, 4, 2)),  # at one minute past midnight
    ("America/St_Johns", date(2006, 10, 29)),
    ("Antarctica/Troll", date(2026, 3, 29)),  # by two hours
    ("Antarctica/Casey", date(2018, 10, 7)),  # by three hours, the longest that is made up for
    ("Antarctica/Casey", date(2018, 3, 11)),
    ("Pacific/Chatham", date(2024, 9, 29)),
    ("Pacific/Kwajalein", date(1969, 9, 30)),  # back by 23 hours
    ("Pacific/Kwajalein", date(1993, 8, 21)),
]


def wall(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute)  # noqa: DTZ001 — what a clock on the wall shows


def slots(expr: str, zone: str, after: datetime, count: int) -> Iterator[datetime]:
    for _ in range(count):
        yield (after := next_after(expr, zone, after))


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{each['id']} {each['expr']}" for each in VECTORS])
def test_a_vector_gives_its_slots_or_is_refused(vector: Mapping[str, Any]) -> None:
    after = datetime.fromisoformat(vector["after"])
    if vector["expected"] == "error":
        with pytest.raises(Invalid) as refused:
            next_after(vector["expr"], vector["tz"], after)
        assert (refused.value.code, refused.value.field) == ("invalid_cron", "cron")
    else:
        found = list(slots(vector["expr"], vector["tz"], after, len(vector["expected"])))
        assert [f"{slot:%Y-%m-%dT%H:%M:%SZ}" for slot in found] == vector["expected"]
        assert all(slot.tzinfo is UTC for slot in found)


def test_there_are_as_many_vectors_as_promised() -> None:
    assert len(VECTORS) == 197


# ── Against cronsim, in UTC ─────────────────────────────────────────────────────────────────────────────────


def field(low: int, high: int, *more: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    spread = st.tuples(st.integers(low, high - 1), st.integers(1, high - low)).map(
        lambda pair: f"{pair[0]}-{min(high, pair[0] + pair[1])}"
    )
    step = st.tuples(st.one_of(st.just("*"), spread), st.integers(1, high + 5)).map("{0[0]}/{0[1]}".format)
    items = st.lists(st.one_of(number, spread, step, *more), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), items)


last_day = st.sampled_from(["L", "LW"])
nth_day = st.tuples(st.integers(0, 7), st.integers(1, 5)).map("{0[0]}#{0[1]}".format)
final_day = st.integers(0, 7).map("{}L".format)
expressions = st.tuples(
    field(0, 59), field(0, 23), field(1, 31, last_day), field(1, 12), field(0, 7, nth_day, final_day)
).map(" ".join)
instants = st.datetimes(wall(1990, 1, 1), wall(2090, 1, 1), timezones=st.just(UTC))


@settings(max_examples=400)
@given(expressions, instants)
def test_in_utc_it_agrees_with_cronsim(expr: str, instant: datetime) -> None:
    try:
        expected = list(islice(CronSim(expr, instant), 5))
    except CronSimError:
        expected = []
    if expected:
        assert list(slots(expr, "UTC", instant, len(expected))) == expected
    else:
        with pytest.raises(Invalid):
            parse(expr)


# ── Against the clock, minute by minute ─────────────────────────────────────────────────────────────────────


def real_minutes(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    while start < end:
        yield start, start.astimezone(zone).replace(tzinfo=None)
        start += MINUTE


def counted_by_hand(expr: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Every slot from start to end, from cronsim's matches on a clock that never shifts."""
    clock = ZoneInfo(zone)
    naive = (start - 2 * timedelta(days=1)).replace(tzinfo=None)
    limit = (end + 2 * timedelta(days=1)).replace(tzinfo=None)
    due = set(takewhile(lambda wall: wall < limit, CronSim(expr, naive)))
    minutes = list(real_minutes(clock, start - timedelta(days=2), end + timedelta(days=1)))
    minute, hour, *_ = expr.split()
    if "*" in minute[0] + hour[0]:
        found = {at for at, wall in minutes if wall in due}
    else:
        found = set(fixed_slots(due, minutes))
    return sorted(at for at in found if start <= at <= end)


def fixed_slots(due: set[datetime], minutes: Sequence[tuple[datetime, datetime]]) -> Iterator[datetime]:
    seen = set()
    for (_, before), (at, wall) in zip([minutes[0], *minutes], minutes, strict=False):
        gap = wall - before - MINUTE
        if timedelta(0) < gap <= timedelta(hours=3) and any(before < skipped < wall for skipped in due):
            yield at
        if wall in due and wall not in seen:
            yield at
        seen.add(wall)


small_fields = st.sampled_from(
    [
        ("*", "*"), ("*/20", "*"), ("0", "*"), ("39", "*"), ("30", "*/2"), ("*/15", "1-3"), ("*/20", "0,23"),
        ("30", "2"), ("0", "0"), ("15,45", "0-3"), ("0", "0-23"), ("45", "1,23"), ("0,30", "12"), ("1", "0"),
        ("59", "23"), ("5/10", "0-4"),
    ]
)  # fmt: skip
days = st.sampled_from(["* * *", "*/2 * *", "* * 0", "* * 0#1", "L * *", "1,30 * *", "1 * 0,5", "* * 6L"])
moments = st.tuples(
    small_fields.map(" ".join), days, st.sampled_from(SHIFTS), st.integers(-2160, 2160), st.integers(0, 3600)
)


@settings(max_examples=150)
@given(moments)
def test_around_a_shift_every_slot_is_where_the_clock_says(moment: tuple[str, str, tuple[str, date], int, int]) -> None:
    times, day, (zone, shift), minutes, length = moment
    expr = f"{times} {day}"
    start = datetime.combine(shift, datetime.min.time(), UTC) + minutes * MINUTE
    end = start + length * MINUTE
    expected = counted_by_hand(expr, zone, start, end)
    found = takewhile(lambda slot: slot <= end, slots(expr, zone, start - timedelta(seconds=1), 9_999))
    assert list(found) == expected
    assert count_slots(expr, zone, start, end) == len(expected)
    if expected:
        assert count_slots(expr, zone, expected[0], end) == len(expected)
        assert latest_until(expr, zone, expected[0], end) == expected[-1]


@settings(max_examples=300)
@given(expressions, st.sampled_from(SHIFTS), instants)
def test_the_next_slot_is_later_and_none_lies_between(expr: str, shift: tuple[str, date], instant: datetime) -> None:
    try:
        parse(expr)
    except Invalid:
        return
    zone = shift[0]
    first, second = slots(expr, zone, instant, 2)
    assert instant < first < second
    middle = first + (second - first) / 2
    assert next_after(expr, zone, middle) == second
    assert next_after(expr, zone, second - timedelta(microseconds=1)) == second
    assert count_slots(expr, zone, instant + timedelta(microseconds=1), second) == 2
    assert latest_until(expr, zone, first, middle) == first


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Australia/Lord_Howe", "Africa/Casablanca"])
@pytest.mark.parametrize("expr", ["17 */5 * * 1-5", "30 1,2 * * *", "0 0 L * *", "15 0-23/3 1,15 * 5"])
def test_years_are_counted_as_if_slot_by_slot(zone: str, expr: str) -> None:
    start, end = datetime(2023, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    found = list(takewhile(lambda slot: slot <= end, slots(expr, zone, start, 99_999)))
    assert count_slots(expr, zone, found[0], end) == len(found)
    assert latest_until(expr, zone, found[0], end) == found[-1]


def test_a_year_of_minutes_is_counted_by_the_day() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    end = start + timedelta(days=365)
    spent = min(timed(lambda: count_slots("* * * * *", "Europe/Berlin", start, end)) for _ in range(3))
    assert count_slots("* * * * *", "Europe/Berlin", start, end) == 365 * 1440 + 1
    assert spent < 0.05


def test_a_zone_whose_offset_has_seconds_still_fires_on_its_own_minute() -> None:
    # Monrovia was at -0:44:30 until 7 January 1972, when it skipped ahead to UTC.
    before = datetime(1972, 1, 6, 12, tzinfo=UTC)
    assert next_after("0 9 * * *", "Africa/Monrovia", before) == datetime(1972, 1, 7, 9, tzinfo=UTC)
    assert next_after("0 13 * * *", "Africa/Monrovia", before) == datetime(1972, 1, 6, 13, 44, 30, tzinfo=UTC)


@pytest.mark.parametrize("name", ["UTC", "America/Los_Angeles"])
def test_a_zone_and_an_instant_come_in_any_form(name: str) -> None:
    here = datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/Los_Angeles"), fold=1)
    assert next_after("* * * * *", name, here) == datetime(2026, 11, 1, 9, 31, tzinfo=UTC)
    assert next_after(parse("* * * * *"), ZoneInfo(name), here) == datetime(2026, 11, 1, 9, 31, tzinfo=UTC)


def test_a_fixed_time_has_one_instant_or_none() -> None:
    assert slot_at("America/New_York", wall(2024, 3, 10, 2, 30)) == datetime(2024, 3, 10, 7, tzinfo=UTC)
    assert slot_at("America/New_York", wall(2024, 11, 3, 1, 30)) == datetime(2024, 11, 3, 5, 30, tzinfo=UTC)
    assert slot_at("Pacific/Apia", wall(2011, 12, 30, 12)) is None


# ── The calendar ────────────────────────────────────────────────────────────────────────────────────────────


def nearest_weekday(year: int, month: int, day: int) -> date | None:
    try:
        wanted = date(year, month, day)
    except ValueError:
        return None
    around = (wanted + timedelta(days=off) for off in (0, -1, 1, -2, 2))
    return next(each for each in around if each.month == month and each.weekday() < 5)


@pytest.mark.parametrize("day", [1, 2, 15, 28, 29, 30, 31])
def test_the_nearest_weekday_never_leaves_its_month(day: int) -> None:
    expected = [nearest_weekday(2020 + month // 12, month % 12 + 1, day) for month in range(120)]
    found = [slot.date() for slot in slots(f"0 0 {day}W * *", "UTC", datetime(2019, 12, 31, 1, tzinfo=UTC), 60)]
    assert found == [each for each in expected if each][:60]


@pytest.mark.parametrize(
    ("expr", "after", "expected"),
    [
        ("0 0 29 2 */7", 2032, 2060),  # a Sunday: every 28 years
        ("0 0 29 2 *", 2096, 2104),  # 2100 is no leap year
        ("0 0 * 2 1#5", 2072, 2112),  # a fifth Monday in February is a 29th: forty years, over 2100
        ("0 0 29W 2 *", 2096, 2104),
    ],
)
def test_what_comes_once_in_decades_is_found(expr: str, after: int, expected: int) -> None:
    assert next_after(expr, "Europe/Berlin", datetime(after, 3, 1, tzinfo=UTC)).year == expected


@pytest.mark.parametrize(
    "expr",
    [
        "0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 30,31 2 *", "0 0 30W 2 *", "0 0 31W 2,4 *",
        "0 0 */100 * MON#4", "0 0 */100 * 1#5",
    ],
)  # fmt: skip
def test_what_never_fires_is_refused_at_once(expr: str) -> None:
    assert min(timed(lambda: refusal(expr)) for _ in range(3)) < 0.05
    assert "day of month" in refusal(expr).message


def test_what_a_zone_always_skips_is_refused_at_once() -> None:
    expr = "*/5 2 * 3 0#2"  # the hour that New York skips
    now = datetime(2026, 5, 1, tzinfo=UTC)
    assert next_after(expr, "Europe/Berlin", now)
    assert min(timed(lambda: refusal(expr, "America/New_York", now)) for _ in range(3)) < 0.05
    assert "America/New_York" in refusal(expr, "America/New_York", now).message


def test_the_end_of_the_calendar_is_a_refusal() -> None:
    assert "calendar" in refusal("0 0 1 1 *", "UTC", datetime(9998, 12, 31, tzinfo=UTC)).message


# ── Refusals ────────────────────────────────────────────────────────────────────────────────────────────────


def refusal(expr: str, zone: str = "UTC", after: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> Invalid:
    with pytest.raises(Invalid) as refused:
        next_after(expr, zone, after)
    return refused.value


def timed(work: Callable[[], object]) -> float:
    """The processor time of the work, which does not count the time that other programs take."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("60 * * * *", "minute “60” is out of range; use 0 to 59"),
        ("0 24 * * *", "hour “24” is out of range; use 0 to 23"),
        ("0 0 0 * *", "day of month “0” is out of range; use 1 to 31"),
        ("0 0 1 JANU *", "month “JANU” is not understood; use *, 1 to 12 or JAN to DEC"),
        ("0 0 * * 8", "day of week “8” is out of range; use 0 to 7 or SUN to SAT"),
        ("0 22-2 * * *", "hour “22-2” runs backwards; use 22-23,0-2"),
        ("0 0 * * SAT-MON", "day of week “SAT-MON” runs backwards; use 6-7,0-1"),
        ("0 0 * * 1/2", "day of week “1/2” has a step on a single day; use a range such as 1-6/2"),
        ("*/0 * * * *", "minute “*/0” needs a step of 1 or more after the slash, such as */5"),
        ("*/ * * * *", "minute “*/” needs a step of 1 or more after the slash, such as */5"),
        ("0 0 L-2 * *", "day of month “L-2” is not supported; use L (last day) or LW (last weekday)"),
        ("0 0 * * L", "day of week “L” does not say which day; use 5L for the last Friday of the month"),
        ("0 0 * * 1#6", "day of week “1#6” asks for a week that no month has; use 1 to 5 after the #"),
        ("? * * * *", "minute “?” is not understood; use *, 0 to 59"),
        ("0 0 1,,2 * *", "day of month “” is not understood; use *, 1 to 31"),
        ("0 0 31 2 *", "day of month “31” never comes in month “2”, so this would never fire"),
        ("0 0 */100 * MON#4", "day of month “*/100” and day of week “MON#4” never fall together"),
        ("0 0 0 * * *", "five fields (minute, hour, day of month, month, day of week); this one has 6. There is no"),
        ("", "this one has 0."),
        ("@dayly", "Did you mean “@daily”?"),
        ("@reboot", "“@reboot” is not a macro; use one of @hourly"),
        ("@daily 5", "“@daily” says it all; leave out what follows it"),
        ("@every 5m", "“@every” is not a cron expression but an interval"),
        ("0 0 * * * ", None),
        ("٣ * * * *", "plain ASCII"),
        ("0 0 \x00 * *", "plain ASCII"),
        ("0 0 *\n* *", "plain ASCII"),
        (f"{'0,' * 64}0 * * * *", "minute “0,…” has 65 list items; use 64 at most"),
        (f"0 0 * * *{' ' * 256}", "256 characters at most"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_and_what_would_be_right(expr: str, said: str | None) -> None:
    if said is None:
        assert parse(expr).expr == expr.strip()
    else:
        assert said in refusal(expr).message


@settings(max_examples=300)
@given(st.text(alphabet=st.sampled_from("0159*/-,#LW?@ \tMONJAN\x00é"), max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    try:
        answer: object = next_after(text, "America/Los_Angeles", now)
    except Invalid as refused:
        answer = refused.message.encode()
    assert answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 0 ? * 1", "0 0 * * 1"),
        ("0 0 1 * ?", "0 0 1 * *"),
        ("0 0 * * 7", "0 0 * * sun"),
        ("0 0 * * fril", "0 0 * * 5L"),
        ("0 0 * * TUE#2", "0 0 * * 2#2"),
        ("@Annually", "0 0 1 jan *"),
        ("0/15 * * * *", "*/15 * * * *"),
        ("0 0 * * 1-7/2", "0 0 * * 1,3,5,7"),
        ("0 0 * * fri-sun", "0 0 * * 5-7"),
        ("0 0 * * 1-0/2", "0 0 * * 1-7/2"),
        ("0 0 * * MON-SUN", "0 0 * * *"),
        ("0 0 * * SUN-SUN", "0 0 * * 0"),
        ("0 0 * * SUN-0,SAT-7", "0 0 * * 6,0"),
    ],
)
def test_two_spellings_mean_the_same(one: str, other: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(slots(one, "Europe/Paris", start, 30)) == list(slots(other, "Europe/Paris", start, 30))


def test_a_parsed_expression_is_a_value() -> None:
    assert parse(" 0  9 * * 1-5") == parse("0 9 * * 1-5")
    assert len({parse("0 9 * * *"), parse("0 9\t* * *"), parse("0 10 * * *")}) == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("america/los_angeles", "“America/Los_Angeles”"),
        ("Los Angeles", "“America/Los_Angeles”"),
        ("Amercia/New_York", "“America/New_York”"),
        ("../../etc/passwd", ""),
        ("/etc/localtime", ""),
        ("localtime", ""),
        ("posixrules", ""),
        ("Europe", ""),
        ("", ""),
        (".", ""),
        ("\0", ""),
        ("\ud800", ""),
        ("Ünicode", ""),
        ("x" * 100_000, ""),
    ],
)
def test_a_zone_that_is_none_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_zone(name)
    assert (refused.value.code, refused.value.field) == ("unknown_timezone", "timezone")
    assert hint in refused.value.message
    assert len(refused.value.message.encode()) < 256


def test_every_zone_there_is_can_be_used() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert all(next_after("0 9 * * *", zone, now) > now for zone in zone_names())


def test_a_hint_is_given_only_for_what_is_near() -> None:
    assert did_you_mean("timezon", ["timezone", "cron"]) == " Did you mean “timezone”?"
    assert did_you_mean("colour", ["timezone", "cron"]) == ""
