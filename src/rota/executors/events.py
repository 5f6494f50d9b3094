"""The events that agents write as lines of JSON: how they are told from text, and what they cause."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rota.executors.transcript import Transcript, Words
from rota.model.outcome import ErrorClass, Failed
from rota.model.text import clean_json

LONGEST_LINE = 1_000_000
LARGEST_AMOUNT = 1e15

Event = Mapping[str, Any]
Shapes = Mapping[str, Mapping[str, Callable[[object], bool]]]

_OBJECT = re.compile(rb'\{[ \t]*("|\Z)')


@dataclass(frozen=True, slots=True)
class Done:
    summary: str | None


@dataclass(frozen=True, slots=True)
class Error:
    detail: str
    retryable: bool
    error_class: ErrorClass = ErrorClass.AGENT_ERROR

    @property
    def outcome(self) -> Failed:
        return Failed(self.error_class, self.detail, self.retryable)


class Lines:
    """Parts a stream into lines that look like objects and everything else, holding back only the former."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._held = b""
        self._within = False  # a line of which a part was given away as text

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Pieces, each with whether it may be an event. Text is never split by line: a flood has too many."""
        data, self._held = self._held + data, b""
        at = 0
        while at < len(data):
            if self._within or data[at] != ord("{"):
                piece = data[at : (data.find(b"\n{", at) + 1) or len(data)]
                self._within = not piece.endswith(b"\n")
                yield False, piece
            else:
                piece = data[at : (data.find(b"\n", at) + 1) or len(data)]
                if self._may_go_on(piece):
                    self._held = piece
                    return
                self._within = not piece.endswith(b"\n")
                yield len(piece) <= self._longest and not self._within, piece
            at += len(piece)

    def rest(self) -> bytes:
        rest, self._held = self._held, b""
        return rest

    def _may_go_on(self, piece: bytes) -> bool:
        return not piece.endswith(b"\n") and len(piece) <= self._longest and _OBJECT.match(piece) is not None


class Counter:
    """Carries the events of one attempt to the desk, and remembers how the agent said it ended."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self.verdict: Done | Error | None = None

    async def take(self, event: Event, size: int) -> Any:
        """What the agent gets back, if it waits for an answer."""
        match event["type"]:
            case "say":
                await self._transcript.say(event["text"])
            case "tool":
                data = {key: value for key, value in event.items() if key not in ("type", "name")}
                await self._transcript.tool(event["name"], data, size)
            case "usage":
                await self._transcript.usage(event["unit"], event["amount"])
            case "done":
                self.verdict = Done(event.get("summary"))
            case "error":
                kind = ErrorClass(event.get("error_class") or ErrorClass.AGENT_ERROR)
                retryable = event.get("retryable") is not False and kind == ErrorClass.AGENT_ERROR
                self.verdict = Error(event["detail"], retryable, kind)
        return None


class EventStream:
    """A stream of text with events between it, such as a program's standard output."""

    def __init__(self, transcript: Transcript, counter: Counter) -> None:
        self._words, self._counter = Words(transcript), counter
        self._lines = Lines()

    async def hear(self, data: bytes) -> None:
        """Text between two events is said in one piece."""
        text: list[bytes] = []
        for perhaps, piece in self._lines.feed(data):
            event = parse(piece) if perhaps else None
            if event is None:
                text.append(piece)
                continue
            await self._words.hear(b"".join(text))
            text.clear()
            await self._counter.take(event, len(piece))
        await self._words.hear(b"".join(text))

    async def end(self) -> None:
        rest = self._lines.rest()
        event = parse(rest) if rest else None
        await self._words.hear(b"" if event else rest, last=True)
        if event:
            await self._counter.take(event, len(rest))


def parse(line: bytes) -> Event | None:
    """The event of a line, if it is one. Whatever is not whole remains text, so that it is seen."""
    event = decode(line) if b'"type"' in line else None
    return event if event is not None and is_whole(event, EVENTS) else None


def decode(line: bytes) -> Event | None:
    """The object of a line of JSON, fit to be stored."""
    try:
        value = clean_json(json.loads(line, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_whole(event: Event, shapes: Shapes) -> bool:
    kind = event.get("type")
    fields = shapes.get(kind) if isinstance(kind, str) else None
    return fields is not None and all(fits(event.get(name)) for name, fits in fields.items())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST_AMOUNT


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_flag_or_none(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _is_class_or_none(value: object) -> bool:
    return value in (None, ErrorClass.AGENT_ERROR, ErrorClass.APPROVAL_REFUSED)


EVENTS: Shapes = {
    "say": {"text": _is_text},
    "tool": {"name": _is_name},
    "usage": {"unit": _is_name, "amount": _is_amount},
    "done": {"summary": _is_text_or_none},
    "error": {"detail": _is_text, "retryable": _is_flag_or_none, "error_class": _is_class_or_none},
}
