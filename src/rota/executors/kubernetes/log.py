"""A container's log as the kubelet tells it: whole lines, each behind its time, so that one can go on where one was."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

LONGEST_LINE = 1_000_000

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")
_STAMPS = re.compile(rb"^[^ \n]* ?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Told:
    """All lines before this time were told, and so many that bear it."""

    stamp: bytes = b""
    lines: int = 0

    def __str__(self) -> str:
        return f"{self.stamp.decode()} {self.lines}"

    @property
    def since(self) -> str | None:
        """For the log's `sinceTime`, which knows whole seconds only."""
        second, _ = order(self.stamp)
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if second else None


def read_told(text: str | None) -> Told:
    stamp, _, lines = (text or "").partition(" ")
    return Told(stamp.encode(), int(lines)) if stamp and lines.isdecimal() else Told()


class Stamped:
    """Takes the times off the lines of one answer, and leaves out what was told before."""

    def __init__(self, told: Told) -> None:
        self._told = self._before = told
        self._skipped = 0  # lines that bear the very time up to which was told
        self._held = b""
        self._within = False  # a line too long to hold, of which a part was given away
        self._caught_up = not told.stamp

    @property
    def told(self) -> Told:
        """Up to where everything was given away."""
        return self._told

    def feed(self, data: bytes) -> bytes:
        """The text of all lines that are whole by now."""
        end = b""
        if self._within:
            end, newline, data = data.partition(b"\n")
            self._within, end = not newline, end + newline
        data = self._held + data
        lines, self._held = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        text = end + self._plain(self._new(lines))
        if len(self._held) > LONGEST_LINE:
            held, self._held, self._within = self._held, b"", True
            text += self._plain(self._new(held))
        return text

    def rest(self) -> bytes:
        """A last line without its end."""
        held, self._held = self._held, b""
        return self._plain(self._new(held))

    def _new(self, lines: bytes) -> bytes:
        while lines and not self._caught_up:
            stamp = _stamp(lines)
            if order(stamp) > order(self._before.stamp):
                self._caught_up = True
                break
            if stamp == self._before.stamp:
                if self._skipped == self._before.lines:
                    self._caught_up = True
                    break
                self._skipped += 1
            lines = lines[(lines.find(b"\n") + 1) or len(lines) :]
        return lines

    def _plain(self, lines: bytes) -> bytes:
        if not lines:
            return b""
        stamp = _stamp(lines[lines.rstrip(b"\n").rfind(b"\n") + 1 :])
        same = lines.count(b"\n" + stamp + b" ") + lines.startswith(stamp + b" ")
        before = self._told.lines if self._told.stamp == stamp else 0
        self._told = Told(stamp, before + same)
        return _STAMPS.sub(b"", lines) if lines.count(b"\n") else lines.partition(b" ")[2]


def _stamp(line: bytes) -> bytes:
    return line[: len(line) if (end := line.find(b" ")) < 0 else end]


def order(stamp: bytes) -> tuple[int, int]:
    """Seconds and nanoseconds. A node writes times of its own zone, which may change while an agent works."""
    match = _TIME.fullmatch(stamp.decode(errors="replace"))
    if match is None:
        return 0, 0
    second = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
    return int(second.timestamp()), int((match[2] or "").ljust(9, "0")[:9])
