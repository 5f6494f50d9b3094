"""Cron expressions on a wall clock that shifts: which instant is the next slot, before anything can fire.

A pattern says which wall-clock seconds are due, as if the clock never shifted. A zone cuts real time into
stretches of one UTC offset. A slot is a due second placed in a stretch. All is arithmetic on whole seconds:
`wall` counts them from 1970-01-01 00:00 on the local clock, everything else in UTC.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from rota.errors import Invalid

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = 86_400

# Debian takes a jump of over three hours for a move of the date line, not for DST, and makes up for nothing.
LONGEST_SHIFT = 3 * 3_600

_EPOCH_ORDINAL = EPOCH.toordinal()
_GREGORIAN_CYCLE = 146_097  # days, after which every date falls on its weekday again
_HORIZON = 36_525  # days: what the calendar allows comes within 40 years, unless the clock always skips it
_LAST_DAY = date(9998, 1, 1).toordinal() - _EPOCH_ORDINAL
_MOST_CHARACTERS = 256
_MOST_ITEMS = 64

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Pattern(Protocol):
    """Which wall-clock seconds are due."""

    @property
    def fixed(self) -> bool:
        """A skipped time is made up for and a repeated one is due once; else every real minute counts."""

    def due_from(self, wall: int) -> int:
        """The first due second at or after this one."""

    def due_before(self, wall: int) -> int:
        """The last due second before this one."""

    def count_due(self, start: int, end: int) -> int:
        """How many seconds are due from `start` up to and without `end`."""


@dataclass(frozen=True, slots=True)
class DaysOfMonth:
    """The day of month field; bit 0 of `plain` is the 1st."""

    plain: int
    last: bool
    last_weekday: bool
    nearest: tuple[int, ...]

    def within(self, first_weekday: int, length: int) -> int:
        days = self.plain & (1 << length) - 1
        if self.last:
            days |= 1 << length - 1
        if self.last_weekday:
            days |= 1 << _nearest_weekday(length, first_weekday, length) - 1
        for day in self.nearest:
            if day <= length:
                days |= 1 << _nearest_weekday(day, first_weekday, length) - 1
        return days


@dataclass(frozen=True, slots=True)
class DaysOfWeek:
    """The day of week field; bit 0 of `plain` is Sunday. `nth` holds (weekday, k), `last` weekdays."""

    plain: int
    nth: tuple[tuple[int, int], ...]
    last: tuple[int, ...]

    def within(self, first_weekday: int, length: int) -> int:
        days = 0
        for weekday in range(7):
            if self.plain >> weekday & 1:
                days |= _EVERY_SEVENTH << (weekday - first_weekday) % 7
        for weekday, k in self.nth:
            days |= 1 << (weekday - first_weekday) % 7 + 7 * (k - 1)
        for weekday in self.last:
            first = (weekday - first_weekday) % 7
            days |= 1 << first + (length - 1 - first) // 7 * 7
        return days & (1 << length) - 1


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression. Sets are bit masks: `minutes` of the day, `calendar[month][shape]` of the days."""

    expr: str
    fields: tuple[str, ...] = field(compare=False, repr=False)
    fixed: bool = field(compare=False, repr=False)
    minute: int = field(compare=False, repr=False)
    hour: int = field(compare=False, repr=False)
    month: int = field(compare=False, repr=False)
    days_of_month: DaysOfMonth = field(compare=False, repr=False)
    days_of_week: DaysOfWeek = field(compare=False, repr=False)
    either_day: bool = field(compare=False, repr=False)
    minutes: int = field(compare=False, repr=False)
    opening: int = field(compare=False, repr=False)
    calendar: tuple[tuple[int, ...], ...] = field(compare=False, repr=False)

    def due_from(self, wall: int) -> int:
        day, minute = divmod((wall + 59) // 60, 1_440)
        month, shape, passed = _place(day)
        ahead = self.calendar[month % 12][shape] >> passed
        if ahead & 1:
            later = self.minutes >> minute
            if later:
                return (day * 1_440 + minute + (later & -later).bit_length() - 1) * 60
            ahead ^= 1
        while not ahead:
            month += 1
            day, shape = _month(month)
            ahead = self.calendar[month % 12][shape]
        return (day + (ahead & -ahead).bit_length() - 1) * DAY + self.opening

    def due_before(self, wall: int) -> int:
        day, minute = divmod((wall + 59) // 60, 1_440)
        month, shape, passed = _place(day)
        behind = self.calendar[month % 12][shape] & (2 << passed) - 1
        if behind >> passed:
            earlier = self.minutes & (1 << minute) - 1
            if earlier:
                return (day * 1_440 + earlier.bit_length() - 1) * 60
            behind ^= 1 << passed
        day -= passed
        while not behind:
            month -= 1
            day, shape = _month(month)
            behind = self.calendar[month % 12][shape]
        return ((day + behind.bit_length() - 1) * 1_440 + self.minutes.bit_length() - 1) * 60

    def count_due(self, start: int, end: int) -> int:
        if end <= start:
            return 0
        first, start_minute = divmod((start + 59) // 60, 1_440)
        last, end_minute = divmod((end + 59) // 60, 1_440)
        whole_days = self._count_days(first, last) * self.minutes.bit_count()
        return whole_days - self._count_before(first, start_minute) + self._count_before(last, end_minute)

    def _count_before(self, day: int, minute: int) -> int:
        return self._count_days(day, day + 1) * (self.minutes & (1 << minute) - 1).bit_count()

    def _count_days(self, start: int, end: int) -> int:
        month, shape, passed = _place(start)
        day, total = start - passed, 0
        while day < end:
            days = self.calendar[month % 12][shape] & (1 << end - day) - 1
            total += (days >> passed).bit_count()
            month, passed = month + 1, 0
            day, shape = _month(month)
        return total


# ── The calendar ────────────────────────────────────────────────────────────────────────────────────────────

_EVERY_SEVENTH = sum(1 << day for day in range(0, 35, 7))
_LENGTHS = ((31,), (28, 29), (31,), (30,), (31,), (30,), (31,), (31,), (30,), (31,), (30,), (31,))
_NO_DAYS = (0,) * 28


def _shape(first_weekday: int, length: int) -> int:
    """Months are alike when they begin on the same weekday and have the same length: there are 28 shapes."""
    return first_weekday * 4 + length - 28


@lru_cache(maxsize=8_192)
def _month(index: int) -> tuple[int, int]:
    """The first day and the shape of a month, counted from year 0; also beyond what `date` can hold."""
    first, following = _first_day(index), _first_day(index + 1)
    return first, _shape((first + 4) % 7, following - first)


def _first_day(index: int) -> int:
    cycle, year = divmod(index // 12, 400)
    return date(year + 400, index % 12 + 1, 1).toordinal() - _EPOCH_ORDINAL + (cycle - 1) * _GREGORIAN_CYCLE


@lru_cache(maxsize=8_192)
def _place(day: int) -> tuple[int, int, int]:
    """The month that a day lies in, that month's shape, and how many of its days have passed."""
    here = date.fromordinal(day + _EPOCH_ORDINAL)
    month = here.year * 12 + here.month - 1
    return month, _month(month)[1], here.day - 1


def _nearest_weekday(day: int, first_weekday: int, length: int) -> int:
    """The day from Monday to Friday nearest to this one, without leaving the month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


# ── Reading an expression ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def items(self, text: str) -> list[str]:
        items = text.split(",")
        if len(items) > _MOST_ITEMS:
            raise self.refuse(f"{items[0]},…", f"has {len(items)} list items; use {_MOST_ITEMS} at most")
        return items

    def mask(self, items: Iterable[str]) -> int:
        bits = 0
        for item in items:
            for value in self.span(item):
                bits |= 1 << value
        return bits

    def span(self, item: str) -> range:
        body, slash, step = item.partition("/")
        by = self.step(item, step) if slash else 1
        if body == "*":
            return range(self.low, self.high + 1, by)
        first, dash, last = body.partition("-")
        low = self.number(first, item)
        if dash:
            return range(low, self._end(low, last, item) + 1, by)
        if slash and self is _DAY_OF_WEEK:
            raise self.refuse(item, f"has a step on a single day; use a range such as {first}-6/{step}")
        return range(low, (self.high if slash else low) + 1, by)

    def _end(self, low: int, last: str, item: str) -> int:
        high = self.number(last, item)
        if high == 0 and low > 0 and self is _DAY_OF_WEEK:
            return 7  # a range may end in Sunday: FRI-SUN is Friday to Sunday
        if high < low:
            raise self.refuse(item, f"runs backwards; use {low}-{self.high},{self.low}-{high}")
        return high

    def number(self, text: str, item: str) -> int:
        if text in self.names:
            return self.names.index(text) + self.low
        if not text.isdigit():
            raise self.refuse(item, f"is not understood; use *, {self.allowed()}")
        value = int(text)
        if not self.low <= value <= self.high:
            raise self.refuse(item, f"is out of range; use {self.allowed()}")
        return value

    def step(self, item: str, text: str) -> int:
        if not text.isdigit() or int(text) == 0:
            raise self.refuse(item, "needs a step of 1 or more after the slash, such as */5")
        return int(text)

    def allowed(self) -> str:
        names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.low} to {self.high}{names}"

    def refuse(self, item: str, why: str) -> Invalid:
        return _refuse(f"{self.name} “{item}” {why}", cron_field=self.name)


_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY_OF_MONTH = _Field("day of month", 1, 31)
_MONTH = _Field("month", 1, 12, _MONTH_NAMES)
_DAY_OF_WEEK = _Field("day of week", 0, 7, _DAY_NAMES)


@lru_cache(maxsize=4_096)
def parse(expr: str) -> Cron:
    """Read an expression, or refuse it with a message that names the field."""
    shown = " ".join(_words(expr))
    minute, hour, day, month, weekday = fields = _five(shown)
    days_of_month, days_of_week = _read_days_of_month(day), _read_days_of_week(weekday)
    either = day[0] not in "*?" and weekday[0] not in "*?"
    minute_mask, hour_mask, month_mask = (
        kind.mask(kind.items(text)) for kind, text in ((_MINUTE, minute), (_HOUR, hour), (_MONTH, month))
    )
    minutes = sum(minute_mask << hour * 60 for hour in range(24) if hour_mask >> hour & 1)
    return Cron(
        expr=shown,
        fields=fields,
        fixed=minute[0] != "*" and hour[0] != "*",
        minute=minute_mask,
        hour=hour_mask,
        month=month_mask,
        days_of_month=days_of_month,
        days_of_week=days_of_week,
        either_day=either,
        minutes=minutes,
        opening=((minutes & -minutes).bit_length() - 1) * 60,
        calendar=_calendar(fields, month_mask, days_of_month, days_of_week, either),
    )


def _words(expr: str) -> list[str]:
    if not isinstance(expr, str):
        raise _refuse("A cron expression is text with five fields, such as “0 9 * * 1-5”.")
    if len(expr) > _MOST_CHARACTERS:
        raise _refuse(f"A cron expression has {_MOST_CHARACTERS} characters at most; this has {len(expr)}.")
    words = re.split(r"[ \t]+", expr.strip())
    if not all(word.isascii() and word.isprintable() for word in words):
        raise _refuse("A cron expression is plain ASCII text, such as “0 9 * * 1-5”.")
    return words


def _five(shown: str) -> tuple[str, ...]:
    macro = shown.partition(" ")[0].lower()
    if macro.startswith("@"):
        if shown.lower() not in _MACROS:
            raise _refuse(_about_macro(macro))
        return tuple(_MACROS[macro].split())
    fields = tuple(shown.upper().split())
    if len(fields) != 5:
        hint = " There is no field for seconds or years." if len(fields) > 5 else ""
        raise _refuse(
            "A cron expression has five fields (minute, hour, day of month, month, day of week);"
            f" this one has {len(fields)}.{hint}"
        )
    return fields


def _about_macro(macro: str) -> str:
    if macro == "@every":
        return "“@every” is not a cron expression but an interval; give it as {“every”: “15m”}."
    if macro in _MACROS:
        return f"“{macro}” says it all; leave out what follows it."
    hint = did_you_mean(macro, _MACROS)
    return f"“{macro:.32}” is not a macro; use one of {', '.join(_MACROS)}.{hint}"


def _read_days_of_month(text: str) -> DaysOfMonth:
    items = _DAY_OF_MONTH.items("*" if text == "?" else text)
    plain, nearest = [], set()
    for item in items:
        if match := re.fullmatch(r"(\d+)W", item):
            nearest.add(_DAY_OF_MONTH.number(match[1], item))
        elif re.match(r"L[-/\d]", item):
            raise _DAY_OF_MONTH.refuse(item, "is not supported; use L (last day) or LW (last weekday)")
        elif item not in ("L", "LW"):
            plain.append(item)
    mask = _DAY_OF_MONTH.mask(plain) >> 1
    return DaysOfMonth(mask, "L" in items, "LW" in items, tuple(sorted(nearest)))


def _read_days_of_week(text: str) -> DaysOfWeek:
    plain, nth, last = [], set(), set()
    for item in _DAY_OF_WEEK.items("*" if text == "?" else text):
        if match := re.fullmatch(r"(\w+)#(\d+)", item):
            nth.add((_DAY_OF_WEEK.number(match[1], item) % 7, _nth(match[2], item)))
        elif match := re.fullmatch(r"(\w+)L", item):
            last.add(_DAY_OF_WEEK.number(match[1], item) % 7)
        elif item.startswith("L"):
            raise _DAY_OF_WEEK.refuse(item, "does not say which day; use 5L for the last Friday of the month")
        else:
            plain.append(item)
    mask = _DAY_OF_WEEK.mask(plain)
    return DaysOfWeek(mask & 0x7F | mask >> 7, tuple(sorted(nth)), tuple(sorted(last)))


def _nth(text: str, item: str) -> int:
    if text not in ("1", "2", "3", "4", "5"):
        raise _DAY_OF_WEEK.refuse(item, "asks for a week that no month has; use 1 to 5 after the #")
    return int(text)


def _calendar(
    fields: Sequence[str], months: int, of_month: DaysOfMonth, of_week: DaysOfWeek, either: bool
) -> tuple[tuple[int, ...], ...]:
    """The due days of every shape of month. Each shape comes within 40 years; no due day here means never."""
    days = []
    for weekday in range(7):
        for length in (28, 29, 30, 31):
            one, other = of_month.within(weekday, length), of_week.within(weekday, length)
            days.append(one | other if either else one & other)
    chosen = [month for month in range(12) if months >> month + 1 & 1]
    lengths = {length for month in chosen for length in _LENGTHS[month]}
    if not any(days[_shape(weekday, length)] for length in lengths for weekday in range(7)):
        raise _refuse_never(fields)
    return tuple(tuple(days) if month in chosen else _NO_DAYS for month in range(12))


def _refuse_never(fields: Sequence[str]) -> Invalid:
    _, _, day, month, weekday = fields
    if weekday in ("*", "?"):
        why = f"day of month “{day}” never comes in month “{month}”"
    else:
        why = f"day of month “{day}” and day of week “{weekday}” never fall together in month “{month}”"
    return _refuse(f"{why}, so this would never fire; use a day that exists", cron_field=_DAY_OF_MONTH.name)


def _refuse(message: str, **facts: str) -> Invalid:
    return Invalid(message, code="invalid_cron", field="cron", **facts)


# ── Zones ───────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def zone_names() -> frozenset[str]:
    """Every zone there is, without the one that means something else on each machine."""
    return frozenset(available_timezones() - {"localtime"})


@lru_cache(maxsize=1_024)
def load_zone(name: str) -> ZoneInfo:
    if name not in zone_names():
        cities = {known.rpartition("/")[2].lower(): known for known in sorted(zone_names())}
        word = name[:64].strip().replace(" ", "_")
        hint = did_you_mean(cities.get(word.lower(), word), zone_names())
        message = f"{name!a:.48} is not a timezone; use an IANA name such as “Europe/Berlin”.{hint}"
        raise Invalid(message, code="unknown_timezone", field="timezone")
    return ZoneInfo(name)


def known_zone(name: str) -> ZoneInfo:
    """The same for what is shown, or UTC: a trigger may be kept that goes by one which is no more."""
    return load_zone(name if name in zone_names() else "UTC")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to end a message with, or nothing."""
    lowered = {option.lower(): option for option in known}
    close = get_close_matches(word[:64].lower(), lowered, n=1, cutoff=0.7)
    return f" Did you mean “{lowered[close[0]]}”?" if close else ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Real time from `start` up to `end` under one offset, and the wall-clock seconds that belong to it.

    `first` is where these begin. For a fixed pattern that is what the clock showed as it was shifted: earlier
    than the stretch's own time if some was skipped, which is then due at `start`; later if some is repeated.
    """

    start: int
    end: int
    offset: int
    first: int
    last: int

    @property
    def opening(self) -> int:
        """What the clock shows as this begins."""
        return self.start + self.offset


@lru_cache(maxsize=4_096)
def stretches(zone: str | ZoneInfo, first_day: int, last_day: int, fixed: bool) -> tuple[Stretch, ...]:
    """All time that is one of these days anywhere on earth, cut where the offset changes.

    It begins a day early, so that a repeated hour which is not over is known as such: none ever took a day.
    """
    zone = load_zone(zone) if isinstance(zone, str) else zone
    start, end = first_day - 1, last_day + 2
    cuts = [start * DAY, *_shifts(zone, start, end), end * DAY]
    offsets = [_offset(zone, cut) for cut in cuts]
    befores = offsets[:1] + offsets
    return tuple(_stretch(*each, fixed) for each in zip(cuts, cuts[1:], offsets, befores, strict=False))


def _stretch(start: int, end: int, offset: int, offset_before: int, fixed: bool) -> Stretch:
    made_up = fixed and offset - offset_before <= LONGEST_SHIFT
    return Stretch(start, end, offset, start + (offset_before if made_up else offset), end + offset)


def _shifts(zone: ZoneInfo, start: int, end: int) -> list[int]:
    """The instants at which the offset changes. No zone ever did so twice within three days."""
    offsets = [_offset(zone, day * DAY) for day in range(start, end + 1)]
    days = (start + i for i in range(end - start) if offsets[i] != offsets[i + 1])
    return [_shift_within(zone, day * DAY, (day + 1) * DAY) for day in days]


def _shift_within(zone: ZoneInfo, low: int, high: int) -> int:
    before = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, second: int) -> int:
    offset = (EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return offset // SECOND if offset else 0


# ── Slots ───────────────────────────────────────────────────────────────────────────────────────────────────


def next_after(cron: str | Pattern, zone: str | ZoneInfo, instant: datetime) -> datetime:
    """The first slot strictly after this instant, in UTC."""
    pattern = parse(cron) if isinstance(cron, str) else cron
    past = instant - EPOCH
    day = past.days
    after = day * DAY + past.seconds
    limit = min(day + _HORIZON, _LAST_DAY)
    while day < limit:
        for stretch in stretches(zone, day, day, pattern.fixed):
            start = stretch.first if after < stretch.start else max(stretch.first, after + 1 + stretch.offset)
            wall = pattern.due_from(start)
            if wall < stretch.last:
                return EPOCH + timedelta(0, max(wall - stretch.offset, stretch.start))
        day = wall // DAY
    raise _refuse(f"This never fires in {zone}: the clock always skips its times, or the calendar ends.")


def latest_until(cron: str | Pattern, zone: str | ZoneInfo, first: datetime, until: datetime) -> datetime:
    """The latest slot that is not after `until`, given one that is not."""
    pattern = parse(cron) if isinstance(cron, str) else cron
    start, end = _ceil(first), (until - EPOCH) // SECOND
    for stretch in reversed(stretches(zone, start // DAY, end // DAY, pattern.fixed)):
        if stretch.start <= end:
            wall = pattern.due_before(min(stretch.last, end + 1 + stretch.offset))
            if wall >= stretch.first:
                return EPOCH + timedelta(seconds=max(wall - stretch.offset, stretch.start, start))
    return EPOCH + timedelta(seconds=start)


def count_slots(cron: str | Pattern, zone: str | ZoneInfo, first: datetime, until: datetime) -> int:
    """How many slots there are from `first` to `until`, both included."""
    pattern = parse(cron) if isinstance(cron, str) else cron
    start, end = _ceil(first), (until - EPOCH) // SECOND
    days = stretches(zone, start // DAY, end // DAY, pattern.fixed)
    return sum(_count_within(pattern, stretch, start, end) for stretch in days)


def _count_within(pattern: Pattern, stretch: Stretch, start: int, end: int) -> int:
    if end < stretch.start:
        return 0
    last = min(stretch.last, end + 1 + stretch.offset)
    if stretch.first < stretch.opening and start <= stretch.start:
        # All that was skipped fires as the gap ends, as one slot with what is due at that second.
        made_up = pattern.count_due(stretch.first, stretch.opening + 1)
        return min(made_up, 1) + pattern.count_due(stretch.opening + 1, last)
    return pattern.count_due(max(stretch.first, start + stretch.offset), last)


def slot_at(zone: str | ZoneInfo, local: datetime) -> datetime | None:
    """The instant of a fixed time, under the rule for skipped and repeated ones; None if it never comes."""
    wall = wall_second(local)
    for stretch in stretches(zone, wall // DAY, wall // DAY, True):
        if stretch.first <= wall < stretch.last:
            exact = max(wall - stretch.offset, stretch.start)
            return EPOCH + timedelta(seconds=exact, microseconds=local.microsecond)
    return None


def wall_second(local: datetime) -> int:
    return (local.replace(tzinfo=UTC) - EPOCH) // SECOND


def _ceil(instant: datetime) -> int:
    return -((EPOCH - instant) // SECOND)
