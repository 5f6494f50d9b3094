"""The executor port: what every kind of agent promises, and what it may do while it works."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from rota.model.ids import RunId, SessionId, WorkspaceId
from rota.model.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of the transcript so far."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that an executor needs to know about one attempt. `idempotency_key` is the same for every attempt."""

    workspace_id: WorkspaceId
    run_id: RunId
    session_id: SessionId
    attempt: int
    source: str
    slot: datetime | None
    missed: Mapping[str, Any] | None
    payload: Any
    config: Mapping[str, Any]
    instructions: str
    prompt: str | None
    input: Any
    transcript: Sequence[Turn]
    timeout: timedelta
    idempotency_key: str
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt whose worker was lost. `ended` says that the run has ended; otherwise another attempt follows, which
    may rather want to go on with what is there."""

    executor: str
    workspace_id: WorkspaceId
    run_id: RunId
    session_id: SessionId
    attempt: int
    config: Mapping[str, Any]
    ended: bool

    @property
    def idempotency_key(self) -> str:
        return str(self.run_id)


class Desk(Protocol):
    """What an agent may do while it works. Every call is fenced by run and attempt, and raises `Lost` once
    the attempt belongs to somebody else."""

    async def say(self, text: str) -> None:
        """Stream a piece of the agent's words into the transcript."""
        ...

    async def tool(self, name: str, data: Mapping[str, Any]) -> None:
        """Record the use of a tool."""
        ...

    async def usage(self, unit: str, amount: float) -> None:
        """Charge the grant's account."""
        ...


class Executor(Protocol):
    """Runs agents of one kind. An adapter per file stands in `executors/`."""

    kind: str

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        """Warnings for a configuration that may not work; raises `Invalid` for one that cannot."""
        ...

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        """Run one attempt to its end. Cancelling the task stops the agent and everything it started."""
        ...

    async def abandon(self, lost: LostAttempt) -> None:
        """Clean up what a lost attempt left outside this machine. Called at least once, perhaps more often, before the
        run's next attempt begins or after the run has ended."""
        ...
