"""Lengths of time as people write them, "15m" or "1h30m", for schedules, timeouts and every other policy."""

import re
from datetime import timedelta
from fractions import Fraction

from rota.errors import Invalid

LONGEST = timedelta(days=3_653)  # ten years

_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000}
_NUMBER = r"\d+(?:\.\d+)?"
_FORM = re.compile(r"(?:@every +)?" + " ?".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _UNITS))
_MOST_CHARACTERS = 64


def parse_duration(text: str, *, field: str = "duration") -> timedelta:
    """Read "30s", "15m", "1.5h", "1d", "1h30m" or "@every 15m". Zero and more than ten years are refused."""
    parts = _parts(text, field)
    total = sum((Fraction(number) * _UNITS[unit] for unit, number in parts.items()), Fraction())
    if total.denominator != 1:
        raise _refuse(f"“{text}” is finer than a microsecond; use whole seconds, such as “30s”", field)
    if total == 0:
        raise _refuse(f"“{text}” is no time at all; use something longer, such as “30s”", field)
    if total > LONGEST // _MICROSECOND:
        raise _refuse(f"“{text}” is over ten years; use something shorter, such as “1d”", field)
    return timedelta(microseconds=total.numerator)


def _parts(text: str, field: str) -> dict[str, str]:
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS or not text.isascii():
        raise _refuse("A duration is a short text such as “15m”", field)
    match = _FORM.fullmatch(text.strip())
    parts = {unit: number for unit, number in match.groupdict().items() if number} if match else {}
    if not parts:
        raise _refuse(f"{text!a} is not a duration; use d, h, m and s in this order, such as “1h30m”", field)
    return parts


def format_duration(duration: timedelta) -> str:
    """The form that `parse_duration` reads back as exactly this: "1h30m", "1d", "0.5s"."""
    rest = duration // _MICROSECOND
    if rest <= 0:
        raise _refuse(f"{duration} is not a duration: it must be more than nothing", "duration")
    text = ""
    for unit in ("d", "h", "m"):
        number, rest = divmod(rest, _UNITS[unit])
        text += f"{number}{unit}" if number else ""
    seconds, fraction = divmod(rest, _UNITS["s"])
    tail = f".{fraction:06}".rstrip("0") if fraction else ""
    return text + (f"{seconds}{tail}s" if rest else "")


def _refuse(message: str, field: str) -> Invalid:
    return Invalid(message, code="invalid_duration", field=field)
