"""An executor whose agents are coroutines of the test."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome

Script = Callable[[Assignment, Desk], Awaitable[Outcome]]


class Scripted:
    """It stands in for `command`, can resume, and keeps what it was given."""

    kind = "command"
    resumes = True

    def __init__(self, script: Script) -> None:
        self.script = script
        self.assignments: list[Assignment] = []

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        self.assignments.append(assignment)
        return await self.script(assignment, desk)

    async def abandon(self, lost: LostAttempt) -> None:
        pass
