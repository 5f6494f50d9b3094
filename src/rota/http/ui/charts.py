"""Pictures drawn on the server: lines and bars over time, and a year's calendar. Values in, paths out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from rota.http.ui.words import STATUS
from rota.model.cron import load_zone

WIDTH, HEIGHT = 520, 148
LEFT, BOTTOM, TOP = 44, 22, 6
ROWS = 4  # at most
LEAST_DAYS = 7
CLOCK = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12)),
    *(86400 * days for days in (1, 2, 5, 10, 20, 50)),
)


@dataclass(frozen=True, slots=True)
class Chart:
    """`lines` and `bars` are paths, `grid` horizontal lines with their figures, `ticks` words along the foot."""

    lines: Sequence[tuple[str, str]]
    area: str
    bars: Sequence[tuple[float, float, float, float, str]]
    grid: Sequence[tuple[float, str]]
    ticks: Sequence[tuple[float, str]]
    told: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


Points = Sequence[tuple[datetime, float | None]]


def lines(series: Mapping[str, Points], start: datetime, end: datetime, *, unit: str, zone: str, told: str) -> Chart:
    """Several lines over one stretch of time; the first is filled to the foot. What has no value is passed over."""
    most = max((value for each in series.values() for _, value in each if value is not None), default=0)
    step, rows = _axis(most, unit, least=1 if unit == "" else 0)
    top = step * rows
    span = (end - start).total_seconds()

    def place(at: datetime, value: float) -> str:
        x = LEFT + (WIDTH - LEFT) * min(max((at - start).total_seconds() / span, 0), 1)
        return f"{x:.1f} {_y(value, top):.1f}"

    paths = []
    for name, points in series.items():
        known = [(at, value) for at, value in points if value is not None]
        paths.append((name, "M" + "L".join(place(at, value) for at, value in known) if len(known) > 1 else ""))
    first = [at for at, value in next(iter(series.values())) if value is not None]
    foot = HEIGHT - BOTTOM
    closed = (
        f"L{place(first[-1], 0).split()[0]} {foot}L{place(first[0], 0).split()[0]} {foot}Z" if len(first) > 1 else ""
    )
    area = paths[0][1] + closed if closed else ""
    return Chart(paths, area, [], _grid(step, rows, unit), _hours(start, end, zone), told)


def bars(days: Sequence[tuple[date, float]], *, unit: str, told: str) -> Chart:
    """One bar for each day, from the first that has a value on, but a week at least."""
    begun = next((at for at, (_, value) in enumerate(days) if value > 0), 0)
    days = days[max(min(begun, len(days) - LEAST_DAYS), 0) :]
    row, rows = _axis(max((value for _, value in days), default=0), unit)
    top = row * rows
    step = (WIDTH - LEFT) / max(len(days), 1)
    drawn = []
    for at, (day, value) in enumerate(days):
        y = _y(value, top)
        if value > 0:
            words = f"{day:%-d %b}: {figure(value, unit)}"
            drawn.append((LEFT + at * step + step * 0.14, y, step * 0.72, max(HEIGHT - BOTTOM - y, 1.5), words))
    every = max(len(days) // 5, 1)
    ticks = [
        (LEFT + at * step + step / 2, f"{day:%-d %b}") for at, (day, _) in enumerate(days) if at % every == every // 2
    ]
    return Chart([], "", drawn, _grid(row, rows, unit), ticks, told)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - BOTTOM - TOP) * (1 - value / top)


def _axis(most: float, unit: str, least: float = 0) -> tuple[float, int]:
    """How far apart the lines of a grid are, which is a figure people count in, and how many it takes to the highest
    value. Things are counted one by one (`least`)."""
    if most <= 0:
        return 1.0, 1
    power = 10.0 ** math.floor(math.log10(most))
    tens = (step * power / 10 for step in (1, 2, 5, 10, 20, 50))
    steps = CLOCK if unit == "s" and most > 2 else tens
    step = next((each for each in steps if each >= least and each * ROWS >= most), most / ROWS)
    return step, math.ceil(most / step)


def _grid(step: float, rows: int, unit: str) -> list[tuple[float, str]]:
    short = "" if unit == "money" else unit  # an axis has no room for cents
    return [(_y(step * row, step * rows), figure(step * row, short)) for row in range(rows + 1)]


MARKS = (timedelta(minutes=15), timedelta(hours=1), timedelta(hours=3), timedelta(hours=6))


def _hours(start: datetime, end: datetime, zone: str) -> list[tuple[float, str]]:
    """Round times of the reader's clock, six hours apart at most and six of them at most."""
    place = load_zone(zone)
    apart = next((each for each in MARKS if (end - start) / each <= 6), MARKS[-1])
    at = start.astimezone(place).replace(minute=0, second=0, microsecond=0)
    found = []
    while at < end:
        if at >= start and (at.hour * 60 + at.minute) % (apart // timedelta(minutes=1)) == 0:
            share = (at - start) / (end - start)
            found.append((LEFT + (WIDTH - LEFT) * share, f"{at:%H:%M}"))
        at += min(apart, MARKS[1])
    return [each for each in found if LEFT + 12 < each[0] < WIDTH - 12]


def figure(value: float, unit: str) -> str:
    """A number as short as an axis can take it; money as people write it."""
    if unit == "s":
        return _length(value)
    if unit == "money":
        return f"{value:,.2f}" if value >= 0.01 or not value else f"{value:.6f}".rstrip("0")
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}{unit}"
    return f"{value:.3g}{unit}"


def spent(amount: Any, of: str) -> str:
    """So much of a unit of usage."""
    return figure(float(amount), told_in(of))


def told_in(of: str) -> str:
    """By which of the units here a unit of usage is told."""
    return "money" if of.startswith("money ") else {"seconds": "s", "run time": "s", "money": "money"}.get(of, "")


def _length(seconds: float) -> str:
    for size, letter in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {letter}"
    return f"{seconds * 1000:.3g} ms" if seconds else "0"


# ── The calendar ─────────────────────────────────────────────────────────────────────────────────────────────────

WEEKS, CELL, GAP = 26, 15, 3
HEAD, SIDE = 20, 30
WORST_FIRST = ("failed", "cancelled", "succeeded", "awaiting_approval", "running", "queued", "skipped")


@dataclass(frozen=True, slots=True)
class Day:
    x: int
    y: int
    day: date
    tone: str
    much: int
    failed: bool
    told: str
    count: int


@dataclass(frozen=True, slots=True)
class Calendar:
    days: Sequence[Day]
    months: Sequence[tuple[int, str]]
    weekdays: Sequence[tuple[int, str]]
    told: str
    cell: int = CELL
    width: int = SIDE + WEEKS * (CELL + GAP)
    height: int = HEAD + 7 * (CELL + GAP)


def first_day(today: date) -> date:
    """The Monday with which the calendar begins."""
    return today - timedelta(days=today.weekday() + 7 * (WEEKS - 1))


def calendar(counts: Sequence[Mapping[str, Any]], today: date) -> Calendar:
    """Half a year, a column for each week; each day in the colour of its worst outcome, stronger for more runs."""
    by_day: dict[date, dict[str, int]] = {}
    for row in counts:
        by_day.setdefault(row["day"], {})[row["status"]] = row["count"]
    most = max((sum(each.values()) for each in by_day.values()), default=1)
    start = first_day(today)
    days = [_day(start + timedelta(days=at), at, by_day.get(start + timedelta(days=at), {}), most)
            for at in range((today - start).days + 1)]  # fmt: skip
    months = [(SIDE + week * (CELL + GAP), f"{start + timedelta(weeks=week):%b}") for week in range(WEEKS)
              if week == 0 or (start + timedelta(weeks=week)).day <= 7]  # fmt: skip
    if len(months) > 1 and months[1][0] - months[0][0] < 36:
        months = months[1:]
    names = [(HEAD + at * (CELL + GAP) + 11, name) for at, name in ((0, "Mon"), (2, "Wed"), (4, "Fri"))]
    total = sum(sum(each.values()) for each in by_day.values())
    return Calendar(days, months, names, f"{total} runs since {start:%-d %B %Y}, by day")


def _day(day: date, at: int, counted: Mapping[str, int], most: int) -> Day:
    count = sum(counted.values())
    # A failure among many successes is marked; the colour tells what most of the day was.
    worst = "failed" if 2 * counted.get("failed", 0) >= count > 0 else "succeeded"
    tone = worst if worst in counted else next((each for each in WORST_FIRST if each in counted), "none")
    much = 0 if not count else 1 + min(3, int(4 * math.log1p(count) / math.log1p(most) - 0.01))
    parts = ", ".join(f"{amount} {STATUS[status].lower()}" for status, amount in counted.items())
    told = f"{day:%a %-d %b}: {parts or 'no runs'}"
    x, y = SIDE + at // 7 * (CELL + GAP), HEAD + at % 7 * (CELL + GAP)
    return Day(x, y, day, tone, much, "failed" in counted, told, count)
