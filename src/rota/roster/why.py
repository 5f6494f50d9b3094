"""Why didn't it run? The ledger's answer for one minute of an automation."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

from rota.db import agents, pauses, runs, triggers
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.describe import describe
from rota.model.ids import AutomationId, WorkspaceId, id_at
from rota.model.run import SkipReason
from rota.model.schedule import Schedule, read_schedule
from rota.roster.automations import now_of
from rota.roster.triggers import LIMITS, TIMED, timing

MINUTE = timedelta(minutes=1)
LOOKED_AT, REVISIONS = 200, 100


class Answer(NamedTuple):
    """In words; with the run that stands for the minute, if there is one, and when it was due next."""

    code: str
    text: str
    run: Mapping[str, Any] | None = None
    next_slot: datetime | None = None


async def why(
    conn: Connection, workspace_id: WorkspaceId, automation: Mapping[str, Any], minute: datetime, zone: str
) -> Answer:
    automation_id = AutomationId(automation["id"])
    ledger = await runs.slots_from(conn, workspace_id, automation_id, since=id_at(minute - MINUTE), limit=LOOKED_AT)
    told = await _with_pause(conn, workspace_id, recorded(ledger, minute))
    if told and told.code != "missed":
        return told
    now = await now_of(conn)
    schedules = await _schedules_then(conn, workspace_id, automation_id, minute, zone)
    # Of a stretch of missed slots, not every minute is one.
    if told and (not schedules or _due_within(schedules, minute)):
        return told
    answer = unrecorded(automation, schedules, minute, now)
    if answer.code == "off" and (paused := await _pause_at(conn, workspace_id, answer.next_slot)):
        first = await runs.last_slot(conn, workspace_id, automation_id, until=minute)
        skipped = first if first and first["skip_reason"] == SkipReason.PAUSED else None
        return Answer("workspace_paused", f"{paused} Later slots of a pause are not listed.", skipped, answer.next_slot)
    if answer.code == "off":
        last = await runs.last_slot(conn, workspace_id, automation_id, until=minute)
        if last and last["skip_reason"] == SkipReason.AGENT_PAUSED:
            text = "Its agent was paused. The first slot of the pause was skipped; later ones are not listed."
            return Answer("agent_paused", text, last, answer.next_slot)
    return answer


async def _with_pause(conn: Connection, workspace_id: WorkspaceId, answer: Answer | None) -> Answer | None:
    """The answer for a skipped slot, with who paused the workspace then and why."""
    if answer and answer.run and answer.run["skip_reason"] == SkipReason.PAUSED:
        paused = await _pause_at(conn, workspace_id, answer.run["slot"])
        return answer._replace(text=f"{answer.text} {paused}") if paused else answer
    return answer


async def _pause_at(conn: Connection, workspace_id: WorkspaceId, at: datetime | None) -> str | None:
    pause = await pauses.find_at(conn, workspace_id, at) if at else None
    return f"The workspace was paused by {pause['paused_by']}: {pause['reason'].rstrip('.')}." if pause else None


def recorded(ledger: Sequence[Mapping[str, Any]], minute: datetime) -> Answer | None:
    """What the ledger says about this minute itself, or about a stretch of missed slots that holds it."""
    for run in ledger:
        if minute <= run["slot"] < minute + MINUTE:
            code = "skipped" if run["status"] == "skipped" else "ran"
            return Answer(code, "This slot was skipped." if code == "skipped" else "It did run for this slot.", run)
        missed = run["missed"]
        if missed and datetime.fromisoformat(missed["since"]) <= minute < run["slot"]:
            made_up = run["status"] != "skipped"
            text = "Nothing was there to fire it: Rota was not running, or was cut off from its database."
            return Answer("missed", text + (" A later run made up for it." if made_up else ""), run)
    return None


def unrecorded(automation: Mapping[str, Any], schedules: Sequence[Schedule], minute: datetime, now: datetime) -> Answer:
    """Why the ledger has no row for this minute: there was no slot to record."""
    following = _following(schedules, minute)
    told = "; ".join(_in_words(each) for each in schedules)
    if minute < automation["created_at"] - MINUTE:
        return Answer("not_yet_saved", "It was not saved yet.")
    if automation["deleted_at"] and minute >= automation["deleted_at"]:
        return Answer("deleted", "It was deleted by then.")
    if not schedules:
        return Answer("no_schedule", "It had no schedule then: it ran only by hand or when something called it.")
    if following is None or following >= minute + MINUTE:
        return Answer("not_due", f"It was not due then. Its schedule was: {told}.", next_slot=following)
    if minute > now:
        return Answer("to_come", "This slot is still to come.", next_slot=following)
    return Answer(
        "off", "By its schedule it was due, but it was paused, or its trigger was switched off or not yet begun.",
        next_slot=following,
    )  # fmt: skip


def _in_words(schedule: Schedule) -> str:
    with suppress(Invalid):
        return describe(schedule)
    return "one that cannot be read"


def _due_within(schedules: Sequence[Schedule], minute: datetime) -> bool:
    following = _following(schedules, minute)
    return following is not None and following < minute + MINUTE


def _following(schedules: Sequence[Schedule], minute: datetime) -> datetime | None:
    """The first slot that is not before this minute."""
    due = [slot for each in schedules if (slot := _next(each, minute - timedelta(microseconds=1)))]
    return min(due, default=None)


def _next(schedule: Schedule, instant: datetime) -> datetime | None:
    with suppress(Invalid, ValueError, OverflowError):
        return schedule.next_after(instant)
    return None


async def _schedules_then(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, minute: datetime, zone: str
) -> list[Schedule]:
    """The triggers it has now, if they are as old as that; else those of the revision that held then."""
    rows = await triggers.of_automations(conn, workspace_id, [automation_id])
    saved = await agents.revisions(conn, workspace_id, automation_id, before=None, limit=REVISIONS)
    since = [each for each in saved if each["created_at"] <= minute + MINUTE]
    if not since or since[0] is saved[0]:
        return [timing(row).schedule() for row in rows if row["kind"] in TIMED]
    found: list[Schedule] = []
    for form in _forms(since[0]):
        with suppress(Invalid, ValueError):  # of another kind
            found.append(read_schedule(form, default_timezone=zone, now=_anchored(form, since)).schedule)
    return found


def _forms(revision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What its triggers said about when, without their limits."""
    triggers = revision["spec"].get("triggers", [])
    return [{name: value for name, value in each.items() if name not in LIMITS} for each in triggers]


def _anchored(form: Mapping[str, Any], revisions: Sequence[Mapping[str, Any]]) -> datetime:
    """Since when a trigger of the first of these revisions, the newest first, was saved so: others left it alone."""
    *_, first = takewhile(lambda each: form in _forms(each), revisions)
    at: datetime = first["created_at"]
    return at
