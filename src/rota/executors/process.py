"""The worker's side of the launcher: one program and all that it starts, from first to last."""

import asyncio
import logging
import marshal
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rota.executors import launcher
from rota.executors.nursery import THE_NURSERY, Nursery
from rota.executors.pipes import Pipe
from rota.executors.strays import kill_strays
from rota.model.agent_config import Limits
from rota.open_files import original_limit

GRACE = timedelta(seconds=5)
LAST_WORDS = 1.0
CPU_WARNING = 5  # seconds between SIGXCPU and SIGKILL

Farewell = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exited:
    code: int


@dataclass(frozen=True, slots=True)
class Killed:
    signal: int


@dataclass(frozen=True, slots=True)
class Unstarted:
    """There is no such program, or it may not be run; `passing` if the machine was only short of something."""

    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Vanished:
    """Nobody knows how the program ended."""


Ending = Exited | Killed | Unstarted | Vanished


@dataclass(frozen=True, slots=True)
class Spec:
    argv: Sequence[str]
    env: Mapping[str, str]
    directory: Path
    limits: Limits
    grace: timedelta

    def encoded(self) -> bytes:
        spec = marshal.dumps(
            {
                "argv": [_bytes(word) for word in self.argv],
                "env": {_bytes(name): _bytes(value) for name, value in self.env.items()},
                "directory": os.fsencode(self.directory),
                "limits": _rlimits(self.limits),
                "grace": self.grace.total_seconds(),
            }
        )
        return len(spec).to_bytes(4, "big") + spec


class Program:
    """A program that runs under a launcher. Made by `start`, used within `attend`."""

    def __init__(self, spec: Spec, control: socket.socket, pipes: Sequence[Pipe], nursery: Nursery) -> None:
        self.stdin, self.stdout, self.stderr = pipes
        self._pipes = list(pipes)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spec, self._control, self._nursery = spec, control, nursery
        self._heard = bytearray()
        self._briefed = False
        self._alarm: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        loop.add_reader(control, self._listen)
        self._launched = loop.call_later(launcher.PATIENCE, self._unlaunched)

    def owns(self, pipe: Pipe) -> None:
        """A further way into the program, finished and closed with it."""
        self._pipes.append(pipe)

    async def brief(self) -> None:
        """Tell the launcher what to run."""
        with suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.get_running_loop().sock_sendall(self._control, self._spec.encoded())
        self._briefed = True

    async def stop(self, farewell: Farewell | None = None) -> None:
        """Return when nothing is left, however often the caller is cancelled; a second time makes haste.

        `farewell` is what is to be said before the signals, to a program that still lives."""
        impatience: asyncio.CancelledError | None = None
        if farewell is not None and not self.gone.done():
            try:
                await farewell()
            except asyncio.CancelledError as again:
                self._tell(launcher.AT_ONCE)
                impatience = again
        self._tell(launcher.STOP)
        # Not a span of each wait: who is impatient again and again would begin it anew for ever.
        unanswered = asyncio.get_running_loop().call_later(self._patience(), self._kill_launcher)
        while not self.gone.done():
            try:
                await asyncio.wait({self.gone})
            except asyncio.CancelledError as again:
                self._tell(launcher.AT_ONCE)
                impatience = again
        unanswered.cancel()
        if impatience is not None:
            raise impatience

    def stop_after(self, delay: timedelta) -> None:
        """For a program that has nothing more to do but does not end."""
        loop = asyncio.get_running_loop()
        self._alarm = self._alarm or loop.call_later(delay.total_seconds(), self._tell, launcher.STOP)

    def hurry(self) -> None:
        """End it without any grace."""
        self._tell(launcher.AT_ONCE)

    def finish(self) -> None:
        """Nobody is left who could write: let the listeners come to their end."""
        for pipe in self._pipes:
            pipe.finish()

    def close(self) -> None:
        self._launched.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        for pipe in self._pipes:
            pipe.close()
        self._control.close()

    @property
    def ending(self) -> Ending:
        for word, rest in self._reports():
            match word:
                case "exited":
                    return Exited(int(rest))
                case "killed":
                    return Killed(int(rest))
                case "refused" | "short":
                    return Unstarted(rest, passing=word == "short")
        return Vanished()

    def _listen(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self._launched.cancel()
        if data:
            self._nursery.answered()
            self._heard += data
        else:
            self._over()

    def _over(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        if isinstance(self.ending, Vanished):
            self._kill_orphans()
        for word, pids in self._reports():
            if word == "left":
                log.warning("program.left", extra={"program": self._spec.argv[0], "pids": pids})
        self.gone.set_result(None)

    def _tell(self, what: bytes) -> None:
        with suppress(OSError):
            if self._briefed:
                self._control.send(what)
            else:
                self._control.shutdown(socket.SHUT_WR)

    def _unlaunched(self) -> None:
        """While others are launched, our turn will come. When nobody is, somebody has stopped the nursery: all who wait
        for it hear of its end."""
        silent = self._nursery.silent_for()
        if silent >= launcher.PATIENCE:
            log.warning("nursery.silent")
            self._nursery.end()
        else:
            self._launched = asyncio.get_running_loop().call_later(launcher.PATIENCE - silent, self._unlaunched)

    def _kill_launcher(self) -> None:
        """It does not answer: somebody has stopped it."""
        for word, pid in self._reports():
            if word == "launcher":  # it lives as long as its line is open, so the number is still its own
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def _patience(self) -> float:
        return self._spec.grace.total_seconds() + 2 * launcher.PATIENCE

    def _kill_orphans(self) -> None:
        """Kill what the program started, since its launcher is gone. In a PID namespace the kernel has done so."""
        if self._nursery.has_namespaces:
            return
        for word, pid in self._reports():
            if word == "started":
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(pid), signal.SIGKILL)
        kill_strays(self._spec.env)

    def _reports(self) -> list[tuple[str, str]]:
        """What the launcher said, each in a word and the rest; a line it was killed over does not count."""
        lines = self._heard.decode(errors="replace").split("\n")[:-1]
        return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def start(spec: Spec, share: Sequence[socket.socket] = (), nursery: Nursery = THE_NURSERY) -> Program:
    """Have a launcher started. The program will have the sockets of `share`, under the same numbers."""
    with ExitStack() as on_failure, ExitStack() as theirs:
        ours, control = socket.socketpair()
        on_failure.callback(ours.close)
        theirs.callback(control.close)
        ends = [_pipe(on_failure, theirs, ours_reads=reads) for reads in (False, True, True)]
        nursery = nursery.launch([their for _, their in ends], control, share)
        ours.setblocking(False)
        on_failure.pop_all()
        return Program(spec, ours, [Pipe(our) for our, _ in ends], nursery)


async def attend(program: Program, *listeners: Coroutine[None, None, None], farewell: Farewell | None = None) -> Ending:
    """Listen until the program and all that it started are gone, also after a failure or a cancellation."""
    tasks = [asyncio.create_task(listener) for listener in listeners]
    with closing(program):
        try:
            await program.brief()
            await _until(program.gone, tasks)
            program.finish()
            await asyncio.gather(*tasks)
            return program.ending
        finally:
            try:
                await program.stop(farewell)  # the listeners still listen: nobody can end well while its pipe is full
            finally:
                program.finish()
                await _dismiss(tasks)


async def _until(gone: asyncio.Future[None], tasks: Sequence[asyncio.Task[None]]) -> None:
    waiting: set[asyncio.Future[None]] = {gone, *tasks}
    while not gone.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()


async def _dismiss(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Let the listeners pass on what they still have, unless the desk does not take it."""
    await asyncio.wait(tasks, timeout=LAST_WORDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _pipe(on_failure: ExitStack, theirs: ExitStack, *, ours_reads: bool) -> tuple[int, int]:
    reader, writer = os.pipe()
    our, their = (reader, writer) if ours_reads else (writer, reader)
    on_failure.callback(os.close, our)
    theirs.callback(os.close, their)
    return our, their


def _rlimits(limits: Limits) -> list[tuple[int, int, int]]:
    """Each kind with its soft and hard limit."""
    # The address space would count what Go, Java and V8 only reserve; Linux's data limit does not.
    memory = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    wanted = {
        resource.RLIMIT_CORE: 0,
        memory: limits.memory,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_NPROC: limits.processes,
    }
    found = [(kind, value, value) for kind, value in wanted.items() if value is not None]
    if limits.cpu_seconds is not None:
        found.append((resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + CPU_WARNING))
    if limits.open_files is None and (original := original_limit()):
        found.append((resource.RLIMIT_NOFILE, *original))
    return found


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
