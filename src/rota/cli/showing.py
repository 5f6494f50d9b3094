"""Answers as people read them: aligned columns, times in words, and nothing that a terminal would obey."""

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, NamedTuple

import click

from rota.model.text import plain

Item = Mapping[str, Any]

NARROWEST = 6
READABLE = 10
BETWEEN = "  "
NOTHING = "-"
# What turns the direction of writing could show a name as another one.
_TURNING = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
# JSON has these as they are; some terminals obey the first, some readers take the last for ends of lines.
_UNESCAPED = re.compile("[\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069]")
COLOURS = {
    "succeeded": "green", "active": "green", "done": "green", "idle": "green", "alive": "green", "approved": "green",
    "valid": "green", "running": "cyan", "busy": "cyan", "queued": "cyan", "awaiting_approval": "yellow",
    "pending": "yellow", "paused": "yellow", "skipped": "yellow", "failed": "red", "dead": "red", "refused": "red",
    "revoked": "red", "expired": "red", "deleted": "red",
}  # fmt: skip
UNITS = (
    (timedelta(days=1), "d"),
    (timedelta(hours=1), "h"),
    (timedelta(minutes=1), "min"),
    (timedelta(seconds=1), "s"),
)


class Column(NamedTuple):
    """`value` is a key of the item, or makes the cell of it. What is `whole` is never cut: an id, a slug."""

    title: str
    value: str | Callable[[Item], object]
    whole: bool = False

    def cell(self, item: Item) -> str:
        found = item.get(self.value) if isinstance(self.value, str) else self.value(item)
        return NOTHING if found in (None, "", []) else one_line(found)


# ── Text ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def clean(text: object) -> str:
    """Text of anybody, over several lines perhaps, without what a terminal would obey."""
    return _TURNING.sub("", plain(str(text))[0])


def one_line(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else str(value)
    return " ".join(clean(text).split())


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """The same value for whoever reads it as JSON, and harmless for a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def figure(amount: float) -> str:
    """An amount to its last digit: whole ones as such, and without what floats add of their own."""
    return f"{amount:,.15g}"


def width_of(text: str) -> int:
    """How many cells of a terminal it takes: East Asian characters two, marks on others none."""
    return sum(0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


def cut(text: str, room: int) -> str:
    if width_of(text) <= room:
        return text
    kept = sum(reached < room for reached in accumulate(map(width_of, text)))
    return f"{text[:kept]}…" if room else ""


def filled(text: str, room: int) -> str:
    return text + " " * (room - width_of(text))


def coloured(word: str) -> str:
    colour = COLOURS.get(word.partition(" ")[0].rstrip(","))
    return click.style(word, fg=colour) if colour else word


# ── Times ────────────────────────────────────────────────────────────────────────────────────────────────────────


def local(instant: str | None, *, now: datetime | None = None) -> str:
    """A time on the reader's clock, and how far it is from now."""
    if not instant:
        return NOTHING
    return f"{_here(instant):%Y-%m-%d %H:%M:%S %z} ({distance(instant, now=now)})"


def brief(instant: str | None, *, now: datetime | None = None) -> str:
    """For a column: in words within a day, else on the reader's clock."""
    if not instant:
        return NOTHING
    if abs(_read(instant) - (now or datetime.now(UTC))) < timedelta(days=1):
        return distance(instant, now=now)
    return f"{_here(instant):%Y-%m-%d %H:%M}"


def distance(instant: str, *, now: datetime | None = None) -> str:
    away = _read(instant) - (now or datetime.now(UTC))
    for unit, name in UNITS:
        if abs(away) >= unit:
            return f"in {away // unit} {name}" if away > timedelta() else f"{-away // unit} {name} ago"
    return "now"


def lasted(start: str | None, end: str | None) -> str:
    if not start or not end:
        return NOTHING
    seconds = (_read(end) - _read(start)).total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def _read(instant: str) -> datetime:
    return datetime.fromisoformat(instant)


def _here(instant: str) -> datetime:
    """On the reader's clock; as it was told where that one shows a year that is none, such as 10000."""
    try:
        return _read(instant).astimezone()
    except OverflowError:
        return _read(instant)


# ── Shapes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def room() -> int | None:
    """How wide a line may be; None where nobody looks at a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(columns: Sequence[Column], items: Iterable[Item], *, within: int | None = None) -> Iterator[str]:
    """Lines of aligned columns under their titles, none wider than `within`. Where a row would be cut to pieces that
    nobody can read, what is whole stands in a line of its own, above the rest."""
    cells = [
        [column.title.upper() for column in columns],
        *([column.cell(item) for column in columns] for item in items),
    ]
    if not within or not _crowded(columns, cells, within):
        return _lines(columns, cells, within)
    whole, rest = ([at for at, column in enumerate(columns) if column.whole is whole] for whole in (True, False))
    return _above_each_other(
        _lines([columns[at] for at in whole], [[row[at] for at in whole] for row in cells], within),
        _lines([columns[at] for at in rest], [[row[at] for at in rest] for row in cells], within - len(BETWEEN)),
    )


def _crowded(columns: Sequence[Column], cells: Sequence[Sequence[str]], within: int) -> bool:
    """Whether columns that can be cut would have to be, so far that a status is none any more."""
    widths = [
        width if column.whole else min(width, READABLE) for column, width in zip(columns, _widths(cells), strict=True)
    ]
    return any(column.whole for column in columns) and _together(widths) > within


def _above_each_other(first: Iterable[str], second: Iterable[str]) -> Iterator[str]:
    for above, below in zip(first, second, strict=True):
        yield above
        yield BETWEEN + below


def _lines(columns: Sequence[Column], cells: Sequence[Sequence[str]], within: int | None) -> Iterator[str]:
    titles, *rows = cells
    widths = _widths(cells)
    if within:
        _narrow(widths, columns, within)
    yield _line(titles, widths, within, lambda title: click.style(title, bold=True))
    for row in rows:
        yield _line(row, widths, within, coloured)


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width_of, column)) for column in zip(*cells, strict=True)]


def _together(widths: Sequence[int]) -> int:
    return sum(widths) + len(BETWEEN) * (len(widths) - 1)


def listed(columns: Sequence[Column], items: Sequence[Item], *, as_lines: bool) -> Iterator[str]:
    """A list that is at hand: a table, or an object of JSON a line."""
    if as_lines:
        return (json.dumps(item, default=_as_the_api_has_it) for item in items)
    return table(columns, items, within=room())


def _as_the_api_has_it(value: object) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)


def _narrow(widths: list[int], columns: Sequence[Column], within: int) -> None:
    """Take from the widest column that may be cut until all fit, or nothing is left to take."""
    free = [at for at, column in enumerate(columns) if not column.whole]
    while _together(widths) > within:
        widest = max(free, key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1


def _line(cells: Sequence[str], widths: Sequence[int], within: int | None, paint: Callable[[str], str]) -> str:
    shown = [cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = [filled(cell, width) for cell, width in zip(shown[:-1], widths, strict=False)]
    whole = BETWEEN.join([*padded, shown[-1]])
    if within and width_of(whole) > within:
        return cut(whole, within)
    painted = [
        paint(cell) + " " * (len(pad) - len(cell)) for cell, pad in zip(shown, [*padded, shown[-1]], strict=True)
    ]
    return BETWEEN.join(painted)


def facts(pairs: Iterable[tuple[str, object]]) -> Iterator[str]:
    """A line for each name and value; what has several lines stands below its name."""
    told = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    wide = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        text = clean(value) if isinstance(value, str) else one_line(value)
        label = click.style(filled(name, wide), bold=True)
        if "\n" in text.strip():
            yield click.style(name, bold=True)
            yield from (f"  {line}" for line in text.strip().splitlines())
        else:
            yield f"{label}{BETWEEN}{coloured(text.strip())}"


def wants_colour() -> bool | None:
    """None: as the terminal can."""
    return False if os.environ.get("NO_COLOR") else None
