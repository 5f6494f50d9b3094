"""The kind `acp`: any agent that speaks the Agent Client Protocol over its standard streams.

The protocol is spoken by a child process of ours, which alone loads its library, starts the agent, and serves its files
and terminals. It has a line to the desk as Python agents do.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from rota.errors import Invalid
from rota.executors.briefing import ALLOWED, as_json, environment, prepare_directory
from rota.executors.ending import failure, misconfigured, unprepared
from rota.executors.events import EVENTS, Event, Shapes
from rota.executors.nursery import nursery_in
from rota.executors.pipes import Pipe
from rota.executors.process import GRACE, Ending, Farewell, Program
from rota.executors.python import Attendant, start_child
from rota.executors.requests import REQUESTS
from rota.executors.sandbox import UNCONFINED, Sandbox
from rota.executors.strays import MARKS
from rota.model import agent_config
from rota.model.agent_config import AcpConfig, fill_server, read_acp
from rota.model.executor import STDERR, Assignment, Desk, LostAttempt
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded

CHILD = str(Path(__file__).with_name("child.py"))
OURS = (*ALLOWED, "PYTHONPATH", "LD_LIBRARY_PATH")  # what the child needs, which is not the agent
LONGEST_POLITENESS = timedelta(seconds=2)
SPARE = 1 / 8  # of the grace: for a child that does not end although all its time is over
LEAVE = b'{"leave": true}\n'


class AcpExecutor:
    """The end of a turn is the explicit completion; a process that merely ends has not completed."""

    kind = "acp"
    resumes = True

    def __init__(
        self, *, grace: timedelta = GRACE, allowed: Sequence[str] = ALLOWED, sandbox: Sandbox = UNCONFINED
    ) -> None:
        self._grace, self._allowed, self._sandbox = grace, allowed, sandbox

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return agent_config.check(self.kind, config, which=shutil.which)

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        try:
            config = read_acp(assignment.config)
            brief = self._brief(assignment, config)
            prepare_directory(assignment, self._sandbox)
            # The child is in the sandbox too, so that all it does for the agent is. Its limits bound the agent's.
            env, limits = _environment(brief["env"]), self._sandbox.at_least(config.limits)
            nursery = nursery_in(self._sandbox)
            program, line = start_child(CHILD, env, assignment.directory, limits, self._grace, nursery)
        except Invalid as mistake:
            return misconfigured(mistake)
        except OSError as shortage:
            return unprepared(shortage)
        return await _Attempt(assignment, config, desk, brief).attend(program, line, grace=self._grace)

    async def abandon(self, lost: LostAttempt) -> None:
        """Nothing: the agent dies with its worker."""

    def _brief(self, assignment: Assignment, config: AcpConfig) -> dict[str, Any]:
        """All that the child needs. A turn is first cancelled in the protocol's own way; both ways together take no
        longer than the grace."""
        servers = [
            fill_server(server, assignment.environment, f"config.mcp_servers[{number}]")
            for number, server in enumerate(config.mcp_servers)
        ]
        politeness = min(self._grace / 2, LONGEST_POLITENESS)
        return {
            "assignment": as_json(assignment),
            "config": assignment.config,
            "servers": [asdict(server) for server in servers],
            "env": environment(assignment, config.env, self._allowed),
            "politeness": politeness.total_seconds(),
            "grace": (self._grace - politeness).total_seconds(),
        }


def _environment(agents: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the agent's but the marks by which strays are found."""
    ours = {name: os.environ[name] for name in OURS if name in os.environ}
    return {**ours, **{name: agents[name] for name in MARKS}}


class _Attempt(Attendant):
    """The child keeps to the limit of the output, and tells what it had to leave out."""

    shapes: ClassVar[Shapes] = {
        **EVENTS,
        **REQUESTS,
        "stderr": EVENTS["say"],
        "noted": {**EVENTS["tool"], "data": lambda value: isinstance(value, dict)},
        "succeeded": {},
        "failed": {"detail": lambda value: isinstance(value, str)},
    }

    def __init__(self, assignment: Assignment, config: AcpConfig, desk: Desk, brief: Mapping[str, Any]) -> None:
        super().__init__(assignment, desk, brief, limit=2 * config.output_limit + 1_000_000)
        self._ended: Outcome | None = None

    def _farewell(self, program: Program, line: Pipe, grace: timedelta) -> Farewell:
        async def leave() -> None:
            await line.write(LEAVE)
            await asyncio.wait({program.gone}, timeout=(grace * (1 + SPARE)).total_seconds())
            program.hurry()

        return leave

    def _is_over(self) -> bool:
        return self._ended is not None or super()._is_over()

    async def _hear(self, event: Event, size: int) -> Any:
        match event["type"]:
            case "noted":
                await self._transcript.tool(event["name"], event["data"], size)
            case "stderr":
                await self._transcript.say(event["text"], STDERR)
            case "succeeded":
                self._ended = Succeeded()
            case "failed":
                kind = ErrorClass(event["error_class"])
                self._ended = Failed(kind, event["detail"], event["retryable"])
            case _:
                await super()._hear(event, size)

    def _outcome(self, ending: Ending) -> Outcome:
        outcome = self._requests.parked or self._ended
        if outcome is not None:
            return outcome
        told = failure(ending, "the client of the protocol", self._tail.last_line())
        return Failed(ErrorClass.EXECUTOR_ERROR, f"the client of the protocol broke down: {told.detail}")
