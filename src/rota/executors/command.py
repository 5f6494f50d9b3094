"""The kind `command`: any program; lines of JSON on its stdout are events, other output is transcript."""

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rota.errors import Invalid
from rota.executors.briefing import ALLOWED, as_json, environment, prepare_directory
from rota.executors.ending import failure, misconfigured, unprepared
from rota.executors.events import Counter, Done, Error, EventStream
from rota.executors.nursery import nursery_in
from rota.executors.pipes import Pipe
from rota.executors.process import GRACE, Ending, Exited, Program, Spec, attend, start
from rota.executors.sandbox import UNCONFINED, Sandbox
from rota.executors.transcript import Tail, Transcript, hear_text
from rota.model import agent_config
from rota.model.agent_config import CommandConfig, Stdin
from rota.model.executor import STDERR, Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome, Succeeded


class CommandExecutor:
    """Exit code 0 is the explicit completion of a program, unless it wrote an event `error` last."""

    kind = "command"
    resumes = False

    def __init__(
        self, *, grace: timedelta = GRACE, allowed: Sequence[str] = ALLOWED, sandbox: Sandbox = UNCONFINED
    ) -> None:
        self._grace, self._allowed, self._sandbox = grace, allowed, sandbox

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return agent_config.check(self.kind, config, which=shutil.which)

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        try:
            config = agent_config.read_command(assignment.config)
            program = self._start(assignment, config)
        except Invalid as mistake:
            return misconfigured(mistake)
        except OSError as shortage:
            return unprepared(shortage)
        return await _Attempt(assignment, config, desk).attend(program)

    async def abandon(self, lost: LostAttempt) -> None:
        """Nothing: a program dies with its worker."""

    def _start(self, assignment: Assignment, config: CommandConfig) -> Program:
        prepare_directory(assignment, self._sandbox)
        env = environment(assignment, config.env, self._allowed)
        limits = self._sandbox.with_limits(config.limits)
        spec = Spec(config.argv, env, assignment.directory, limits, self._grace)
        return start(spec, nursery=nursery_in(self._sandbox))


class _Attempt:
    def __init__(self, assignment: Assignment, config: CommandConfig, desk: Desk) -> None:
        self._assignment, self._config = assignment, config
        self._transcript = Transcript(desk, config.output_limit)
        self._counter = Counter(self._transcript)
        self._tail = Tail()

    async def attend(self, program: Program) -> Outcome:
        errors = hear_text(program.stderr, self._transcript, STDERR, self._tail)
        ending = await attend(program, self._brief(program.stdin), self._hear(program.stdout), errors)
        return self._outcome(ending)

    async def _brief(self, stdin: Pipe) -> None:
        await stdin.write(self._stdin())
        stdin.close()

    async def _hear(self, stdout: Pipe) -> None:
        stream = EventStream(self._transcript, self._counter)
        while data := await stdout.read():
            await stream.hear(data)
        await stream.end()

    def _stdin(self) -> bytes:
        match self._config.stdin:
            case Stdin.PROMPT:
                return (self._assignment.prompt or "").encode(errors="replace")
            case Stdin.JSON:
                return json.dumps(as_json(self._assignment)).encode()
            case Stdin.NONE:
                return b""

    def _outcome(self, ending: Ending) -> Outcome:
        match self._counter.verdict, ending:
            case ((Error() as said), _):
                return said.outcome
            case verdict, Exited(code) if code in self._config.success_exit_codes:
                return Succeeded(verdict.summary if isinstance(verdict, Done) else None)
            case _:
                return failure(ending, self._config.argv[0], self._tail.last_line())
