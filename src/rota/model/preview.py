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
    """Fixed times that the clock skips or repeats. Those that follow the clock are never moved, but may come further
    apart then, or closer."""
    start = (after - EPOCH) // timedelta(seconds=1)
    for before, stretch in pairwise(stretches(zone, start // DAY, start // DAY + _LOOK_AHEAD, pattern.fixed)):
        due = pattern.due_from(min(before.last, stretch.opening))
        concerned = due < max(before.last, stretch.opening)
        if stretch.start <= start:
            continue
        if not pattern.fixed:
            yield from _stretched(pattern, before, stretch, due if concerned else None, city(zone))
        elif concerned:
            yield _shift(before, stretch, due, city(zone))


def _stretched(
    pattern: Pattern, before: Stretch, stretch: Stretch, due: int | None, place: str
) -> Iterator[ScheduleWarning]:
    """What becomes of a time within the shift, and of the step across it where the hours are stepped through."""
    last = pattern.due_before(before.last)
    usual = pattern.due_from(last + 1) - last
    apart = pattern.due_from(stretch.opening) - stretch.offset - (last - before.offset)
    steps = isinstance(pattern, Cron) and pattern.fields[1].startswith("*") and usual < DAY
    if apart == usual or (due is None and not steps):
        return
    effects = []
    if due is not None:
        effects.append(f"{_wall(due):%H:%M} {'fires twice' if before.last > stretch.opening else 'does not fire'}")
    if steps:
        effects.append(f"{_span(apart)} pass between two fires, not {_span(usual)}")
    yield _warning(before, stretch, place, ", and ".join(effects))


def _span(seconds: int) -> str:
    return format_duration(timedelta(seconds=seconds))


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
    if before.last > stretch.opening:
        effect = "fires once, the first time"
    elif stretch.opening - before.last <= LONGEST_SHIFT:
        effect = f"fires at {_wall(stretch.opening):%H:%M} instead"
    else:
        effect = "does not fire"
    return _warning(before, stretch, place, f"{_wall(due):%H:%M} {effect}")


def _warning(before: Stretch, stretch: Stretch, place: str, effect: str) -> ScheduleWarning:
    first, second = (_wall(wall) for wall in sorted((before.last, stretch.opening)))
    when = f"On {day_in_words(first)} the clock in {place}"
    if before.last > stretch.opening:
        return ScheduleWarning("dst_fold", f"{when} shows {first:%H:%M} to {second:%H:%M} twice; {effect}.")
    return ScheduleWarning("dst_gap", f"{when} skips {first:%H:%M} to {second:%H:%M}; {effect}.")


def _wall(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)
