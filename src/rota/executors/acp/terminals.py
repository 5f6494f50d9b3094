"""Programs that an agent has its client run: each under a launcher of its own, so that they die with the worker."""

import asyncio
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rota.errors import Invalid, NotFound
from rota.executors.pipes import Pipe
from rota.executors.process import Ending, Exited, Killed, Program, Spec, Unstarted, attend, start

LARGEST_OUTPUT = 1_000_000
MOST = 20

_NAME = re.compile(r"[^=\0]+")


@dataclass(frozen=True, slots=True)
class Status:
    """How a program ended: by an exit code or by a signal."""

    exit_code: int | None = None
    signal: str | None = None


class Terminal:
    """The end of what the program wrote is kept, from the beginning of a character."""

    def __init__(self, program: Program, limit: int) -> None:
        self._limit, self._kept, self.truncated = limit, b"", False
        self.task = asyncio.create_task(self._run(program))

    @property
    def output(self) -> str:
        return self._kept.decode(errors="replace")

    @property
    def status(self) -> Status | None:
        if not self.task.done():
            return None
        return Status(signal="SIGTERM") if self.task.cancelled() else _status(self.task.result())

    async def ended(self) -> Status:
        await asyncio.wait({self.task})
        status = self.status
        assert status
        return status

    async def _run(self, program: Program) -> Ending:
        program.stdin.close()
        ending = await attend(program, self._hear(program.stdout), self._hear(program.stderr))
        if isinstance(ending, Unstarted):
            self._kept += ending.reason.encode()
        return ending

    async def _hear(self, pipe: Pipe) -> None:
        while data := await pipe.read():
            self._kept += data
            if len(self._kept) > self._limit:
                self.truncated = True
                kept = self._kept[-self._limit :] if self._limit else b""
                self._kept = kept.lstrip(bytes(range(0x80, 0xC0)))


class Terminals:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._open: dict[str, Terminal] = {}
        self._all: set[asyncio.Task[Ending]] = set()
        self._opened = 0
        self._closed = False

    def create(self, argv: Sequence[str], env: Mapping[str, str], directory: Path, limit: int | None) -> str:
        """Its name. What cannot be started ends at once, as in a shell."""
        if self._closed or len(self._open) >= MOST:
            raise Invalid(f"at most {MOST} terminals may be open", field="command")
        if any("\0" in text for text in (*argv, *env.values())) or not all(map(_NAME.fullmatch, env)):
            raise Invalid("holds a character that no program can be given", field="command")
        spec = replace(self._spec, argv=list(argv), env={**self._spec.env, **env}, directory=directory)
        terminal = Terminal(start(spec), LARGEST_OUTPUT if limit is None else min(limit, LARGEST_OUTPUT))
        self._all.add(terminal.task)
        terminal.task.add_done_callback(self._all.discard)
        self._opened += 1
        name = f"terminal-{self._opened}"
        self._open[name] = terminal
        return name

    def find(self, name: str) -> Terminal:
        if name not in self._open:
            raise NotFound(f"There is no terminal {name!r}.")
        return self._open[name]

    async def kill(self, name: str) -> None:
        """Its output can still be read."""
        terminal = self.find(name)
        terminal.task.cancel()
        await asyncio.wait({terminal.task})

    async def release(self, name: str) -> None:
        await self.kill(name)
        self._open.pop(name, None)  # it may be released twice, and both wait for its end

    def stop(self) -> None:
        """All of them, without waiting."""
        self._closed = True
        for task in self._all:
            task.cancel()

    async def gone(self) -> None:
        """When none is left. Who is cancelled meanwhile makes them hurry."""
        impatience: asyncio.CancelledError | None = None
        while running := [task for task in self._all if not task.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as again:
                self.stop()
                impatience = again
        if impatience is not None:
            raise impatience


def _status(ending: Ending) -> Status:
    match ending:
        case Exited(code):
            return Status(exit_code=code)
        case Killed(number):
            with suppress(ValueError):
                return Status(signal=signal.Signals(number).name)
            return Status(signal=str(number))
        case _:
            return Status(exit_code=127)
