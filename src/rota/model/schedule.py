"""When a trigger is due: the three kinds of schedule as values, and the forms in which people write them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any, Literal

from rota.errors import Invalid
from rota.model import cron
from rota.model.cron import Pattern
from rota.model.duration import LONGEST, format_duration, parse_duration

Kind = Literal["cron", "every", "at"]
EditorMode = Literal["interval", "weekly", "advanced"]
Form = dict[str, Any]

SHORTEST_INTERVAL = timedelta(seconds=1)
LEAST_YEAR, LAST_YEAR = 1970, 9998  # elsewhere it may be another year, and none comes after 9999

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    cron: str
    timezone: str

    def next_after(self, instant: datetime) -> datetime | None:
        return cron.next_after(self.cron, self.timezone, instant)

    def latest_until(self, first: datetime, until: datetime) -> datetime:
        return cron.latest_until(self.cron, self.timezone, first, until)

    def count_slots(self, first: datetime, until: datetime) -> int:
        return cron.count_slots(self.cron, self.timezone, first, until)

    def pattern(self) -> Pattern:
        return cron.parse(self.cron)


@dataclass(frozen=True, slots=True)
class EverySchedule:
    """Elapsed time from the anchor; or, with a time of day, every so many calendar days in its zone."""

    every: timedelta
    anchor: datetime
    days: int | None = None
    time_of_day: time | None = None
    timezone: str = "UTC"

    def next_after(self, instant: datetime) -> datetime | None:
        if pattern := self.pattern():
            return cron.next_after(pattern, self.timezone, instant)
        try:
            slot = self._slot(max(self._passed(instant), 0) + 1)
        except OverflowError:
            return None
        return slot if slot.year <= LAST_YEAR else None

    def latest_until(self, first: datetime, until: datetime) -> datetime:
        if pattern := self.pattern():
            return cron.latest_until(pattern, self.timezone, first, until)
        return max(first.astimezone(UTC), self._slot(self._passed(until)))

    def count_slots(self, first: datetime, until: datetime) -> int:
        if pattern := self.pattern():
            return cron.count_slots(pattern, self.timezone, first, until)
        before = self._passed(first - timedelta(microseconds=1))
        return max(0, self._passed(until) - max(before, 0))

    def pattern(self) -> Pattern | None:
        """The wall-clock times at which it is due, if it goes by the calendar."""
        if self.days is None or self.time_of_day is None:
            return None
        zone = cron.load_zone(self.timezone)
        today = datetime.combine(self.anchor.astimezone(zone), self.time_of_day)
        slot = cron.slot_at(zone, today)
        first = today if slot and slot > self.anchor else today + _DAY
        return _EveryDays(cron.wall_second(first), self.days * cron.DAY)

    def _passed(self, instant: datetime) -> int:
        # In UTC, because two times of one zone are subtracted as if its clock never shifted.
        return (instant.astimezone(UTC) - self.anchor.astimezone(UTC)) // self.every

    def _slot(self, number: int) -> datetime:
        return self.anchor.astimezone(UTC) + number * self.every


@dataclass(frozen=True, slots=True)
class AtSchedule:
    at: datetime
    timezone: str = "UTC"  # in which people see it
    wall: datetime | None = field(default=None, compare=False)  # as it was written, if by the clock of the zone

    def next_after(self, instant: datetime) -> datetime | None:
        return self.at.astimezone(UTC) if self.at > instant else None

    def latest_until(self, first: datetime, until: datetime) -> datetime:
        return self.at.astimezone(UTC) if self.at <= until else first

    def count_slots(self, first: datetime, until: datetime) -> int:
        return int(first <= self.at <= until)


Schedule = CronSchedule | EverySchedule | AtSchedule


@dataclass(frozen=True, slots=True)
class _EveryDays:
    """A cron.Pattern of one time of day, every so many days."""

    first: int
    step: int
    fixed: bool = True

    def due_from(self, wall: int) -> int:
        return self.first + self._count_before(wall) * self.step

    def due_before(self, wall: int) -> int:
        return self.first + (wall - 1 - self.first) // self.step * self.step

    def count_due(self, start: int, end: int) -> int:
        return max(0, self._count_before(end) - self._count_before(start))

    def _count_before(self, wall: int) -> int:
        return max(0, -((self.first - wall) // self.step))


@dataclass(frozen=True, slots=True)
class Compiled:
    """A form as it was understood. `editor` is the normalised form if one of the editor's modes made it."""

    kind: Kind
    schedule: Schedule
    editor_mode: EditorMode | None = None
    editor: Form | None = field(default=None, hash=False)


# ── Reading a form ──────────────────────────────────────────────────────────────────────────────────────────

_KEYS: dict[str, tuple[str, ...]] = {
    "cron": ("cron", "timezone"),
    "every": ("every", "time", "timezone"),
    "at": ("at", "timezone"),
    "interval": ("mode", "every", "unit", "time", "timezone"),
    "weekly": ("mode", "weekdays", "time", "timezone"),
    "advanced": ("mode", "cron", "timezone"),
}
_KINDS = ("cron", "every", "at")
_MODES = ("interval", "weekly", "advanced")
_UNITS = ("minutes", "hours", "days")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def read_schedule(form: Mapping[str, Any], *, default_timezone: str, now: datetime) -> Compiled:
    """Compile a shorthand or an editor's form, or refuse it with the field that is wrong."""
    if not isinstance(form, Mapping):
        raise _refuse('A schedule is an object such as {"cron": "0 9 * * 1-5"}', "schedule")
    shape = _shape(form)
    for key in form:
        _choose(key, _KEYS[shape], f"A schedule with “{shape}” has no key", field=f"{key!a:.64}".strip("'"))
    zone = _zone(form.get("timezone"), default_timezone)
    match shape:
        case "cron":
            return _compiled(_cron_or_every(form["cron"], zone, now), now)
        case "every":
            return _compiled(_every(form, zone, now), now)
        case "at":
            at, wall = _instant(form["at"], zone)
            return _compiled(AtSchedule(_future(at, zone, now), zone, wall), now)
        case "interval":
            return _interval(form, zone, now)
        case "weekly":
            return _weekly(form, zone, now)
        case _:
            schedule = _cron_or_every(form.get("cron"), zone, now)
            return _edited("advanced", schedule, now, cron=" ".join(form["cron"].split()), timezone=zone)


def _shape(form: Mapping[str, Any]) -> str:
    if "mode" in form:
        return _choose(form["mode"], _MODES, "There is no editor mode", field="mode")
    given = [kind for kind in _KINDS if kind in form]
    if len(given) > 1:
        raise _refuse(f"A schedule has only one of cron, every and at; use {given[0]} alone", given[1])
    if not given:
        hint = "".join(cron.did_you_mean(f"{key}", [*_KINDS, "mode"]) for key in list(form)[:1])
        raise _refuse(f"A schedule needs one of cron, every and at, or a mode.{hint}", "schedule")
    return given[0]


def _compiled(schedule: Schedule, now: datetime) -> Compiled:
    schedule.next_after(now)  # a cron expression whose times the zone always skips is refused here
    kinds: dict[type[Schedule], Kind] = {CronSchedule: "cron", EverySchedule: "every", AtSchedule: "at"}
    return Compiled(kinds[type(schedule)], schedule)


def _edited(mode: EditorMode, schedule: Schedule, now: datetime, **editor: Any) -> Compiled:
    compiled = _compiled(schedule, now)
    return Compiled(compiled.kind, schedule, mode, {"mode": mode, **editor})


def _interval(form: Mapping[str, Any], zone: str, now: datetime) -> Compiled:
    unit = _choose(form.get("unit"), _UNITS, "There is no unit", field="unit")
    number = _count(form.get("every"), timedelta(**{unit: 1}))
    if unit == "days":
        at = _time_of_day(form.get("time"))
        daily = CronSchedule(f"{at.minute} {at.hour} * * *", zone)
        schedule = daily if number == 1 else EverySchedule(number * _DAY, now, number, at, zone)
        return _edited("interval", schedule, now, every=number, unit=unit, time=f"{at:%H:%M}", timezone=zone)
    if form.get("time") is not None:
        raise _refuse(f"A time of day goes with days, not with {unit}; leave it out", "time")
    return _edited("interval", _short(number, unit, zone, now), now, every=number, unit=unit, timezone=zone)


def _short(number: int, unit: str, zone: str, now: datetime) -> Schedule:
    """As cron where that says exactly the same, which it does only for what divides the hour or the day."""
    step = "*" if number == 1 else f"*/{number}"
    if unit == "minutes" and number < 60 and 60 % number == 0:
        return CronSchedule(f"{step} * * * *", zone)
    if unit == "hours" and number < 24 and 24 % number == 0:
        return CronSchedule(f"0 {step} * * *", zone)
    return EverySchedule(timedelta(**{unit: number}), now, timezone=zone)


def _weekly(form: Mapping[str, Any], zone: str, now: datetime) -> Compiled:
    chosen = form.get("weekdays")
    if not isinstance(chosen, list | tuple) or not 0 < len(chosen) <= len(_WEEKDAYS):
        raise _refuse('“weekdays” is a list of one to seven days, such as ["mon", "fri"]', "weekdays")
    days = {_choose(day, _WEEKDAYS, "There is no weekday", field="weekdays") for day in chosen}
    at = _time_of_day(form.get("time"))
    numbers = ",".join(str(i) for i, day in enumerate(_WEEKDAYS) if day in days)
    schedule = CronSchedule(f"{at.minute} {at.hour} * * {numbers}", zone)
    weekdays = [day for day in _WEEK if day in days]
    return _edited("weekly", schedule, now, weekdays=weekdays, time=f"{at:%H:%M}", timezone=zone)


def _cron_or_every(expr: object, zone: str, now: datetime) -> Schedule:
    if not isinstance(expr, str):
        raise Invalid("“cron” is text such as “0 9 * * 1-5”", code="invalid_cron", field="cron")
    macro, *length = expr.split() or [""]
    if macro.lower() == "@every":
        return EverySchedule(_interval_length(" ".join(["@every", *length]), "cron"), now, timezone=zone)
    return CronSchedule(cron.parse(expr).expr, zone)


def _every(form: Mapping[str, Any], zone: str, now: datetime) -> Schedule:
    every = _interval_length(form["every"], "every")
    if form.get("time") is None:
        return EverySchedule(every, now, timezone=zone)
    if every % _DAY:
        raise _refuse("A time of day goes with whole days, such as “2d”; leave it out", "time")
    return EverySchedule(every, now, every.days, _time_of_day(form["time"]), zone)


def _interval_length(text: Any, name: str) -> timedelta:
    every = parse_duration(text, field=name)
    if every < SHORTEST_INTERVAL:
        raise _refuse("The shortest interval is one second; use “1s” or longer", name)
    return every


def _instant(value: object, zone: str) -> tuple[datetime, datetime | None]:
    """When it is, and what was written of it if that depends on the zone."""
    wanted = "“at” is a date and time such as “2027-01-01T09:00:00Z”"
    if isinstance(value, str) and (len(value) > 64 or not re.match(r"[0-9-]+[T ][0-9]", value)):
        raise _refuse(f"{wanted}; use both, with an offset or a timezone", "at")
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(value)  # type: ignore[arg-type]
        if not LEAST_YEAR <= at.year <= LAST_YEAR:
            raise _refuse(f"“at” is a time of the years {LEAST_YEAR} to {LAST_YEAR}", "at")
        wall = at if at.utcoffset() is None else None
        known = cron.slot_at(zone, wall) if wall else at.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        raise _refuse(f"{wanted}; {value!a:.64} is not one", "at") from None
    if known is None:
        raise _refuse(f"{at:%Y-%m-%dT%H:%M} never came in {zone}, whose clock skipped it; use another time", "at")
    return known, wall


def _future(at: datetime, zone: str, now: datetime) -> datetime:
    if at <= now:
        local = at.astimezone(cron.load_zone(zone))
        raise _refuse(f"{local:%Y-%m-%dT%H:%M:%S} in {zone} is in the past; use a time to come", "at")
    return at


def _time_of_day(value: object) -> time:
    if value is None:
        raise _refuse("Days need a time of day, such as “09:00”", "time")
    match = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", value) if isinstance(value, str) else None
    if not match:
        raise _refuse(f"{value!a:.64} is not a time of day; use text such as “09:00”, up to “23:59”", "time")
    return time(int(match[1]), int(match[2]))


def _count(value: object, unit: timedelta) -> int:
    most = LONGEST // unit
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _refuse(f"“every” is a whole number from 1 to {most}", "every")
    return value


def _zone(value: object, default: str) -> str:
    name = default if value is None else value
    if not isinstance(name, str):
        raise Invalid("“timezone” is text such as “Europe/Berlin”", code="unknown_timezone", field="timezone")
    return cron.load_zone(name).key


def _choose(value: object, options: Iterable[str], problem: str, *, field: str) -> str:
    if isinstance(value, str) and value in options:
        return value
    hint = cron.did_you_mean(value, options) if isinstance(value, str) else ""
    raise _refuse(f"{problem} {value!a:.64}; use {', '.join(options)}.{hint}", field)


def _refuse(message: str, name: str) -> Invalid:
    return Invalid(message, code="invalid_schedule", field=name)


# ── Writing a form ──────────────────────────────────────────────────────────────────────────────────────────


def short_form(schedule: Schedule) -> Form:
    """The shorthand that gives this schedule when it is saved again."""
    match schedule:
        case CronSchedule():
            return {"cron": schedule.cron, "timezone": schedule.timezone}
        case AtSchedule(at):
            return {"at": at.astimezone(UTC).isoformat().replace("+00:00", "Z"), "timezone": schedule.timezone}
        case EverySchedule(time_of_day=None):
            return {"every": format_duration(schedule.every), "timezone": schedule.timezone}
        case EverySchedule(time_of_day=at):
            every = format_duration(schedule.every)
            return {"every": every, "time": f"{at:%H:%M}", "timezone": schedule.timezone}


def editor_form(
    schedule: Schedule, editor_mode: EditorMode | None = None, editor: Mapping[str, Any] | None = None
) -> Form:
    """What the editor shows: the form that was saved while it still gives this schedule, else one that does.

    A schedule that no mode can say exactly, such as one for a single instant, is shown as its shorthand.
    """
    forms = [*([dict(editor)] if editor else []), *_modes(schedule)]
    forms.sort(key=lambda form: form.get("mode") != editor_mode)
    return next((form for form in forms if _gives(form, schedule)), short_form(schedule))


def _modes(schedule: Schedule) -> Iterator[Form]:
    match schedule:
        case CronSchedule():
            yield {"mode": "advanced", **short_form(schedule)}
        case EverySchedule(time_of_day=None, every=every, timezone=zone):
            minutes = every // timedelta(minutes=1)
            yield {"mode": "interval", "every": minutes, "unit": "minutes", "timezone": zone}
            yield {"mode": "advanced", "cron": f"@every {format_duration(every)}", "timezone": zone}
        case EverySchedule():
            short = short_form(schedule)
            yield {"mode": "interval", **short, "every": schedule.days, "unit": "days"}


def _gives(form: Form, schedule: Schedule) -> bool:
    now = schedule.anchor if isinstance(schedule, EverySchedule) else cron.EPOCH
    try:
        return read_schedule(form, default_timezone="UTC", now=now).schedule == schedule
    except Invalid:
        return False
