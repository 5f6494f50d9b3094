"""One attempt is a pipeline: assignment → executor → outcome. Nothing here writes a status."""

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from rota.db import events
from rota.db.events import Event
from rota.db.pool import Database
from rota.errors import Lost
from rota.logs import trace_id
from rota.metrics import DURATION
from rota.model.duration import format_duration
from rota.model.executor import Assignment, Executor
from rota.model.outcome import Cancelled, ErrorClass, Failed, Outcome, Succeeded, TimedOut
from rota.model.run import Claimed
from rota.sessions import transcript
from rota.trace.record import RecordingDesk

log = logging.getLogger(__name__)

TRANSCRIPT_EVENTS = 2000
LONGEST_LINE = 200


class Attempt:
    """A claimed run in one place of this worker. It can be stopped from outside; the reason decides the outcome."""

    def __init__(self, run: Claimed, executor: Executor, desk: RecordingDesk) -> None:
        self.run = run
        self.key = (run.workspace_id, run.id, run.attempt)
        self._executor = executor
        self._desk = desk
        self._executing: asyncio.Task[object] | None = None
        self._stopped_for: str | None = None

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
        if first and self._executing:
            self._executing.cancel()

    async def execute(self, assignment: Assignment) -> Outcome | None:
        """Run to the end. None hands the run back; `Lost` means that nothing may be written."""
        trace_id.set(self.run.trace_id)
        started = time.monotonic()
        try:
            outcome = await self._outcome(assignment)
            if self._stopped_for == "lost":
                raise Lost("The lease was lost.")
            await self._desk.finish()
            return self._named(outcome)
        finally:
            DURATION.labels(executor=self.run.executor).observe(time.monotonic() - started)

    async def _outcome(self, assignment: Assignment) -> Outcome | None:
        if self._stopped_for:
            return self._after_stop()
        self._executing = asyncio.current_task()
        try:
            async with asyncio.timeout(self.run.timeout.total_seconds()):
                return await self._executor.execute(assignment, self._desk)
        except TimeoutError:
            return TimedOut(f"It ran longer than {format_duration(self.run.timeout)}, its timeout.")
        except asyncio.CancelledError:
            return self._after_stop()
        except Lost:
            raise
        except Exception as failure:  # an executor may fail in any way; that is the run's failure, not the worker's
            log.warning("executor.failed", extra={"run_id": self.run.id}, exc_info=True)
            return Failed(ErrorClass.EXECUTOR_ERROR, f"{type(failure).__name__}: {failure}")
        finally:
            self._executing = None

    def _after_stop(self) -> Outcome | None:
        if self._stopped_for is None:
            raise asyncio.CancelledError  # not ours: the worker itself is being torn down
        task = asyncio.current_task()
        if self._executing and task:
            task.uncancel()  # it has done its work; what follows must not be interrupted
        return Cancelled() if self._stopped_for == "cancel" else None

    def _named(self, outcome: Outcome | None) -> Outcome | None:
        if isinstance(outcome, Succeeded) and not outcome.summary:
            return Succeeded(self._desk.last_line)
        return outcome


async def assign(db: Database, run: Claimed, *, secret: str, url: str, home: Path) -> Assignment:
    """Gather what the executor needs. The token is for this attempt only and dies with it."""
    token = f"rota_run_{run.workspace_id.hex}_{run.id.hex}_{run.attempt}_{secret}"
    told: list[Event] = []
    if not run.first_in_session:
        async with db.connection() as conn:
            told = await events.tail(conn, run.workspace_id, run.session_id, limit=TRANSCRIPT_EVENTS)
    earlier = [event for event in told if event.run_id != run.id]
    return Assignment(
        workspace_id=run.workspace_id,
        run_id=run.id,
        session_id=run.session_id,
        attempt=run.attempt,
        source=run.source,
        slot=run.slot,
        missed=run.missed,
        payload=run.payload,
        config=run.spec.get("agent", {}).get("config", {}),
        instructions=run.spec.get("agent", {}).get("instructions", ""),
        prompt=run.prompt if run.prompt is not None else run.spec.get("prompt"),
        input=run.input if run.input is not None else run.spec.get("input"),
        transcript=transcript.turns(earlier),
        timeout=run.timeout,
        idempotency_key=str(run.id),
        directory=directory(home, run.workspace_id, run.session_id),
        environment=_environment(run, url, token),
    )


def directory(home: Path, workspace_id: UUID, session_id: UUID) -> Path:
    """Where the agents of a session keep their files."""
    return home / "sessions" / str(workspace_id) / str(session_id)


def _environment(run: Claimed, url: str, token: str) -> Mapping[str, str]:
    return {
        "TRACEPARENT": f"00-{run.trace_id}-{run.id.hex[16:]}-01",
        "ROTA_RUN_ID": str(run.id),
        "ROTA_SESSION_ID": str(run.session_id),
        "ROTA_WORKSPACE": str(run.workspace_id),
        "ROTA_URL": url,
        "ROTA_TOKEN": token,
    }
