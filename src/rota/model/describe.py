"""A schedule in words, for the list and the editor: exact, or else the expression itself."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import assert_never

from rota.model.cron import Cron, DaysOfMonth, DaysOfWeek, load_zone, parse
from rota.model.schedule import AtSchedule, CronSchedule, EverySchedule, Schedule

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")
_EVERY_WEEKDAY, _EVERY_DAY_OF_WEEK = 0b0111110, 0b1111111
_EVERY_DAY_OF_MONTH, _EVERY_HOUR, _EVERY_MONTH = (1 << 31) - 1, (1 << 24) - 1, (1 << 12) - 1
_MOST_LISTED = 6


@lru_cache(maxsize=4096)
def describe(schedule: Schedule) -> str:
    match schedule:
        case CronSchedule():
            words = _cron_in_words(parse(schedule.cron), schedule.timezone)
            return words or f"Cron “{schedule.cron}”, {city(schedule.timezone)}"
        case EverySchedule(time_of_day=None):
            return f"Every {_length(schedule.every)}"
        case EverySchedule():
            days = "day" if schedule.days == 1 else f"{schedule.days} days"
            return f"Every {days} at {schedule.time_of_day:%H:%M}, {city(schedule.timezone)}"
        case AtSchedule(at, zone):
            return _once(at, zone)
        case _:
            assert_never(schedule)


def _once(at: datetime, zone: str) -> str:
    try:
        local = at.astimezone(load_zone(zone))
    except OverflowError:  # the clock there shows the year 10000; saved before there was a limit
        local, zone = at.astimezone(UTC), "UTC"
    return f"Once, on {day_in_words(local)} at {_clock(local)}, {city(zone)}"


def city(zone: str) -> str:
    return zone.rpartition("/")[2].replace("_", " ")


def day_in_words(day: datetime) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _clock(at: datetime) -> str:
    return at.time().isoformat("minutes" if not at.second and not at.microsecond else "auto")


def _length(every: timedelta) -> str:
    hours, rest = divmod(every, timedelta(hours=1))
    if not rest and hours > 24 and hours % 24 == 0:
        return f"{hours // 24} days ({hours} hours)"
    minutes, rest = divmod(rest, timedelta(minutes=1))
    if not rest and hours < 3 and minutes:
        return _number(hours * 60 + minutes, "minute")
    seconds = rest / timedelta(seconds=1)
    parts = [
        (hours, "hour"),
        (minutes, "minute"),
        (int(seconds) if seconds.is_integer() else seconds, "second"),
    ]
    given = [(number, unit) for number, unit in parts if number]
    return _number(*given[0]) if len(given) == 1 else _list([_counted(number, unit) for number, unit in given])


def _number(number: float, unit: str) -> str:
    return unit if number == 1 else _counted(number, unit)


def _counted(number: float, unit: str) -> str:
    return f"{number} {unit}{'s' * (number != 1)}"


# ── Cron ────────────────────────────────────────────────────────────────────────────────────────────────────


def _cron_in_words(cron: Cron, zone: str) -> str | None:
    days = _days(cron)
    if days is None:
        return None
    all_day = _all_day(cron, zone)
    if all_day:
        shown = all_day if days == "Every day" else f"{days}, {all_day}"
        return _with_zone(shown, zone, needed=days != "Every day" or (" at " in all_day and _odd(zone)))
    if spread := _spread(cron):
        whole = days == "Every day" and " to " not in spread
        return _with_zone(spread if whole else f"{days}, {spread}", zone)
    times = _times(cron)
    if len(times) > _MOST_LISTED:
        return None
    return _with_zone(f"{days}{',' * days.endswith(' one')} at {_list(times)}", zone)


def _with_zone(text: str, zone: str, *, needed: bool = True) -> str:
    return text[0].upper() + text[1:] + (f", {city(zone)}" if needed else "")


def _odd(zone: str) -> bool:
    """Its clock does not always show the same minute as UTC's."""
    probes = (datetime(year, month, 1, tzinfo=UTC) for year in (2026, 2036) for month in (1, 7))
    return any(probe.astimezone(load_zone(zone)).minute for probe in probes)


def _all_day(cron: Cron, zone: str) -> str | None:
    """Through day and night, by the minute. Not for fixed hours, which are not repeated with the clock."""
    if cron.fixed or cron.hour != _EVERY_HOUR:
        return None
    minutes = _values(cron.minute)
    step = _step(minutes, 60)
    if step and minutes[0] == 0 and (30 % step == 0 or not _odd(zone)):
        return f"every {_number(step, 'minute')}"
    shown = _list([f":{minute:02}" for minute in minutes])
    return f"every hour at {shown}" if len(minutes) <= _MOST_LISTED else None


def _spread(cron: Cron) -> str | None:
    """Evenly over the whole day or one part of it."""
    minutes, hours = _values(cron.minute), _values(cron.hour)
    times = [hour * 60 + minute for hour in hours for minute in minutes]
    starred = cron.fields[1].startswith("*/") and len(hours) > 1
    gaps = {later - earlier for earlier, later in pairwise(times)}
    if len(gaps) != 1 or (len(times) <= 3 and not starred):
        return None
    step = gaps.pop()
    if step > 60 and step % 60:
        return None
    every = f"every {_number(step // 60, 'hour') if step % 60 == 0 else _number(step, 'minute')}"
    around = step > 60 and times[-1] + step - times[0] == 1_440
    return f"{every} from {_shown(times[0])}" + ("" if around else f" to {_shown(times[-1])}")


def _times(cron: Cron) -> list[str]:
    return [_shown(hour * 60 + minute) for hour in _values(cron.hour) for minute in _values(cron.minute)]


def _shown(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _days(cron: Cron) -> str | None:
    months = cron.month >> 1
    any_of_month = cron.days_of_month.plain == _EVERY_DAY_OF_MONTH
    any_of_week = cron.days_of_week.plain == _EVERY_DAY_OF_WEEK
    if (any_of_month and any_of_week) or (cron.either_day and (any_of_month or any_of_week)):
        return _of_months("Every day", months, "in")
    if cron.either_day:
        return _either(cron) if months == _EVERY_MONTH else None
    if any_of_month:
        return _weekdays(cron.days_of_week, months)
    return _month_days(cron.days_of_month, months) if any_of_week else None


def _either(cron: Cron) -> str | None:
    of_month = _month_days(cron.days_of_month, _EVERY_MONTH)
    of_week = _weekdays(cron.days_of_week, _EVERY_MONTH)
    if not of_month or not of_week:
        return None
    return f"{of_month} and on {of_week.removeprefix('On ').replace('Every', 'every')}"


def _weekdays(days: DaysOfWeek, months: int) -> str | None:
    if days.nth or days.last:
        return None if days.plain else _nth_weekdays(days, months)
    if days.plain == _EVERY_WEEKDAY:
        return _of_months("Every weekday", months, "in")
    names = [_WEEKDAYS[day] for day in (1, 2, 3, 4, 5, 6, 0) if days.plain >> day & 1]
    return _of_months(f"Every {_list(names)}", months, "in")


def _nth_weekdays(days: DaysOfWeek, months: int) -> str | None:
    named = [f"the {_ORDINALS[k]} {_WEEKDAYS[weekday]}" for weekday, k in days.nth]
    named += [f"the last {_WEEKDAYS[weekday]}" for weekday in days.last]
    if any(k == 5 for _, k in days.nth):
        rare = len(named) == 1 and months == _EVERY_MONTH
        return f"On {named[0]} of every month that has one" if rare else None
    return _of_months(f"On {_list(named)}", months, "of")


def _month_days(days: DaysOfMonth, months: int) -> str | None:
    plain = [day + 1 for day in _values(days.plain)]
    other = _unusual_days(days)
    if other is None or len(plain) + len(other) > _MOST_LISTED:
        return None
    if len(plain) == 1 and not other and (single := _single_day(plain[0], months)):
        return single
    if plain and plain[-1] > _shortest(months):
        return None
    shown = _list([_ordinal(day) for day in plain] + other)
    return _of_months(f"On {shown if shown.startswith('the') else f'the {shown}'}", months, "of")


def _unusual_days(days: DaysOfMonth) -> list[str] | None:
    """None if short words cannot say one exactly: the weekday nearest to a day at the end of a month."""
    if any(day > 27 for day in days.nearest):
        return None
    near = ["the first weekday" if day == 1 else f"the weekday nearest the {_ordinal(day)}" for day in days.nearest]
    return near + ["the last weekday"] * days.last_weekday + ["the last day"] * days.last


def _single_day(day: int, months: int) -> str | None:
    if months == _EVERY_MONTH:
        return f"On the {_ordinal(day)} of every month that has one" if day > 28 else None
    if months == 0b10 and day == 29:
        return "On 29 February in leap years"
    one_month = months.bit_count() == 1
    return f"Every year on {day} {_MONTHS[months.bit_length() - 1]}" if one_month else None


def _of_months(text: str, months: int, word: str) -> str | None:
    chosen = _values(months)
    if months == _EVERY_MONTH:
        return f"{text} of every month" if word == "of" else text
    if len(chosen) > 2 and chosen[-1] - chosen[0] == len(chosen) - 1:
        every = " of every month" if word == "of" else ""
        return f"{text}{every} from {_MONTHS[chosen[0]]} to {_MONTHS[chosen[-1]]}"
    return f"{text} {word} {_list([_MONTHS[month] for month in chosen])}" if len(chosen) <= _MOST_LISTED else None


def _shortest(months: int) -> int:
    if months & 0b10:
        return 28
    return 30 if months & 0b10100101000 else 31


def _ordinal(number: int) -> str:
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _step(values: Sequence[int], cycle: int) -> int | None:
    """How far apart they are, if they are so all around the cycle."""
    around = {later - earlier for earlier, later in pairwise([*values, values[0] + cycle])}
    return around.pop() if len(around) == 1 and len(values) > 1 else None


def _values(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
