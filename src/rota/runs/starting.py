"""The one door through which every run comes: slot, run now, webhook, event, after, task, chat, retry."""

from collections.abc import Sequence
from uuid import UUID

from rota.db import events, run_status, sessions
from rota.db.events import NewEvent
from rota.db.pool import Connection
from rota.model.budget import ASK
from rota.model.run import Source, Start
from rota.runs import budgeting, ending


async def start(conn: Connection, starts: Sequence[Start]) -> set[UUID]:
    """Write runs, ready or behind their lane or skipped, and return the ids of those that were written."""
    waiting = {(each.workspace_id, each.lane) for each in starts if each.waits_for_lane and each.lane}
    if waiting:
        await run_status.hold_lanes(conn, waiting)
    if any(each.budget == ASK for each in starts):
        await budgeting.reserve(conn, starts)
    written = await run_status.start(conn, starts)
    if len(written) < len(starts):
        await budgeting.release(conn, [each for each in starts if each.id not in written])
    # A fresh session gets its first event with its row; one that goes on numbers it under its lock.
    going_on = [each for each in starts if _goes_on(each) and each.id in written]
    await events.append(conn, [_queued(each) for each in going_on])
    await _make_active(conn, [each for each in going_on if each.automation_id and not each.skip_reason])
    if waiting:
        await run_status.promote(conn, waiting)
    skipped = [each for each in starts if each.skip_reason and each.id in written]
    if skipped:
        await ending.tell_of_skips(conn, skipped)
    return written


def _goes_on(start: Start) -> bool:
    return start.session_id is not None and not start.fresh_session


async def _make_active(conn: Connection, starts: Sequence[Start]) -> None:
    """An automation goes on in its one session also when that was ended by hand. It is locked by its event."""
    where = {(each.workspace_id, each.session_id) for each in starts if each.session_id}
    again = await sessions.go_on(conn, where) if where else []
    await events.append(conn, [NewEvent(*each, "session", {"status": "active"}) for each in again])


def _queued(start: Start) -> NewEvent:
    assert start.session_id
    data = {
        "status": "skipped" if start.skip_reason else "queued", "source": start.source, "slot": start.slot,
        "prompt": start.prompt, "skip_reason": start.skip_reason,
        "task": start.payload["task"]["key"] if start.source == Source.TASK else None,
    }  # fmt: skip
    given = {name: value for name, value in data.items() if value is not None}
    return NewEvent(start.workspace_id, start.session_id, "run", given, start.id)
