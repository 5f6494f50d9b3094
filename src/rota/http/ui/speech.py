"""The transcript as blocks of a page: stored ones, and what is added while somebody watches."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from rota.db.events import Event
from rota.http.ui.markdown import LONGEST
from rota.model.text import plain
from rota.sessions.transcript import Line, lines, merged

SHOWN_EVENTS, SHOWN_CHARACTERS = 200, 60_000


@dataclass(frozen=True, slots=True)
class Block:
    """One line of the transcript as the page shows it."""

    line: Line
    text: str
    tool: str = ""
    tool_hint: str = ""
    grows: bool = False

    @property
    def kind(self) -> str:
        return self.line.speaker if self.line.speaker in {"user", "agent", "tool", "rota"} else "agent"


@dataclass(frozen=True, slots=True)
class Told:
    """What a page must do to show some more events: what its last block goes on with, or, once that has ended and is
    known from its beginning, the whole of it; and what stands below."""

    continued: str
    finished: str | None
    blocks: Sequence[Block]
    kinds: frozenset[str]


class Teller:
    """Turns events into blocks; knows whether the page's last block is still open, so that pieces are joined to it."""

    def __init__(self, shown: Sequence[Event] = ()) -> None:
        self._open: Line | None = None
        self._said: str | None = None  # all of the open block, if it is a piece of an agent's and not too long
        told = self.tell(shown)
        if shown and shown[0].seq > 1 and len(told.blocks) == 1:
            self._said = None  # it may have begun before

    def tell(self, events: Sequence[Event]) -> Told:
        before = self._open
        told = merged([*([before] if before else []), *lines(events)])
        continued = plain(told[0].text)[0] if before and told[0].text != before.text else ""
        said = None if self._said is None else self._said + continued
        new = told[1:] if before else told
        self._open = _kept_open(told[-1]) if told else None
        self._said = _short(plain(new[-1].text)[0] if _is_piece(new[-1]) else None) if new else _short(said)
        shown = [block(line, grows=line is new[-1] and _is_piece(line)) for line in new]
        return Told(continued, said if new else None, shown, frozenset(event.kind for event in events))


def _is_piece(line: Line) -> bool:
    """Something an agent says, which may go on; a message is whole."""
    return line.speaker == "agent" and "body" not in line.data


def _short(said: str | None) -> str | None:
    return None if said is None or len(said) > LONGEST else said


def _kept_open(line: Line) -> Line:
    """The last line with only as much of its text as the next piece needs."""
    return replace(line, text=plain(line.text)[1] if line.speaker == "agent" else "")


def blocks(events: Sequence[Event], *, live: bool = False) -> list[Block]:
    """With `live`, the last of them may go on."""
    told = merged(lines(events))
    return [block(line, grows=live and line is told[-1] and _is_piece(line)) for line in told]


def block(line: Line, *, grows: bool = False) -> Block:
    if line.speaker != "tool":
        return Block(line, plain(line.text)[0], grows=grows)
    data = {name: value for name, value in line.data.items() if name != "name"}
    text = json.dumps(data, indent=2, ensure_ascii=False) if data else ""
    return Block(line, plain(text)[0], tool=line.text or "tool", tool_hint=_hint(data))


def _hint(data: dict[str, Any]) -> str:
    """A value, best a text, so that a folded call says what it was about."""
    for value in sorted(data.values(), key=lambda each: not isinstance(each, str)):
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if said := " ".join(plain(said)[0].split()):
            return said if len(said) <= 80 else said[:79] + "…"
    return ""


def fitting(events: Sequence[Event], characters: int = SHOWN_CHARACTERS) -> Sequence[Event]:
    """The newest of these events that fit on a page, and at least one."""
    size = 0
    for place in range(len(events) - 1, -1, -1):
        size += _size(events[place])
        if size > characters and place < len(events) - 1:
            return events[place + 1 :]
    return events


def fitting_first(events: Sequence[Event], characters: int = SHOWN_CHARACTERS) -> Sequence[Event]:
    """The oldest of these events that fit on a page, and at least one."""
    sizes = accumulate(_size(each) for each in events)
    return events[: max(1, sum(size <= characters for size in sizes))]


def whole_lines(before: Event | None, shown: Sequence[Event], after: Event | None) -> Sequence[Event]:
    """A part of the transcript, between these two events, by whole lines: one that a piece of an agent's words tears in
    two belongs to the part it begins in."""
    if before and shown and (head := _rest_of_line(before, shown[0])):
        rest = _text(shown[0])[len(head) :]
        if rest or len(shown) > 1:
            shown = [*([_saying(shown[0], rest)] if rest else []), *shown[1:]]
    if after and shown and (head := _rest_of_line(shown[-1], after)):
        shown = [*shown[:-1], _saying(shown[-1], _text(shown[-1]) + head)]
    return shown


def _rest_of_line(event: Event, following: Event) -> str:
    """With what the next piece ends the line that this one leaves open."""
    pieces = event.kind == following.kind == "output"
    same = (event.run_id, event.attempt) == (following.run_id, following.attempt)
    if not pieces or not same or _text(event).endswith("\n"):
        return ""
    said = _text(following)
    return said[: said.find("\n") + 1]


def _text(event: Event) -> str:
    return str(event.data.get("text", ""))


def _saying(event: Event, text: str) -> Event:
    return replace(event, data={**event.data, "text": text})


def _size(event: Event) -> int:
    if event.kind == "output":
        return len(_text(event))
    return len(json.dumps(event.data, ensure_ascii=False))
