"""What PostgreSQL can keep of what anybody says, in text or in JSON; and what of it is meant for people to read."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

DEEPEST = 64
LONGEST_NAME = 200
SMALLEST, LARGEST = -(2**63), 2**64 - 1  # of the whole numbers that every reader and writer of JSON keeps exactly

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
# What a terminal would obey and never show: colours, titles, moves of the cursor.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
_BEGUN = re.compile(r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|\x1b[\]PX^_][^\x07\x1b\x9c]{0,4096}\x1b?|\x1b[ -/]*)\Z")
# Characters without width: a soft hyphen, joiners, marks of direction, the selector of a coloured emoji.
_NO_WIDTH = (
    "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\ufe0f\ufeff"
)
_OBEYED = re.compile(f"[\x1b\x9b]|[{_NO_WIDTH}]+")
_UNSEEN = re.compile(f"{_SEQUENCE.pattern}|{_BEGUN.pattern}|[{_NO_WIDTH}]+")
_WHOLLY_UNSEEN = re.compile(f"{_SEQUENCE.pattern}|[{_NO_WIDTH}]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_MARKS = "`~*_-=#|:+> "  # of which alone the fences, rules and table lines of Markdown are made
_BLANK = " \u115f\u1160\u2800\u3164\uffa0"  # which Unicode counts as letters and symbols, but for the first
_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def clean(text: str) -> str:
    """Without NUL and halves of characters."""
    return _UNSTORABLE.sub("\ufffd", text) if "\0" in text or not text.isascii() else text


def clean_json(value: Any, depth: int = DEEPEST) -> Any:
    """The same for every text in a JSON value, and whole numbers that nobody would write as text; `ValueError` when it
    is nested too deep."""
    if depth == 0:
        raise ValueError(f"nested too deep: {DEEPEST} levels are the most")
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {clean(str(key)): clean_json(each, depth - 1) for key, each in value.items()}
        case list() | tuple():
            return [clean_json(each, depth - 1) for each in value]
        case int() if not SMALLEST <= value <= LARGEST:
            return str(value)
        case _:
            return value


def one_line(text: str) -> str:
    """A name, a title: without blanks around it. `ValueError` if it holds what no line shows."""
    if _NOT_IN_A_LINE.search(text):
        raise ValueError("Control characters, such as line breaks, have no place in it.")
    return " ".join(text.split())


def says_something(line: str) -> bool:
    return bool(line.strip().strip(_MARKS))


def named(text: str) -> str:
    """A line that is a name. `ValueError` if nothing of it is to be seen, or it is longer than names are."""
    name = one_line(text)
    if not any(each.isprintable() and each not in _BLANK for each in name):
        raise ValueError("Give it a name.")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"Give at most {LONGEST_NAME} characters.")
    return name


def has_unseen(text: str) -> bool:
    """Whether it may contain something that nobody sees: what a terminal obeys, or characters without width."""
    return "\x1b" in text or "\x9b" in text or (not text.isascii() and _has_no_width(text))


@lru_cache(maxsize=1)
def _has_no_width(text: str) -> bool:
    return any(map(text.__contains__, _NO_WIDTH))  # faster than a regular expression


@lru_cache(maxsize=1)  # who looks for the beginning of a secret looks for whole ones next
def seen(text: str) -> tuple[str, Sequence[int]]:
    """Text without what a terminal obeys, also at its end if that is only begun, and without characters that have no
    width; and where each character of it stands in what was given."""
    return _leave_out(_UNSEEN, text)


def without_unseen(text: str) -> tuple[str, Sequence[int]]:
    """The same, but the end is kept if it begins what a terminal obeys."""
    return _leave_out(_WHOLLY_UNSEEN, text)


def _leave_out(pattern: re.Pattern[str], text: str) -> tuple[str, Sequence[int]]:
    pieces, where, at = [], list[int](), 0
    for begins in _OBEYED.finditer(text):  # much faster than to try at every character
        start = begins.start()
        if start >= at and (unseen := pattern.match(text, start)):
            pieces.append(text[at:start])
            where += range(at, start)
            at = unseen.end()
    return "".join([*pieces, text[at:]]), [*where, *range(at, len(text))]


def plain(text: str) -> tuple[str, str]:
    """Text without what is meant for terminals, and the tail of which only the next piece tells what it is."""
    begun = _BEGUN.search(text)
    tail = begun.group() if begun else ""
    shown = _SEQUENCE.sub("", text.removesuffix(tail))
    if shown.endswith("\r"):  # perhaps half the end of a line, whatever the terminal was told since
        shown, tail = shown[:-1], "\r" + tail
    return _CONTROL.sub("", shown.replace("\r\n", "\n").replace("\r", "\n")), tail
