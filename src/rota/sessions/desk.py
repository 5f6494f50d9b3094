"""The desk of one attempt in its worker: what it says goes to the recorder, what it does goes to the tables, fenced."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from rota.db import approvals, checkpoints
from rota.db.approvals import Approval
from rota.db.listener import Wakes, session_channel
from rota.db.pool import PASSING, Connection, Database
from rota.errors import Lost, TooLarge
from rota.model.approval import APPROVE_OR_REFUSE, Answer, Option, Question, without
from rota.model.executor import LARGEST_CHECKPOINT
from rota.model.ids import ApprovalId, new_id
from rota.model.outcome import Parked
from rota.model.redaction import NOTHING_SECRET, Redactor
from rota.model.run import Claimed
from rota.sessions import approvals as asking
from rota.trace.record import RecordingDesk

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 0.5


class AttemptDesk:
    """Implements `model.executor.Desk`."""

    def __init__(self, db: Database, wakes: Wakes, words: RecordingDesk, run: Claimed) -> None:
        self.run = run
        self._words = words
        self._redactor = NOTHING_SECRET
        self._db, self._wakes = db, wakes
        self._attempt = (run.workspace_id, run.id, run.attempt)

    @property
    def last_line(self) -> str:
        """The last line that the agent said."""
        return self._words.last_line

    async def finish(self) -> None:
        """Wait until all that was said is stored, also what was held back."""
        await self._words.end()

    def hide(self, redactor: Redactor) -> None:
        """From now on these secrets are taken out of everything the attempt writes, but its checkpoint."""
        self._redactor = redactor
        self._words.hide(redactor)

    async def say(self, text: str) -> None:
        await self._words.say(text)

    async def tool(self, name: str, data: Mapping[str, Any]) -> None:
        await self._words.tool(name, data)

    async def usage(self, unit: str, amount: float) -> None:
        await self._words.usage(unit, amount)

    async def checkpoint(self, data: bytes) -> None:
        if len(data) > LARGEST_CHECKPOINT:
            raise TooLarge(f"A checkpoint of {len(data):,} bytes is too large: {LARGEST_CHECKPOINT:,} is the most.")
        await self._persist(lambda conn: self._store(conn, bytes(data)))

    async def ask(
        self,
        question: str,
        *,
        options: Sequence[Option] = APPROVE_OR_REFUSE,
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer:
        approval = await self._ask(Question(question, options, detail, key), keeps_process=True)
        if approval.answer is None:
            approval = await self._answered(approval)
        assert approval.answer
        return approval.answer

    async def park(
        self,
        question: str,
        *,
        options: Sequence[Option] = APPROVE_OR_REFUSE,
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer | Parked:
        approval = await self._ask(Question(question, options, detail, key), keeps_process=False)
        return approval.answer or Parked(approval.id)

    async def waited(self) -> timedelta:
        """How long this attempt has waited for answers, wherever it asked."""
        async with self._db.connection() as conn:
            return await approvals.waited(conn, *self._attempt)

    async def _persist(self, write: Callable[[Connection], Awaitable[T]]) -> T:
        """Try until it is written or the lease is lost: while the database is away, the agent waits for it."""
        while True:
            try:
                async with self._db.transaction() as conn:
                    return await write(conn)
            except PASSING as failure:
                log.warning("desk.retried", extra={"run_id": self.run.id, "error": str(failure).strip()})
                await asyncio.sleep(RETRY_SECONDS)

    async def _store(self, conn: Connection, data: bytes) -> None:
        if not await checkpoints.store(conn, *self._attempt, data):
            raise Lost("This attempt belongs to another worker now.")

    async def _ask(self, question: Question, *, keeps_process: bool) -> Approval:
        await self._words.finish()  # what led to the question is read before it
        question = without(question, self._redactor) if self._redactor else question
        approval_id = ApprovalId(new_id())
        approval = await self._persist(
            lambda conn: asking.ask(
                conn, *self._attempt, question, keeps_process=keeps_process, approval_id=approval_id
            )
        )
        self._wakes.send(session_channel(self.run.session_id))
        return approval

    async def _answered(self, approval: Approval) -> Approval:
        found = await asking.wait_for_answer(self._db, self._wakes.listener, self.run.workspace_id, approval.id)
        if found is None or found.answer is None:
            await asyncio.Future()  # it expired or was withdrawn, and the run with it: this attempt is being stopped
        assert found
        return found
