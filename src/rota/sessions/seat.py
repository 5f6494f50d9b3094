"""What an agent at work may do, in its worker or over HTTP. Every write holds the attempt first: a zombie's is lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from rota.db import attempts, budgets, checkpoints, events, held_words, triggers, usage
from rota.db import memory as kept
from rota.db.events import NewEvent
from rota.db.listener import CANCELS
from rota.db.pool import Connection
from rota.db.usage import Charge
from rota.errors import Conflict, Forbidden, Invalid, Lost, TooLarge
from rota.model.budget import MOST_UNITS, SECONDS, UNITS
from rota.model.caller import Level
from rota.model.event import event_name
from rota.model.executor import LARGEST_CHECKPOINT
from rota.model.ids import AutomationId, RunId, SessionId, WorkspaceId, new_id
from rota.model.memory import Remembered
from rota.model.message import NewMessage
from rota.model.redaction import NOTHING_SECRET, Redactor, Stream
from rota.model.task import TaskForm
from rota.runs import triggering
from rota.sessions import memory, messages, tasks
from rota.sessions.artifacts import Author
from rota.trace.record import LONGEST_TEXT

LONGEST_KEY = 200


@dataclass(frozen=True, slots=True)
class Seat:
    """One attempt, in its role of its session."""

    workspace_id: WorkspaceId
    session_id: SessionId
    run_id: RunId
    attempt: int
    automation_id: AutomationId | None
    role: str
    source: str
    budgeted: bool

    @property
    def where(self) -> tuple[WorkspaceId, SessionId]:
        return self.workspace_id, self.session_id

    @property
    def author(self) -> Author:
        return Author(self.workspace_id, self.session_id, self.run_id, self.attempt)

    def message(self, body: Any, to: str, key: str | None) -> NewMessage:
        _check_key(key)
        return NewMessage(self.workspace_id, self.session_id, body, to, self.role, self.run_id, self.attempt, key)

    def remembers(self) -> AutomationId:
        if self.automation_id is None:
            raise Conflict("This run belongs to no automation, so nothing would recall it.", code="no_automation")
        return self.automation_id


async def of_attempt(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> Seat:
    found = await attempts.seat(conn, workspace_id, run_id)
    if not found:
        raise _lost()
    return Seat(
        workspace_id, found["session_id"], run_id, attempt, found["automation_id"], found["role"], found["source"],
        found["budgeted"],
    )  # fmt: skip


async def hold(conn: Connection, seat: Seat, *, event: str | None = None, alone: bool = False) -> None:
    """Nobody takes the run from this attempt before the transaction ends. `alone` keeps out its other requests too. Who
    is about to post an `event` locks the automations that wait for it first: they come before runs in the order of
    locks."""
    if event is not None:
        await triggers.lock_awaiting(conn, seat.workspace_id, event)
    if not await events.hold(conn, [(seat.workspace_id, seat.run_id, seat.attempt)], alone=alone):
        raise _lost()


async def say(conn: Connection, seat: Seat, text: str, redactor: Redactor = NOTHING_SECRET) -> None:
    """Without the attempt's secrets, also where this request goes on with one that the last has begun. More than a
    letter or two of a secret's beginning wait for the next words."""
    if redactor:
        where = (seat.workspace_id, seat.run_id, seat.attempt)
        stream = Stream(redactor, await held_words.find(conn, *where))
        text = stream.feed(text) + stream.pause()
        await held_words.hold(conn, *where, stream.held)
    pieces = (text[at : at + LONGEST_TEXT] for at in range(0, len(text), LONGEST_TEXT))
    await events.append(conn, [_event(seat, "output", {"text": piece}) for piece in pieces])


async def tool(conn: Connection, seat: Seat, name: str, data: Mapping[str, Any]) -> None:
    await events.append(conn, [_event(seat, "tool", {**data, "name": name})])


async def spend(conn: Connection, seat: Seat, unit: str, amount: float) -> str | None:
    """Charge the account. The report that reaches a cap stops the run; a later one is not recorded, and the answer is
    why. A run with a budget must be held `alone`."""
    if unit == SECONDS:
        return None  # running time is measured, not reported
    charge = Charge(seat.workspace_id, seat.run_id, seat.attempt, unit, Decimal(str(amount)))
    if unit not in UNITS and await usage.others(conn, charge) >= MOST_UNITS:
        raise Invalid(
            f"This attempt has reported {MOST_UNITS} units. It may add to those, and report {', '.join(UNITS)}.",
            code="too_many_units",
            field="unit",
        )
    if not seat.budgeted:
        await usage.add(conn, charge)
        return None
    accepted, exceeded = await budgets.judge_charges(conn, [charge], totals=False)
    for each in accepted:
        await usage.add(conn, each)
    conn.wake(CANCELS, list(exceeded))
    return None if accepted else exceeded[seat.run_id].told()


async def ack(conn: Connection, seat: Seat, ids: Sequence[int]) -> None:
    await messages.ack(conn, seat.workspace_id, seat.session_id, seat.role, ids)


async def add_tasks(conn: Connection, seat: Seat, forms: Sequence[TaskForm], *, batch: UUID | None = None) -> UUID:
    """The id of the batch."""
    return await tasks.add(conn, *seat.where, forms, attempt=(seat.run_id, seat.attempt), batch=batch)


async def count_refused_tasks(conn: Connection, seat: Seat, refusal: Conflict) -> None:
    """Keep in the run's history that tasks were refused: a count for each limit, and one event for the first of them.
    In a transaction of its own, since the refusal rolled back the one that would have added them."""
    await hold(conn, seat, alone=True)
    where = (seat.workspace_id, seat.run_id)
    if await attempts.count_refused_tasks(conn, *where, code=refusal.code, count=refusal.facts["refused"]):
        told = {"tasks_refused": refusal.code, "reason": refusal.message}
        await events.append(conn, [_event(seat, "run", told)])


async def event(conn: Connection, seat: Seat, name: str, data: Any, key: str | None) -> list[RunId]:
    """Post an event in the name of who granted the run; the runs it starts. A key is the run's own. One that would
    start what led to this run is refused: agents that call each other in a circle would never stop."""
    if await attempts.granted_level(conn, seat.workspace_id, seat.run_id) not in {Level.MEMBER, Level.ADMIN}:
        raise Forbidden(
            "Who granted this run is no member here any more; to post an event they must be a member.",
            needs=Level.MEMBER,
        )
    if again := await triggers.event_circle(conn, seat.workspace_id, seat.run_id, event_name(name)):
        raise Invalid(
            f"{', '.join(again)} led to this run and would be started again by {name!r}, in a circle.",
            code="event_cycle",
            field="event",
        )
    _check_key(key)
    own = f"{seat.run_id}/{key or new_id().hex}"
    return list((await triggering.publish(conn, seat.workspace_id, name, data, own, run_id=seat.run_id)).values())


async def remember(conn: Connection, seat: Seat, given: Remembered) -> dict[str, Any]:
    return await memory.remember(conn, seat.workspace_id, seat.remembers(), given, run_id=seat.run_id)


async def recall(conn: Connection, seat: Seat, key: str) -> dict[str, Any] | None:
    return await memory.recall(conn, seat.workspace_id, seat.remembers(), key)


async def recall_all(conn: Connection, seat: Seat, *, after: str, limit: int) -> list[dict[str, Any]]:
    return await kept.page(conn, seat.workspace_id, seat.remembers(), after=after, limit=limit)


async def forget(conn: Connection, seat: Seat, key: str) -> None:
    await memory.forget(conn, seat.workspace_id, seat.remembers(), key)


async def checkpoint(conn: Connection, seat: Seat, data: bytes) -> None:
    if len(data) > LARGEST_CHECKPOINT:
        raise TooLarge(
            f"A checkpoint has at most {LARGEST_CHECKPOINT:,} bytes.",
            code="checkpoint_too_large",
            limit=LARGEST_CHECKPOINT,
        )
    if not await checkpoints.store(conn, seat.workspace_id, seat.run_id, seat.attempt, data):
        raise _lost()


async def last_checkpoint(conn: Connection, seat: Seat) -> bytes | None:
    thread = seat.run_id if seat.source == "task" else seat.session_id
    found = await checkpoints.find(conn, seat.workspace_id, seat.session_id, thread)
    return found[0] if found else None


def _check_key(key: str | None) -> None:
    if key is not None and not 1 <= len(key) <= LONGEST_KEY:
        raise Invalid(f"A key has 1 to {LONGEST_KEY} characters.", code="invalid_key", field="key")


def _event(seat: Seat, kind: str, data: Mapping[str, Any]) -> NewEvent:
    return NewEvent(seat.workspace_id, seat.session_id, kind, data, seat.run_id, seat.attempt)


def _lost() -> Lost:
    return Lost("This attempt belongs to another worker now.")
