"""One attempt is a pipeline: assignment → executor → outcome. Nothing here writes a status."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from prometheus_client import Histogram

from rota import logs, tracing
from rota.access import credentials
from rota.access.vault import Vault
from rota.db import approvals, checkpoints, events
from rota.db.events import Event
from rota.db.pool import PASSING, Connection, Database
from rota.errors import Broken, Lost, Refused
from rota.logs import trace_id
from rota.metrics import DURATION
from rota.model.approval import Answer
from rota.model.budget import SECONDS
from rota.model.duration import format_duration
from rota.model.executor import Assignment, Executor, Turn
from rota.model.outcome import Cancelled, ErrorClass, Failed, Outcome, Parked, Succeeded, TimedOut
from rota.model.redaction import NOTHING_SECRET, Redactor
from rota.model.run import Claimed, Source
from rota.sessions import transcript
from rota.sessions.desk import AttemptDesk
from rota.worker.clock import Clock

log = logging.getLogger(__name__)

TRANSCRIPT_EVENTS, TRANSCRIPT_BYTES = 2000, 1_000_000
LONGEST_LINE = 200
LOOK_AGAIN_SECONDS = 0.5
HANDED_ON = ("hand_back", "lost")
NO_AGENT: Mapping[str, Any] = MappingProxyType({})


class Attempt:
    """A claimed run in one place of this worker. It can be stopped from outside; the reason decides the outcome. When
    it has ended nothing that it made refers to it any more, so that its last user frees it: a busy worker makes
    thousands a second."""

    task: asyncio.Task[None]  # which carries it out
    ran = timedelta()  # running time of this try, once it has parked
    said = ""  # its last words, if it came to no good end
    _executing = False
    _hidden_in_logs: ExitStack | None = None
    _limit = timedelta()
    _looking: asyncio.Task[None] | None = None  # whether its time is really up
    _over_budget = ""
    _redactor = NOTHING_SECRET
    _seconds_left: timedelta | None = None  # of the run's budget
    _started = 0.0
    _stopped_for: str | None = None

    def __init__(
        self, run: Claimed, secret: str, executor: Executor, desk: AttemptDesk, clock: Clock, patience: timedelta
    ) -> None:
        """`patience` is how long an executor has to end, each time it is asked to."""
        self.run, self.secret = run, secret
        self._executor, self._desk, self._clock, self._patience = executor, desk, clock, patience

    @property
    def key(self) -> tuple[UUID, UUID, int]:
        return self.run.workspace_id, self.run.id, self.run.attempt

    async def count_seconds(self) -> None:
        """Know how long it may run by its budget, if that says so: less what earlier attempts took."""
        if self.run.budget and SECONDS in self.run.budget:
            before = await self._desk.spent_seconds() if self.run.attempt > 1 else timedelta()
            self._seconds_left = timedelta(seconds=float(self.run.budget[SECONDS])) - before

    def _stop_over_budget(self, told: str) -> None:
        self._over_budget = told
        self._stop("budget")

    def hide(self, secrets: Collection[str], token: str) -> None:
        """Nothing that this attempt writes shows the credentials it is given, nor its token."""
        self._redactor = Redactor(secrets, exactly=[token])
        self._desk.hide(self._redactor)
        if secrets:
            self._hidden_in_logs = ExitStack()
            self._hidden_in_logs.enter_context(logs.hiding(self._redactor.text))

    def ended(self) -> None:
        """Nothing more is told of it: until then its secrets are kept out of the log, also of why it broke."""
        if self._hidden_in_logs:
            self._hidden_in_logs.close()

    def at_work(self) -> dict[str, Any]:
        """What a heartbeat tells of it."""
        line = self._desk.last_line[:LONGEST_LINE]
        workspace_id, run_id, attempt = self.key
        return {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt, "last_line": line}

    def cancel(self) -> None:
        """Somebody asked to cancel the run."""
        self._stop("cancel")

    def hand_back(self) -> None:
        """This worker is going away; the run should go on elsewhere."""
        self._stop("hand_back")

    def drop(self) -> None:
        """The lease is lost, or about to be: nothing of this attempt may be written any more."""
        self._stop("lost")

    def _stop(self, reason: str) -> None:
        first, self._stopped_for = self._stopped_for is None, self._stopped_for or reason
        self._desk.handed_on = self._stopped_for in HANDED_ON
        if first and self._executing:
            self._ask_to_end()

    def _ask_to_end(self) -> None:
        """Again after a while: an executor, which may be anybody's, may lose a cancellation. One that ends what it
        started takes the second for haste."""
        self.task.cancel()
        self._clock.call(self, time.monotonic() + self._patience.total_seconds())

    async def prepare(self, work: Awaitable[None]) -> None:
        """Do what comes before it begins. If it is stopped meanwhile, nobody waits for it."""
        self._executing = True
        try:
            await work
        except asyncio.CancelledError:
            self._after_stop()
        finally:
            self._executing = False
            self._clock.forget(self)

    async def execute(self, assignment: Assignment) -> Outcome | None:
        """Run to the end. None hands the run back; `Lost` means that nothing may be written."""
        trace_id.set(self.run.trace_id)
        self._started, began = time.monotonic(), tracing.now()
        if self.run.budget:
            self._desk.when_over_budget(self._stop_over_budget)
        try:
            outcome = await self._outcome(assignment)
            if self._stopped_for == "lost":
                raise Lost("The lease was lost.")
            ran = await self._running_time() if self.run.budget or isinstance(outcome, Parked) else timedelta()
            if self.run.budget:
                await self._desk.ran(ran)
            if self._desk.has_spoken:
                await self._desk.finish()
            if isinstance(outcome, Parked):
                self.ran = ran + self.run.timeout - assignment.timeout
            return redacted(outcome if _is_named(outcome) else await self._named(outcome), self._redactor)
        finally:
            if self.run.budget:
                self._desk.when_over_budget(None)
            _duration(self.run.executor).observe(time.monotonic() - self._started)
            if tracing.on():
                run = self.run
                tracing.span(
                    "execute", run.trace_id, began=began, run_id=run.id, attempt=run.attempt, executor=run.executor
                )

    async def _outcome(self, assignment: Assignment) -> Outcome | None:
        if self._stopped_for:
            return self._after_stop()
        self._executing = True
        limit = assignment.timeout
        if self._seconds_left is not None:
            limit = min(limit, self._seconds_left)
        self._call_time_in(limit.total_seconds(), limit)
        try:
            return await self._executor.execute(assignment, self._desk)
        except asyncio.CancelledError:
            return self._after_stop()
        except Lost:
            raise
        except Exception as failure:  # an executor may fail in any way; that is the run's failure, not the worker's
            log.warning("executor.failed", extra={"run_id": self.run.id}, exc_info=True)
            return Failed(ErrorClass.EXECUTOR_ERROR, f"{type(failure).__name__}: {failure}")
        finally:
            self._executing = False
            self._clock.forget(self)
            if self._looking:
                self._looking.cancel()

    def _call_time_in(self, seconds: float, timeout: timedelta) -> None:
        self._limit = timeout
        self._clock.call(self, time.monotonic() + seconds)

    def time_is_up(self) -> None:
        if self._stopped_for:
            self._ask_to_end()
            return
        self._looking = asyncio.create_task(self._stop_unless_it_waited(self._limit))

    async def _stop_unless_it_waited(self, timeout: timedelta) -> None:
        """Time spent waiting for an answer is given back, wherever the agent asked: the table knows."""
        left = (timeout - await self._running_time()).total_seconds()
        if left <= 0 and timeout == self._seconds_left:
            self._stop_over_budget("It ran as long as its budget allows.")
        elif left <= 0:
            self._stop("timeout")
        elif not self._stopped_for:
            self._call_time_in(max(left, 0.01), timeout)

    async def _running_time(self) -> timedelta:
        while True:
            try:
                waited = await self._desk.waited()
            except PASSING:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            else:
                return timedelta(seconds=time.monotonic() - self._started) - waited

    def broken_by(self, failure: Exception) -> Outcome | None:
        """How it ends where something around its executor failed, which would fail again."""
        detail = f"It could not be carried out: {type(failure).__name__}: {failure}"
        return redacted(Failed(ErrorClass.EXECUTOR_ERROR, detail, retryable=False), self._redactor)

    def _after_stop(self) -> Outcome | None:
        if self._stopped_for is None:
            raise asyncio.CancelledError  # not ours: the worker itself is being torn down
        while self._executing and self.task.uncancel():
            pass  # they have done their work; what follows must not be interrupted
        match self._stopped_for:
            case "cancel":
                return Cancelled()
            case "budget":
                return Failed(ErrorClass.BUDGET_EXCEEDED, self._over_budget, retryable=False)
            case "timeout":
                return TimedOut(f"It ran longer than {format_duration(self.run.timeout)}, its timeout.")
            case _:
                return None

    async def _named(self, outcome: Outcome | None) -> Outcome | None:
        match outcome:
            case Succeeded(None | ""):
                return Succeeded(await self._desk.last_words())
            case Failed() | TimedOut() | Cancelled():
                self.said = self._redactor.text(await self._desk.last_words())
                return outcome
            case Parked() if not getattr(self._executor, "resumes", False):  # a third party may not know of it
                detail = f"The kind {self._executor.kind!r} cannot resume, and so cannot be parked."
                return Failed(ErrorClass.EXECUTOR_ERROR, detail, retryable=False)
            case _:
                return outcome


def _is_named(outcome: Outcome | None) -> bool:
    """A success that says what it came to, as most do."""
    return type(outcome) is Succeeded and bool(outcome.summary)


def redacted(outcome: Outcome | None, redactor: Redactor) -> Outcome | None:
    if not redactor:
        return outcome
    match outcome:
        case Succeeded(summary):
            return Succeeded(redactor.text(summary)) if summary else outcome
        case Failed(detail=detail) | TimedOut(detail):
            return replace(outcome, detail=redactor.text(detail))
        case _:
            return outcome


def names_credentials(spec: Mapping[str, Any]) -> bool:
    return bool(spec.get("credentials") or spec.get("agent", NO_AGENT).get("credentials"))


async def granted(db: Database, vault: Vault | None, run: Claimed) -> Mapping[str, str] | Failed:
    """The credentials of this attempt, or why it cannot have them, which no further attempt would change."""
    if vault is None:
        return Failed(ErrorClass.EXECUTOR_ERROR, "This worker has no vault to open credentials with.", retryable=False)
    try:
        async with db.connection() as conn:
            return await credentials.resolve(conn, vault, run.workspace_id, run.id, run.attempt)
    except (Refused, Broken) as refused:
        reason = ErrorClass.GRANT_INVALID if refused.code == "grant_invalid" else ErrorClass.EXECUTOR_ERROR
        return Failed(reason, refused.message, retryable=False)


@cache
def _duration(executor: str) -> Histogram:
    return DURATION.labels(executor=executor)


class LeftOff(NamedTuple):
    """Where an earlier attempt, or an earlier run of the session, left off."""

    checkpoint: bytes | None = None
    answer: Answer | None = None
    ran: timedelta = timedelta()
    transcript: Sequence[Turn] = ()


NOWHERE = LeftOff()


class Environment(Mapping[str, str]):
    """What an agent's process is given, put together when somebody reads it. `hide` hears of its secrets first: of the
    token, which nobody knows before, when it is read; of credentials at once, which may be known elsewhere too."""

    def __init__(
        self,
        run: Claimed,
        url: str,
        secret: str,
        given: Mapping[str, str],
        hide: Callable[[Collection[str], str], None],
    ) -> None:
        self._run, self._url, self._secret, self._given, self._hide = run, url, secret, given, hide
        self._read: Mapping[str, str] | None = None
        if given:
            self._all()

    def _all(self) -> Mapping[str, str]:
        if self._read is None:
            run, token = self._run, token_of(self._run, self._secret)
            self._hide(self._given.values(), token)
            self._read = {
                **self._given,
                "TRACEPARENT": f"00-{run.trace_id}-{run.id.hex[16:]}-01",
                "ROTA_RUN_ID": str(run.id),
                "ROTA_SESSION_ID": str(run.session_id),
                "ROTA_WORKSPACE": str(run.workspace_id),
                "ROTA_URL": self._url,
                "ROTA_TOKEN": token,
            }
        return self._read

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def assigned(
    run: Claimed, spec: Mapping[str, Any], left_off: LeftOff, environment: Environment, home: Path
) -> Assignment:
    agent = spec.get("agent", NO_AGENT)
    return Assignment(
        workspace_id=run.workspace_id,
        run_id=run.id,
        session_id=run.session_id,
        attempt=run.attempt,
        source=run.source,
        slot=run.slot,
        missed=run.missed,
        payload=run.payload,
        config=agent.get("config", {}),
        instructions=agent.get("instructions", ""),
        prompt=run.prompt if run.prompt is not None else spec.get("prompt"),
        input=run.input if run.input is not None else spec.get("input"),
        transcript=list(left_off.transcript),
        timeout=run.timeout - left_off.ran,
        idempotency_key=run.id.__str__,
        directory=partial(directory, home, run.workspace_id, run.session_id),
        environment=environment,
        automation_id=run.automation_id,
        checkpoint=left_off.checkpoint,
        answer=left_off.answer,
    )


def token_of(run: Claimed, secret: str) -> str:
    """The token is for this attempt only and dies with it."""
    return f"rota_run_{run.workspace_id.hex}_{run.id.hex}_{run.attempt}_{secret}"


async def left_off(db: Database, run: Claimed) -> LeftOff:
    """What was said and left in the session before."""
    # Of which thousands may share a session.
    new_task = run.source == Source.TASK and run.attempt == 1 and not run.retry_of
    if run.first_in_session or new_task:
        return NOWHERE
    async with db.connection() as conn:
        told: list[Event] = []
        if run.source != Source.TASK:
            where = (run.workspace_id, run.session_id, run.id)
            told = await events.earlier(conn, *where, limit=TRANSCRIPT_EVENTS, size=TRANSCRIPT_BYTES)
        return (await _left_off(conn, run))._replace(transcript=transcript.turns(told))


async def _left_off(conn: Connection, run: Claimed) -> LeftOff:
    thread = run.id if run.source == Source.TASK else run.session_id
    found = await checkpoints.find(conn, run.workspace_id, run.session_id, thread)
    data, stored_at = found or (None, None)
    if run.attempt == 1:
        return LeftOff(data)
    answer = await approvals.resumed_with(conn, run.workspace_id, run.id, since=stored_at)
    return LeftOff(data, answer, await approvals.ran_before(conn, run.workspace_id, run.id, run.attempt))


def directory(home: Path, workspace_id: UUID, session_id: UUID) -> Path:
    """Where the agents of a session keep their files."""
    return home / "sessions" / str(workspace_id) / str(session_id)
