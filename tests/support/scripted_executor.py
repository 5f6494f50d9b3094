"""An executor whose agents are coroutines of the test."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome

Script = Callable[[Assignment, Desk], Awaitable[Outcome]]
Abandoning = Callable[[LostAttempt], Awaitable[None]]


class Scripted:
    """It stands in for `command`, can resume, and keeps what it was given."""

    kind = "command"
    resumes = True

    def __init__(self, script: Script, abandon: Abandoning | None = None) -> None:
        """`abandon` cleans up after a lost attempt; nothing is left to clean up without it."""
        self.script, self.clean_up = script, abandon
        self.assignments: list[Assignment] = []

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        self.assignments.append(assignment)
        return await self.script(assignment, desk)

    async def abandon(self, lost: LostAttempt) -> None:
        if self.clean_up:
            await self.clean_up(lost)
