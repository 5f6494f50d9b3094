"""Writes what agents at work say: many pieces in one transaction, fenced, then a wake for the readers."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

from rota.db import budgets, events, usage
from rota.db.events import NewEvent
from rota.db.listener import Wakes
from rota.db.pool import PASSING, Database
from rota.db.usage import Charge
from rota.errors import Lost
from rota.model.budget import MOST_UNITS, SECONDS, UNITS, Exceeded
from rota.model.executor import STDERR
from rota.model.ids import RunId
from rota.model.redaction import NOTHING_SECRET, Redactor, Stream
from rota.model.run import Claimed
from rota.model.text import clean, clean_json, says_something

log = logging.getLogger(__name__)

WINDOW_SECONDS = 0.04
LONGEST_WINDOW_SECONDS = 0.32
FULL_BYTES = 256 * 1024
LONGEST_TEXT = 32 * 1024
RETRY = timedelta(seconds=0.5)
TOO_MANY_UNITS = f"\n[Usage of more than {MOST_UNITS} units was reported; further ones are not counted.]\n"


class Recorder:
    """One for each process. Desks hand in events; a flush writes those of all desks at once."""

    def __init__(self, db: Database, wakes: Wakes, *, full_bytes: int = FULL_BYTES, retry: timedelta = RETRY) -> None:
        """A desk with more than `full_bytes` to store makes its agent wait; `retry` follows a failed write."""
        self.full_bytes, self.retry_seconds = full_bytes, retry.total_seconds()
        self._db = db
        self._wakes = wakes
        self._desks: dict[int, RecordingDesk] = {}
        self._due = asyncio.Event()
        self._flushing = asyncio.Lock()

    def desk(self, run: Claimed) -> "RecordingDesk":
        return RecordingDesk(self, run)

    def has_something(self, desk: "RecordingDesk") -> None:
        self._desks[id(desk)] = desk
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(WINDOW_SECONDS)
            try:
                await self.flush(only_due=True)
            except Exception as failure:  # the top of a loop: what could not be written is kept and tried again
                log.warning("trace.unwritten", extra={"error": f"{type(failure).__name__}: {failure}"})
                await asyncio.sleep(self.retry_seconds)

    async def flush(self, *, only_due: bool = False, wanted_by: "RecordingDesk | None" = None) -> None:
        """Write everything handed in so far, or what has waited long enough. Who only wants their own words stored, and
        finds that the flush they waited for did it, leaves: otherwise each would write for the next, one after the
        other."""
        async with self._flushing:
            if wanted_by and not wanted_by.owes:
                return
            desks = [desk for desk in self._desks.values() if not only_due or desk.due()]
            for desk in desks:
                del self._desks[id(desk)]
            if not self._desks:
                self._due.clear()
            taken = [(desk, desk.take()) for desk in desks]
            await self._write_or_refuse(taken)

    async def _write_or_refuse(self, taken: "Sequence[Taken]") -> None:
        """What the database refuses for what it is must not hold up the words of others, nor be tried for ever. What
        could not be written is given back, and only that."""
        try:
            await self._write(taken)
        except (*PASSING, asyncio.CancelledError):
            self._give_back(taken)
            raise
        except Exception as failure:  # somebody's words: anything may be wrong with them
            if len(taken) > 1:
                await self._write_each(taken)
            else:
                [(desk, _)] = taken
                log.warning(
                    "trace.refused", extra={"run_id": desk.run.id, "error": f"{type(failure).__name__}: {failure}"}
                )
                desk.written(lost=False)

    async def _write_each(self, taken: "Sequence[Taken]") -> None:
        for number, each in enumerate(taken, 1):
            try:
                await self._write_or_refuse([each])
            except BaseException:
                self._give_back(taken[number:])
                raise

    def _give_back(self, taken: "Sequence[Taken]") -> None:
        for desk, (told, charges) in taken:
            desk.give_back(told, charges)
            self.has_something(desk)

    async def _write(self, taken: "Sequence[Taken]") -> None:
        if not taken:
            return
        capped = any(charges and desk.run.budget for desk, (_, charges) in taken)
        over: dict[RunId, Exceeded] = {}
        async with self._db.transaction() as conn:
            held = await events.hold(conn, [desk.attempt for desk, _ in taken], alone=capped)
            kept = [(desk, written) for desk, written in taken if desk.attempt in held]
            await events.append(conn, [event for _, (told, _) in kept for event in told])
            charged = [charge for desk, (_, charges) in kept if not desk.run.budget for charge in charges]
            if reported := [charge for desk, (_, charges) in kept if desk.run.budget for charge in charges]:
                accepted, over = await budgets.judge_charges(conn, reported, totals=True)
                charged += accepted
            await usage.charge(conn, charged)
        for desk, _ in taken:
            desk.written(lost=desk.attempt not in held)
            if desk.run.id in over:
                desk.exceeded(over[desk.run.id].told())
        self._wakes.tell_sessions(desk.run.session_id for desk, _ in kept)


Taken = tuple["RecordingDesk", tuple[list[NewEvent], list[Charge]]]


class RecordingDesk:
    """The desk of one attempt. Text that arrives together is stored together."""

    __slots__ = (
        "_flushed", "_is_stopped", "_lost", "_pending", "_recorder", "_redactor", "_refused_units", "_reporting",
        "_size", "_spent", "_text", "_text_is_stderr", "_uncharged", "_unfinished", "_voices", "_window", "attempt",
        "last_line", "over_budget", "owes", "run",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, run: Claimed) -> None:
        self.run = run
        self.attempt = (run.workspace_id, run.id, run.attempt)
        self.last_line = ""
        self._recorder = recorder
        self._pending: list[NewEvent] = []
        self._spent: dict[str, Decimal] = {}
        self._refused_units = False
        self._uncharged: set[str] = set()  # units of which more was spent than is stored
        self.owes = False  # something was handed in that is not known to be stored
        self._text: list[str] = []
        self._text_is_stderr = False
        self._size = 0
        self._unfinished = ""
        self._lost = False
        self._flushed: asyncio.Event | None = None  # somebody waits for room
        self._window = Window()
        self._redactor = NOTHING_SECRET
        self._voices: dict[str, Stream] = {}
        self.over_budget: Callable[[str], None] | None = None  # hears when the run has spent what it may
        self._is_stopped = False  # because a cap was reached
        self._reporting = asyncio.Lock() if run.budget else None

    def exceeded(self, told: str) -> None:
        """A cap was reached: what the run reports from now on is refused, and its worker stops it."""
        self._is_stopped = True
        if self.over_budget:
            self.over_budget(told)

    def hide(self, redactor: Redactor) -> None:
        """From now on these secrets are taken out of everything the attempt writes."""
        self._redactor, self._voices = redactor, {}

    async def say(self, text: str, voice: str = "") -> None:
        if text:
            text = clean(text)
            self._keep(self._stream(voice).feed(text) if self._redactor else text, voice)
            await self._handed_in()

    def _stream(self, voice: str) -> Stream:
        """One for each who speaks: what one says between two halves of another's secret must not save it."""
        if voice not in self._voices:
            self._voices[voice] = Stream(self._redactor)
        return self._voices[voice]

    async def tool(self, name: str, data: Mapping[str, Any]) -> None:
        self._end_text()
        used = clean_json(self._redacted({"name": name, **data}))
        self._pending.append(self._event("tool", used))
        self._size += len(str(used))
        await self._handed_in()

    async def usage(self, unit: str, amount: float) -> None:
        unit = self._redactor.text(unit)
        if unit == SECONDS:
            return  # running time is measured, not reported
        if unit not in self._spent and unit not in UNITS and len(self._spent) >= MOST_UNITS:
            await self._refuse_units()
            return
        if self._reporting is None:
            await self._spend(unit, amount)
            return
        async with self._reporting:  # each report is judged by itself: a cap is exceeded by one at most
            if not self._is_stopped:
                await self._spend(unit, amount)
                await self.finish()
        await asyncio.sleep(0)  # if it is to be stopped, then here

    async def _refuse_units(self) -> None:
        """Once: what follows is silence, as beyond the limit of the output."""
        if not self._refused_units:
            self._refused_units = True
            self._write_text(TOO_MANY_UNITS, is_stderr=False)  # not remembered: these are not the agent's own words
            await self._handed_in()

    async def ran(self, span: timedelta) -> None:
        """How long the attempt has run, once it has ended."""
        await self._spend(SECONDS, round(span.total_seconds(), 3))

    async def _spend(self, unit: str, amount: float) -> None:
        self._spent[unit] = self._spent.get(unit, Decimal()) + Decimal(str(amount))
        self._uncharged.add(unit)
        await self._handed_in()

    @property
    def lost(self) -> bool:
        """Whether nothing more of it is stored."""
        return self._lost

    async def finish(self) -> None:
        """Wait until all of it is stored; a settled run must never be followed by its own words."""
        while self.owes and not self._lost:
            try:
                await self._recorder.flush(wanted_by=self)
            except PASSING as failure:
                log.warning("trace.unwritten", extra={"error": str(failure).strip()})
                await asyncio.sleep(self._recorder.retry_seconds)

    def due(self) -> bool:
        """Whether what was handed in has waited long enough."""
        return self._size > self._recorder.full_bytes or self._window.over(time.monotonic())

    async def end(self) -> None:
        """The attempt says no more: store also what was held back because it might have become a secret."""
        rests = [(voice, rest) for voice, stream in self._voices.items() if (rest := stream.end())]
        if rests and not self._lost:
            for voice, rest in rests:
                self._keep(rest, voice)
            await self._handed_in()
        await self.finish()

    def take(self) -> tuple[list[NewEvent], list[Charge]]:
        self._end_text()
        self._window.close(time.monotonic())
        told, self._pending, self._size = self._pending, [], 0
        units, self._uncharged = self._uncharged, set()
        return told, [Charge(*self.attempt, unit, self._spent[unit]) for unit in sorted(units)]

    def give_back(self, told: list[NewEvent], charges: list[Charge]) -> None:
        self._pending = told + self._pending
        self._window.open(time.monotonic())
        self._uncharged |= {each.unit for each in charges}

    def written(self, *, lost: bool) -> None:
        self._lost = self._lost or lost
        self.owes = bool(self._pending or self._text or self._uncharged)
        if self._flushed:
            self._flushed.set()
            self._flushed = None

    async def _handed_in(self) -> None:
        if self._lost:
            raise Lost("This attempt belongs to another worker now.")
        self.owes = True
        self._window.open(time.monotonic())
        self._recorder.has_something(self)
        while self._size > self._recorder.full_bytes and not self._lost:
            self._flushed = self._flushed or asyncio.Event()  # several may wait
            await self._flushed.wait()

    def _keep(self, text: str, voice: str) -> None:
        is_stderr = voice == STDERR
        if not is_stderr:
            self._remember(text)
        self._write_text(text, is_stderr=is_stderr)
        self._size += len(text)

    def _write_text(self, text: str, *, is_stderr: bool) -> None:
        """An event holds text of standard error or other text, never both: the summary is taken from the other text."""
        if is_stderr != self._text_is_stderr and text:
            self._store_text()
            self._text_is_stderr = is_stderr
        self._text.append(text)

    def _redacted(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self._redactor.value(data)) if self._redactor else data

    def _end_text(self) -> None:
        for voice, stream in self._voices.items():
            if paused := stream.pause():
                self._keep(paused, voice)
        self._store_text()

    def _store_text(self) -> None:
        text, self._text = "".join(self._text), []
        told = {"stream": STDERR} if self._text_is_stderr else {}
        pieces = (text[at : at + LONGEST_TEXT] for at in range(0, len(text), LONGEST_TEXT))
        self._pending.extend(self._event("output", {"text": piece, **told}) for piece in pieces)

    def _event(self, kind: str, data: Mapping[str, Any]) -> NewEvent:
        return NewEvent(self.run.workspace_id, self.run.session_id, kind, data, self.run.id, self.run.attempt)

    def _remember(self, text: str) -> None:
        """Keep the last line that says something: it becomes the run's summary unless the agent gives one."""
        *lines, unfinished = (self._unfinished + text[-4096:]).splitlines(keepends=True) or [""]
        said = [line for line in (*lines, unfinished) if says_something(line)]
        self.last_line = said[-1].strip() if said else self.last_line
        self._unfinished = "" if unfinished.endswith("\n") else unfinished[-4096:]


class Window:
    """How long the words of one desk are gathered before they are stored. The first ones of a sentence are shown at
    once; while they stream on, ever more go into one row, so that a hundred thousand tokens become a few thousand."""

    __slots__ = ("_closed", "_length", "_opened")

    def __init__(self) -> None:
        self._length = 0.0
        self._opened: float | None = None
        self._closed = float("-inf")

    def open(self, now: float) -> None:
        if self._opened is None:
            goes_on = now - self._closed < LONGEST_WINDOW_SECONDS
            self._length = min(2 * self._length, LONGEST_WINDOW_SECONDS) if goes_on else 0.0
            self._opened = now

    def over(self, now: float) -> bool:
        return self._opened is not None and now - self._opened >= self._length

    def close(self, now: float) -> None:
        self._opened, self._closed = None, now
        self._length = max(self._length, WINDOW_SECONDS)
