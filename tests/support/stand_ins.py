"""A desk that records, a worker that can be killed, and ways to wait for real conditions."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rota.executors import warm
from rota.executors.briefing import ALLOWED, of_machine
from rota.executors.nursery import THE_NURSERY
from rota.model.approval import Answer
from rota.model.executor import Assignment
from rota.model.ids import ApprovalId, RunId, SessionId, WorkspaceId, new_id
from rota.model.memory import Remembered
from rota.model.outcome import Parked
from rota.model.task import TaskForm


class RecordingDesk:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.voices: dict[str, str] = {}
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.handed_on = False

    async def say(self, text: str, *, voice: str = "") -> None:
        self.calls.append(("say", text))
        self.voices[voice] = self.voices.get(voice, "") + text

    async def tool(self, name: str, data: Mapping[str, Any]) -> None:
        self.calls.append(("tool", name, data))

    async def usage(self, unit: str, amount: float) -> None:
        self.calls.append(("usage", unit, amount))

    async def stored(self) -> None:
        """All of it is, at once."""

    async def checkpoint(self, data: bytes) -> None:
        self.calls.append(("checkpoint", data))

    async def ask(self, question: str, **about: Any) -> Answer:
        self.calls.append(("ask", question, about))
        return await self.answers.get()

    async def park(self, question: str, **about: Any) -> Answer | Parked:
        self.calls.append(("park", question, about))
        return Parked(ApprovalId(new_id())) if self.answers.empty() else self.answers.get_nowait()

    async def message(self, body: Any, *, to: str = "all", key: str | None = None) -> Mapping[str, Any]:
        raise NotImplementedError

    async def inbox(self, *, after: int = 0, wait: timedelta | None = None) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    async def ack(self, ids: Sequence[int]) -> None:
        raise NotImplementedError

    async def task(self, tasks: Sequence[TaskForm]) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    async def event(self, name: str, data: Any = None, *, key: str | None = None) -> Mapping[str, Any]:
        raise NotImplementedError

    async def artifact(self, name: str, content: bytes | Path, *, media_type: str | None = None) -> Mapping[str, Any]:
        raise NotImplementedError

    async def link(self, uri: str, *, name: str | None = None) -> Mapping[str, Any]:
        raise NotImplementedError

    async def remember(self, given: Remembered) -> Mapping[str, Any]:
        raise NotImplementedError

    async def recall(self, key: str) -> Mapping[str, Any] | None:
        raise NotImplementedError

    async def forget(self, key: str) -> None:
        raise NotImplementedError

    @property
    def text(self) -> str:
        return "".join(call[1] for call in self.calls if call[0] == "say")

    @property
    def asked(self) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] in ("ask", "park")]

    @property
    def events(self) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] != "say"]


def assignment(config: Mapping[str, Any], directory: Path, **changes: Any) -> Assignment:
    given: dict[str, Any] = {
        "workspace_id": WorkspaceId(new_id()),
        "run_id": RunId(new_id()),
        "session_id": SessionId(new_id()),
        "attempt": 1,
        "source": "run_now",
        "slot": None,
        "missed": None,
        "payload": None,
        "config": config,
        "instructions": "",
        "prompt": "Write a poem",
        "input": None,
        "transcript": [],
        "timeout": timedelta(hours=1),
        "idempotency_key": "key-1",
        "directory": directory,
    }
    return Assignment(**{**given, **changes})


async def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Poll a condition and return its first true value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        await asyncio.sleep(0.005)
    return value


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def wait_for_nursery(libraries: warm.Libraries = (), env: Mapping[str, str] | None = None) -> None:
    """Wait for the nursery that has these libraries loaded."""
    machine = of_machine(ALLOWED) if env is None else env
    await until(lambda: warm.nursery_with(libraries, machine) is not THE_NURSERY, "the nursery is ready")


def read_pids(directory: Path) -> list[int] | None:
    """What the behaviour `forks` wrote, once it is whole."""
    try:
        return [int(pid) for pid in (directory / "pids").read_text().split()]
    except FileNotFoundError:
        return None


def translate_pids(pids: Sequence[int], directory: Path) -> list[int]:
    """Translate the PIDs that an agent in a sandbox sees, in a namespace of its own, to those of this process."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if status.parent.joinpath("cwd").samefile(directory):
                numbers = next(line for line in status.read_text().splitlines() if line.startswith("NSpid:")).split()
                found[int(numbers[-1])] = int(numbers[1])
    return [found[pid] for pid in pids]


def find_marked_pids(mark: str) -> list[int]:
    """Return the PIDs of all processes with this mark in their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes() and int(name) != os.getpid():
                found.append(int(name))
        except OSError:
            continue
    return found


async def execute_once(name: str, config: Mapping[str, Any], directory: Path) -> None:
    from support.executor_kinds import KINDS

    [kind] = [each for each in KINDS if each.name == name]
    executor = kind.executor(timedelta(seconds=0.3))
    await executor.execute(assignment(config, directory), RecordingDesk())


if __name__ == "__main__":
    asyncio.run(execute_once(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])))
