"""Runs without a slot: a webhook, an event or another automation's end fired their trigger."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from rota.db import runs, triggers
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.event import event_name, payload
from rota.model.firing import Due, Flight, Placement, effective_overlap, jitter, place
from rota.model.ids import RunId, TriggerId, WorkspaceId, new_id
from rota.model.run import Source, Start
from rota.runs import cancelling, starting


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that fires one trigger once: `key` is its name, and a repeat with it is the same run."""

    workspace_id: UUID
    trigger_id: UUID
    source: Source
    key: str
    payload: Any


# The run of each trigger and key, new or old; disabled triggers have none.
Fired: TypeAlias = Mapping[tuple[UUID, str], RunId]


async def publish(
    conn: Connection, workspace_id: WorkspaceId, event: str, data: Any, key: str | None, *, run_id: RunId | None = None
) -> Fired:
    """Fire every trigger of the workspace that waits for the event; `run_id` is the run whose agent posted it."""
    found = await triggers.of_event(conn, workspace_id, event_name(event))
    key, told = key or str(new_id()), payload(event, data, run_id)
    return await fire(conn, [Occurrence(*trigger, Source.EVENT, key, told) for trigger in found])


async def fire(conn: Connection, occurrences: Sequence[Occurrence]) -> Fired:
    """Start the runs, each once for its trigger and key. A webhook's key with another body is refused."""
    dues = await triggers.lock_inbound(conn, {(each.workspace_id, each.trigger_id) for each in occurrences})
    known = await runs.by_keys(conn, [(each.workspace_id, each.trigger_id, each.key) for each in occurrences])
    if known:
        await _refuse_reused(conn, occurrences, known)
    starts, replacing = _decide(dues, [each for each in occurrences if (each.trigger_id, each.key) not in known])
    await starting.start(conn, starts)
    if replacing:
        started = [each for each in starts if not each.skip_reason]  # its budget may have kept one from it
        await cancelling.replace_earlier(conn, started, replacing)
    fired = Counter((each.workspace_id, each.trigger_id) for each in starts if not each.skip_reason and each.trigger_id)
    if fired:
        await triggers.count_fires(conn, [(*trigger, count) for trigger, count in fired.items()])
    new = {
        (each.trigger_id, each.idempotency_key): each.id for each in starts if each.trigger_id and each.idempotency_key
    }
    return known | new


async def _refuse_reused(conn: Connection, occurrences: Sequence[Occurrence], known: Fired) -> None:
    """Its sender would be told of a run that knows nothing of what it sent, and what it sent would be lost."""
    for each in occurrences:
        run_id = known.get((each.trigger_id, each.key)) if each.source == Source.WEBHOOK else None
        if run_id and not await runs.has_payload(conn, each.workspace_id, run_id, each.payload):
            told = "This webhook-id came before with another body; a new message needs one of its own."
            raise Invalid(told, code="key_reused", field="webhook-id", run_id=str(run_id))


def _decide(dues: dict[UUID, Due], occurrences: Sequence[Occurrence]) -> tuple[list[Start], set[RunId]]:
    flights: dict[UUID, Flight] = {}
    fired: Counter[UUID] = Counter()
    starts: list[Start] = []
    replacing: set[RunId] = set()
    for each in occurrences:
        due = dues.get(each.trigger_id)
        if due is None or not _open(due, fired[each.trigger_id]):
            continue
        policy = due.policy
        overlap = effective_overlap(due.timing.kind, due.overlap, policy.overlap)
        placed, flights[policy.automation_id] = place(policy, overlap, flights.get(policy.automation_id, due.flight))
        starts.append(_start(due, each, placed))
        fired[each.trigger_id] += placed.skip_reason is None
        if placed.replaces:
            replacing.add(starts[-1].id)
    return starts, replacing


def _start(due: Due, occurrence: Occurrence, placed: Placement) -> Start:
    delay = jitter(due.trigger_id, due.slot, due.jitter) if due.jitter else timedelta()
    return due.policy.start(
        occurrence.source,
        placed,
        trigger_id=TriggerId(occurrence.trigger_id),
        idempotency_key=occurrence.key,
        payload=occurrence.payload,
        ready_at=due.slot + delay,
    )


def _open(due: Due, fired: int) -> bool:
    """Whether the trigger's own limits let it fire once more. `due.slot` is the database's present."""
    timing, now = due.timing, due.slot
    if (timing.starts_at and now < timing.starts_at) or (timing.ends_at and now > timing.ends_at):
        return False
    return timing.max_fires is None or timing.fires + fired < timing.max_fires
