"""A container's log as the kubelet tells it: whole lines, each behind its time, so that one can go on where one was."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

LONGEST_LINE = 1_000_000
LONGEST_COMPLAINT = 500
NO_TIME = (0, 0)

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")
_STAMP = re.compile(rb"[^ \n]*")
_STAMPS = re.compile(rb"^[^ \n]* ?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Told:
    """All lines before this time were told, so many that bear it, and so many bytes of the next one that bears it."""

    stamp: bytes = b""
    lines: int = 0
    part: int = 0

    def __str__(self) -> str:
        return f"{self.stamp.decode()} {self.lines}" + (f" {self.part}" if self.part else "")

    @property
    def since(self) -> str | None:
        """For the log's `sinceTime`, which knows whole seconds only."""
        second, _ = order(self.stamp)
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if second else None


def read_told(text: str | None) -> Told:
    stamp, *numbers = (text or "").split(" ")
    if not stamp or len(numbers) not in (1, 2) or not all(each.isdecimal() for each in numbers):
        return Told()
    return Told(stamp.encode(), *map(int, numbers))


class Stamped:
    """Takes the times off the lines of one answer, and leaves out what was told before.

    A line longer than `LONGEST_LINE` is given away in parts. A line without a time is not the container's: the node
    says in it why it cannot read the log, behind an answer that has begun with 200.
    """

    def __init__(self, told: Told) -> None:
        self._told = self._before = told
        self._skipped = 0  # lines that bear the very time up to which was told
        self._held = b""
        self._within = False  # a long line, of which a part was given away or skipped
        self._is_old = False  # that line was told before
        self._drop = 0  # bytes of the next line, or of the rest of the long one, that were told before
        self._caught_up = not told.stamp
        self.complaint = ""

    @property
    def told(self) -> Told:
        """Up to where everything was given away."""
        return self._told

    def feed(self, data: bytes) -> bytes:
        """The text of all lines that are whole by now."""
        text = b""
        if self._within:
            piece, newline, data = data.partition(b"\n")
            text = self._continue_line(piece, newline)
        data = self._held + data
        lines, self._held = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        text += self._plain(self._new(lines))
        if len(self._held) > LONGEST_LINE:
            held, self._held = self._held, b""
            text += self._begin_line(held)
        return text

    def rest(self) -> bytes:
        """A last line without its end."""
        held, self._held = self._held, b""
        return self._plain(self._new(held))

    def _begin_line(self, held: bytes) -> bytes:
        """Give away the first part of a line that is too long to hold."""
        self._within, self._is_old = True, not self._new(held)
        if self._is_old:
            return b""
        stamp, _, text = held.partition(b" ")
        self._told = Told(stamp, self._told.lines if self._told.stamp == stamp else 0)
        return self._continue_line(text, b"")

    def _continue_line(self, piece: bytes, newline: bytes) -> bytes:
        self._within = not newline
        if self._is_old:
            return b""
        new = piece[self._drop :]
        self._drop = max(0, self._drop - len(piece))
        stamp, lines, part = self._told.stamp, self._told.lines, self._told.part
        if stamp == self._before.stamp and lines == self._before.lines:
            part = max(part, self._before.part)
        self._told = Told(stamp, lines + 1) if newline else Told(stamp, lines, part + len(new))
        return new + newline

    def _new(self, lines: bytes) -> bytes:
        while lines and not self._caught_up:
            stamp, end = _stamp(lines), (lines.find(b"\n") + 1) or len(lines)
            if order(stamp) > order(self._before.stamp):
                self._caught_up = True
                break
            if stamp == self._before.stamp:
                if self._skipped == self._before.lines:
                    self._caught_up, self._drop = True, self._before.part
                    break
                self._skipped += 1
            elif order(stamp) == NO_TIME:
                self._complain(lines[:end])
            lines = lines[end:]
        return lines

    def _plain(self, lines: bytes) -> bytes:
        if not lines:
            return b""
        begins = lines.rstrip(b"\n").rfind(b"\n") + 1
        stamp = _stamp(lines[begins:])
        if order(stamp) == NO_TIME:
            self._complain(lines[begins:])
            return self._plain(lines[:begins])
        same = lines.count(b"\n" + stamp + b" ") + lines.startswith(stamp + b" ")
        before = self._told.lines if self._told.stamp == stamp else 0
        self._told = Told(stamp, before + same)
        text = _STAMPS.sub(b"", lines) if lines.count(b"\n") else lines.partition(b" ")[2]
        drop, self._drop = self._drop, 0
        return text[drop:]

    def _complain(self, line: bytes) -> None:
        self.complaint = line.decode(errors="replace").strip()[:LONGEST_COMPLAINT]


def _stamp(line: bytes) -> bytes:
    match = _STAMP.match(line)
    return match[0] if match else b""


def order(stamp: bytes) -> tuple[int, int]:
    """Seconds and nanoseconds. A node writes times of its own zone, which may change while an agent works."""
    match = _TIME.fullmatch(stamp.decode(errors="replace"))
    if match is None:
        return NO_TIME
    second = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
    return int(second.timestamp()), int((match[2] or "").ljust(9, "0")[:9])
