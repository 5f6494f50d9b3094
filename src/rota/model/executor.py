"""The executor port: what every kind of agent promises, and what it may do while it works."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from rota.model.approval import APPROVE_OR_REFUSE, Answer, Option
from rota.model.ids import AutomationId, RunId, SessionId, WorkspaceId
from rota.model.memory import Remembered
from rota.model.outcome import Outcome, Parked
from rota.model.task import TaskForm

LARGEST_CHECKPOINT = 2_000_000
STDERR = "stderr"  # the voice of standard error, whose text is never the summary of a run


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of the transcript so far."""

    speaker: str
    text: str


T = TypeVar("T")


class Lazily(Generic[T]):
    """A field that may also be given as a function, which is called when somebody reads it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, assignment: object | None, owner: type) -> T:
        if assignment is None:
            raise AttributeError  # by which a dataclass knows that there is no default
        given = getattr(assignment, self._name)
        return cast("T", given() if callable(given) else given)

    def __set__(self, assignment: object, given: T | Callable[[], T]) -> None:
        assignment.__dict__[self._name] = given


@dataclass  # not frozen: a busy worker makes thousands a second, and frozen ones take twice as long
class Assignment:
    """All that an executor needs to know about one attempt. `idempotency_key` is the same for every attempt.

    `timeout` is the running time that is left. `checkpoint` is the session's last (a task has its own), and `answer`
    what was answered to this run since: together they are where a kind that can resume goes on.
    """

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
    idempotency_key: Lazily[str] = Lazily()
    directory: Lazily[Path] = Lazily()
    environment: Mapping[str, str] = field(default_factory=dict)
    automation_id: AutomationId | None = None
    role: str | None = None
    checkpoint: bytes | None = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt whose worker was lost, or has handed it back. `ended` says that the run has ended; otherwise another
    attempt follows, which may rather want to go on with what is there."""

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

    handed_on: bool  # a cancelled attempt's run goes on in another: an agent that outlives the worker is left to it

    async def say(self, text: str, *, voice: str = "") -> None:
        """Stream a piece of the agent's words into the transcript. Streams that speak at the same time have a `voice`
        each: a secret in pieces of one is known although another speaks in between. Text of the voice `stderr` is kept,
        but is never the summary of the run."""
        ...

    async def tool(self, name: str, data: Mapping[str, Any]) -> None:
        """Record the use of a tool."""
        ...

    async def usage(self, unit: str, amount: float) -> None:
        """Charge the grant's account."""
        ...

    async def stored(self) -> None:
        """Wait until all that was said, recorded and charged so far is stored."""
        ...

    async def checkpoint(self, data: bytes) -> None:
        """Keep this, in place of what was kept before, for the attempt that goes on from here."""
        ...

    async def ask(
        self,
        question: str,
        *,
        options: Sequence[Option] = APPROVE_OR_REFUSE,
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer:
        """Ask a person and wait, keeping process, place and lease; the time does not count. Asked again with the
        same key, also by a later attempt of the run, it is the same question. One that expires ends the run."""
        ...

    async def park(
        self,
        question: str,
        *,
        options: Sequence[Option] = APPROVE_OR_REFUSE,
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer | Parked:
        """Ask a person without waiting. What is answered already, or beforehand, has its answer at once; otherwise
        the executor returns the `Parked` as its outcome, and is executed again with the answer."""
        ...

    async def message(self, body: Any, *, to: str = "all", key: str | None = None) -> Mapping[str, Any]:
        """Send a message from this agent's role to another, to the person (`user`), or to all."""
        ...

    async def inbox(self, *, after: int = 0, wait: timedelta | None = None) -> Sequence[Mapping[str, Any]]:
        """Messages to this role that were not acknowledged, oldest first; waits so long for the first."""
        ...

    async def ack(self, ids: Sequence[int]) -> None:
        """Take messages off the inbox for good."""
        ...

    async def task(self, tasks: Sequence[TaskForm]) -> Sequence[Mapping[str, Any]]:
        """Add tasks to the session, all or none."""
        ...

    async def event(self, name: str, data: Any = None, *, key: str | None = None) -> Mapping[str, Any]:
        """Post a named event, which fires the triggers that wait for it; `runs` are what it started. One that would
        start again what led to this run is refused. Posted again with the same key, it is the same event."""
        ...

    async def artifact(self, name: str, content: bytes | Path, *, media_type: str | None = None) -> Mapping[str, Any]:
        """Keep a content."""
        ...

    async def link(self, uri: str, *, name: str | None = None) -> Mapping[str, Any]:
        """Tell of something outside: a pull request, an e-mail."""
        ...

    async def remember(self, given: Remembered) -> Mapping[str, Any]:
        """Keep a value for later runs of the automation."""
        ...

    async def recall(self, key: str) -> Mapping[str, Any] | None:
        """What is remembered under a key."""
        ...

    async def forget(self, key: str) -> None:
        """Forget what is under a key."""
        ...


class Executor(Protocol):
    """Runs agents of one kind. An adapter per file stands in `executors/`."""

    kind: str
    resumes: bool  # whether it may return `Parked` and go on from a checkpoint

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        """Warnings for a configuration that may not work; raises `Invalid` for one that cannot."""
        ...

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        """Run one attempt to its end. Cancelling the task stops the agent and everything it started, unless the agent
        outlives the worker and `desk.handed_on`: then the next attempt goes on with it, or `abandon` cleans up."""
        ...

    async def abandon(self, lost: LostAttempt) -> None:
        """Clean up what a lost attempt left outside this machine. Called at least once, perhaps more often, before the
        run's next attempt begins or after the run has ended."""
        ...
