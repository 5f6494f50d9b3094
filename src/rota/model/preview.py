"""What is shown before a schedule is saved: its next fires, and what may surprise about them."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from rota.model.cron import DAY, EPOCH, LONGEST_SHIFT, Cron, Pattern, Stretch, load_zone, parse, stretches, wall_second
from rota.model.describe import city, day_in_words
from rota.model.duration import format_duration
from rota.model.schedule import AtSchedule, CronSchedule, Schedule

FAR = timedelta(days=365)

_LOOK_AHEAD = 400  # days: every change of the clock that comes once a year
_SAMPLE = 100


@dataclass(frozen=True, slots=True)
class Fire:
    """A slot, and what the clock in the schedule's zone shows then, with its offset."""

    at: datetime
    local: str


@dataclass(frozen=True, slots=True)
class ScheduleWarning:
    code: str
    message: str


def preview(schedule: Schedule, after: datetime, count: int) -> list[Fire]:
    zone = load_zone(schedule.timezone)
    return [Fire(slot, slot.astimezone(zone).isoformat()) for slot in _slots(schedule, after, count)]


def warnings(
    schedule: Schedule,
    after: datetime,
    *,
    usual_duration: timedelta | None = None,
    minimum_interval: timedelta | None = None,
) -> list[ScheduleWarning]:
    """What a person may not expect of this schedule in the next 400 days."""
    found = [*_far(schedule, after), *_dense(schedule, after, usual_duration, minimum_interval)]
    if isinstance(schedule, CronSchedule):
        cron = parse(schedule.cron)
        found += [*_either_day(cron), *_uneven(cron)]
    if isinstance(schedule, AtSchedule):
        found += _shifted_once(schedule)
    elif pattern := schedule.pattern():
        found += _shifted(pattern, schedule.timezone, after)
    return found


def _slots(schedule: Schedule, after: datetime, count: int) -> Iterator[datetime]:
    for _ in range(count):
        slot = schedule.next_after(after)
        if slot is None:
            return
        yield (after := slot)


def _far(schedule: Schedule, after: datetime) -> Iterator[ScheduleWarning]:
    first = schedule.next_after(after)
    if first and first - after > FAR:
        yield ScheduleWarning("far", f"The first fire is over a year away, on {day_in_words(first)}.")


def _dense(
    schedule: Schedule, after: datetime, usual: timedelta | None, minimum: timedelta | None
) -> Iterator[ScheduleWarning]:
    apart = closest(schedule, after) if usual or minimum else timedelta.max
    if minimum and apart < minimum:
        reason = f"this workspace wants at least {format_duration(minimum)} between them"
    elif usual and apart < usual:
        reason = f"a run usually takes {format_duration(timedelta(seconds=round(usual.total_seconds(), 1)))}"
    else:
        return
    yield ScheduleWarning("dense", f"Fires come as close as {format_duration(apart)}; {reason}.")


def closest(schedule: Schedule, after: datetime) -> timedelta:
    """How close together its next fires come."""
    return min(
        (later - earlier for earlier, later in pairwise(_slots(schedule, after, _SAMPLE))), default=timedelta.max
    )


def _either_day(cron: Cron) -> Iterator[ScheduleWarning]:
    if cron.either_day:
        _, _, day, _, weekday = cron.fields
        message = (
            f"Fires when either day field matches: on day of month “{day}”, and also on day of week"
            f" “{weekday}”. Put * in one of them to go by the other alone."
        )
        yield ScheduleWarning("dom_dow_or", message)


def _uneven(cron: Cron) -> Iterator[ScheduleWarning]:
    for text, cycle, unit, whole in zip(cron.fields, (60, 24), ("minute", "hour"), ("hour", "day"), strict=False):
        step = text.removeprefix("*/")
        if step != text and step.isdigit() and cycle % int(step):
            message = f"“{text}” starts anew every {whole}, so it is not every {step} {unit}s."
            yield ScheduleWarning("uneven_step", message)


# ── Shifts of the clock ─────────────────────────────────────────────────────────────────────────────────────


def _shifted(pattern: Pattern, zone: str, after: datetime) -> Iterator[ScheduleWarning]:
    """Fixed times that the clock skips or repeats. Those that follow the clock are never moved."""
    if not pattern.fixed:
        return
    start = (after - EPOCH) // timedelta(seconds=1)
    for before, stretch in pairwise(stretches(zone, start // DAY, start // DAY + _LOOK_AHEAD, True)):
        due = pattern.due_from(min(before.last, stretch.opening))
        if stretch.start > start and due < max(before.last, stretch.opening):
            yield _shift(before, stretch, due, city(zone))


def _shifted_once(schedule: AtSchedule) -> Iterator[ScheduleWarning]:
    """A single time by the clock of a zone, which skips or repeats it. One with an offset is never moved."""
    if schedule.wall is None:
        return
    due = wall_second(schedule.wall)
    for before, stretch in pairwise(stretches(schedule.timezone, due // DAY, due // DAY, True)):
        first, second = sorted((before.last, stretch.opening))
        if first <= due < second:
            yield _shift(before, stretch, due, city(schedule.timezone))


def _shift(before: Stretch, stretch: Stretch, due: int, place: str) -> ScheduleWarning:
    first, second = sorted((before.last, stretch.opening))
    when = f"On {day_in_words(_wall(first))} the clock in {place}"
    if before.last > stretch.opening:
        shown = f"{when} shows {_wall(first):%H:%M} to {_wall(second):%H:%M} twice"
        return ScheduleWarning("dst_fold", f"{shown}; {_wall(due):%H:%M} fires once, the first time.")
    kept = second - first <= LONGEST_SHIFT
    effect = f"fires at {_wall(second):%H:%M} instead" if kept else "does not fire"
    shown = f"{when} skips {_wall(first):%H:%M} to {_wall(second):%H:%M}"
    return ScheduleWarning("dst_gap", f"{shown}; {_wall(due):%H:%M} {effect}.")


def _wall(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)
