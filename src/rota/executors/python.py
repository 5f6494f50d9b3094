"""The kind `python`: a function, in a child process that has a line to the desk of its own."""

import asyncio
import json
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from rota.agent import LONGEST_MESSAGE
from rota.errors import Broken, Invalid, Lost, Refused
from rota.executors.briefing import ALLOWED, as_json, environment, of_machine, prepare_directory
from rota.executors.ending import failure, misconfigured, unprepared
from rota.executors.events import EVENTS, Counter, Done, Error, Event, Shapes, decode, is_whole
from rota.executors.nursery import Nursery, nursery_in
from rota.executors.pipes import Pipe
from rota.executors.process import GRACE, Ending, Exited, Farewell, Program, Spec, attend, start
from rota.executors.requests import LATER, REQUESTS, Requests
from rota.executors.sandbox import UNCONFINED, Sandbox
from rota.executors.transcript import Tail, Transcript, hear_text
from rota.executors.warm import PYTHON, Libraries, nursery_with
from rota.model import agent_config
from rota.model.agent_config import Limits, PythonConfig
from rota.model.executor import STDERR, Assignment, Desk, LostAttempt
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded

CHILD = str(Path(__file__).with_name("python_child.py"))
MOST_WAITING = 100  # answers of one agent: each takes of what all agents of the worker share
READ_EARLY = ("PYTHON", "LD_")  # variables that begin so mean something to a Python that starts, and only then


@dataclass(frozen=True, slots=True)
class Child:
    """What is called in the child: the function of the configuration or, with `given`, what it makes of that."""

    config: PythonConfig
    given: Mapping[str, Any] | None = None
    libraries: Libraries = ()  # which every agent of the kind loads


class PythonExecutor:
    """A function that returns has completed; a process that merely ends has not."""

    kind = "python"
    resumes = True

    def __init__(
        self, *, grace: timedelta = GRACE, allowed: Sequence[str] = ALLOWED, sandbox: Sandbox = UNCONFINED
    ) -> None:
        self._grace, self._allowed, self._sandbox = grace, allowed, sandbox

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return agent_config.check(self.kind, config)

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        try:
            child = self.child(assignment)
            program, line = self._start(assignment, child)
        except Invalid as mistake:
            return misconfigured(mistake)
        except OSError as shortage:
            return unprepared(shortage)
        return await _Attempt(assignment, child, desk).attend(program, line, grace=self._grace)

    async def abandon(self, lost: LostAttempt) -> None:
        """Nothing: the child dies with its worker."""

    def child(self, assignment: Assignment) -> Child:
        return Child(agent_config.read_python(assignment.config))

    def _start(self, assignment: Assignment, child: Child) -> tuple[Program, Pipe]:
        prepare_directory(assignment, self._sandbox)
        env = environment(assignment, child.config.env, self._allowed)
        nursery, limits = self._nursery(assignment, child), self._sandbox.with_limits(child.config.limits)
        return start_child(CHILD, env, assignment.directory, limits, self._grace, nursery)

    def _nursery(self, assignment: Assignment, child: Child) -> Nursery:
        """Whoever has variables of its own begins in a new Python: it, or a library, may read them as it is loaded."""
        machine = of_machine(self._allowed)
        early = any(name in machine or name.startswith(READ_EARLY) for name in assignment.environment)
        if early or child.config.env:
            return nursery_in(self._sandbox)
        return nursery_with(child.libraries, machine, self._sandbox)


def start_child(
    script: str,
    env: Mapping[str, str],
    directory: Path,
    limits: Limits,
    grace: timedelta,
    nursery: Nursery,
) -> tuple[Program, Pipe]:
    """Start a script of ours under a launcher, with a line to it."""
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as on_failure:
        on_failure.enter_context(ours)
        argv = [*PYTHON, script, str(theirs.fileno())]
        program = start(Spec(argv, env, directory, limits, grace), [theirs], nursery)
        on_failure.pop_all()
    line = Pipe(ours.detach())
    program.owns(line)
    return program, line


class _Garbled(Exception):
    """The child sends what no line of ours would."""


class Attendant(ABC):
    """Serves the line of one child: what it tells goes to the desk, what it asks for is answered."""

    shapes: ClassVar[Shapes] = {**EVENTS, **REQUESTS}

    def __init__(self, assignment: Assignment, desk: Desk, brief: Mapping[str, Any], *, limit: int) -> None:
        self._brief = brief
        self._transcript = Transcript(desk, limit)
        self._counter = Counter(self._transcript)
        self._requests = Requests(desk, assignment.directory)
        self._waiting: set[asyncio.Task[None]] = set()
        self._broken: Exception | None = None
        self._writing = asyncio.Lock()
        self._tail = Tail()

    async def attend(self, program: Program, line: Pipe, *, grace: timedelta) -> Outcome:
        output = hear_text(program.stdout, self._transcript, "stdout")
        errors = hear_text(program.stderr, self._transcript, STDERR, self._tail)
        serving, farewell = self._serve(program, line, grace), self._farewell(program, line, grace)
        try:
            return self._outcome(await attend(program, output, errors, serving, farewell=farewell))
        except _Garbled as nonsense:
            return Failed(ErrorClass.EXECUTOR_ERROR, str(nonsense), retryable=False)
        finally:
            for task in self._waiting:
                task.cancel()

    def _farewell(self, _program: Program, _line: Pipe, _grace: timedelta) -> Farewell | None:
        """What is said to the child before it is signalled."""
        return None

    async def _serve(self, program: Program, line: Pipe, grace: timedelta) -> None:
        program.stdin.close()
        await line.write(json.dumps(self._brief).encode() + b"\n")
        rest = b""
        while data := await line.read():
            *messages, rest = (rest + data).split(b"\n")
            if len(rest) > LONGEST_MESSAGE:
                raise _Garbled(f"the agent sent a message of over {LONGEST_MESSAGE:,} bytes")
            for message in messages:
                await self._answer(message, line)
            if self._is_over():
                program.stop_after(grace)
        if self._broken is not None and not self._is_over():
            raise self._broken

    def _is_over(self) -> bool:
        return self._counter.verdict is not None or self._requests.parked is not None

    async def _answer(self, message: bytes, line: Pipe) -> None:
        """Only a message with an id is waited for by the agent. A question may take long: others go on meanwhile."""
        event = decode(message)
        if event is None:
            raise _Garbled("the agent wrote something else into its line to the desk")
        if event.get("type") not in LATER:
            await self._reply(event, len(message), line)
        elif len(self._waiting) >= MOST_WAITING:
            await self._tell(event, {"error": f"{MOST_WAITING} answers are waited for; more are too many"}, line)
        else:
            task = asyncio.create_task(self._reply_later(event, len(message), line))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _reply_later(self, event: Event, size: int, line: Pipe) -> None:
        try:
            await self._reply(event, size, line)
        except Lost:
            pass  # its worker knows by the lease, and stops this attempt
        except Exception as failure:  # the desk's: nobody waits for this task, and the agent would wait for ever
            self._broken = failure
            line.finish()

    async def _reply(self, event: Event, size: int, line: Pipe) -> None:
        """What the desk cannot do is the agent's to hear: it knows what it was about, and may know another way."""
        try:
            answer = await self._take(event, size)
        except (Refused, Broken) as refusal:
            answer = {"error": refusal.message}
        await self._tell(event, answer, line)

    async def _tell(self, event: Event, answer: Mapping[str, Any], line: Pipe) -> None:
        if "id" in event and event.get("type") != "tool":  # whose data may have an id of its own
            async with self._writing:
                await line.write(json.dumps({"id": event["id"], **answer}).encode() + b"\n")

    async def _take(self, event: Event, size: int) -> dict[str, Any]:
        if not is_whole(event, self.shapes):
            return {"error": f"the desk does not understand {event.get('type')!r}"}
        if event["type"] in REQUESTS:
            return {"result": await self._requests.take(event)}
        return {"result": await self._hear(event, size)}

    async def _hear(self, event: Event, size: int) -> Any:
        return await self._counter.take(event, size)

    @abstractmethod
    def _outcome(self, ending: Ending) -> Outcome: ...


class _Attempt(Attendant):
    shapes: ClassVar[Shapes] = {**EVENTS, **REQUESTS, "unusable": EVENTS["error"]}

    def __init__(self, assignment: Assignment, child: Child, desk: Desk) -> None:
        config = child.config
        agent = {
            "function": config.function, "entry_point": config.entry_point, "path": config.path, "given": child.given,
        }  # fmt: skip
        brief = {"agent": agent, "assignment": as_json(assignment)}
        super().__init__(assignment, desk, brief, limit=config.output_limit)
        self._unusable: str | None = None

    async def _hear(self, event: Event, size: int) -> Any:
        if event["type"] == "unusable":
            self._unusable = event["detail"]
            return None
        return await super()._hear(event, size)

    def _outcome(self, ending: Ending) -> Outcome:
        if self._unusable is not None:
            return Failed(ErrorClass.EXECUTOR_ERROR, self._unusable, retryable=False)
        match self._counter.verdict, ending:
            case Done(summary), _:
                return Succeeded(summary)
            case ((Error() as said), _):
                return said.outcome
            case _ if self._requests.parked is not None:
                return self._requests.parked
            case _, Exited(0):
                return Failed(ErrorClass.AGENT_ERROR, "the agent ended without saying it was done")
            case _:
                return failure(ending, sys.executable, self._tail.last_line())
