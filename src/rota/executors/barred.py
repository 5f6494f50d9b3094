"""In place of a kind that runs programs on this machine, where the operator does not want that: it says so."""

from collections.abc import Mapping, Sequence
from typing import Any

from rota.model.agent_config import BARRED
from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import ErrorClass, Failed, Outcome


class BarredExecutor:
    resumes = False

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG002 — whatever it says
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:  # noqa: ARG002
        return Failed(ErrorClass.EXECUTOR_ERROR, BARRED.format(kind=self.kind), retryable=False)

    async def abandon(self, lost: LostAttempt) -> None:
        """Nothing was ever begun."""
