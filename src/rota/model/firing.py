"""What a due trigger leads to: which slots run, which are skipped and why, and when it is due again. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from rota.model.budget import ASK
from rota.model.cron import LONGEST_SHIFT
from rota.model.ids import (
    AgentId,
    AutomationId,
    GrantId,
    RunId,
    SessionId,
    TriggerId,
    UserId,
    WorkspaceId,
    new_id,
)
from rota.model.run import PRIORITY, SkipReason, Source, Start
from rota.model.schedule import AtSchedule, CronSchedule, EverySchedule, Schedule

# How far a change of a zone's rules moves a local time: by as much as clocks are shifted, and never by odd minutes.
_LARGEST_MOVE = timedelta(seconds=LONGEST_SHIFT)
_QUARTER = timedelta(minutes=15)
_INSTANT = timedelta(microseconds=1)

# A scheduler that is running fires within milliseconds: what is later than this waited for one to come back.
LATE = timedelta(seconds=5)

# Nothing that is due later would run either, until somebody resumes the agent or the workspace.
RESTING = frozenset({SkipReason.AGENT_PAUSED, SkipReason.PAUSED})

QUEUEING_KINDS = frozenset({"webhook", "event", "after"})


class Timing(NamedTuple):
    """The part of a trigger that says when. Column for column what the table holds."""

    kind: str
    cron: str | None
    every: timedelta | None
    time_of_day: time | None
    at: datetime | None
    timezone: str
    anchor_at: datetime
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_fires: int | None = None
    fires: int = 0

    def schedule(self) -> Schedule:
        if self.kind == "cron" and self.cron:
            return CronSchedule(self.cron, self.timezone)
        if self.kind == "every" and self.every:
            days = self.every.days if self.time_of_day else None
            return EverySchedule(self.every, self.anchor_at, days, self.time_of_day, self.timezone)
        if self.kind == "at" and self.at:
            return AtSchedule(self.at, self.timezone)
        raise ValueError(f"a trigger of kind {self.kind} has no schedule")

    def next_after(self, instant: datetime) -> datetime | None:
        """The next slot within the trigger's own limits."""
        if self.starts_at and self.starts_at > instant:
            instant = self.starts_at - timedelta(microseconds=1)
        return self.limited(self.schedule().next_after(instant), self.fires)

    def limited(self, slot: datetime | None, fires: int) -> datetime | None:
        """The slot, unless the trigger has ended by then or has fired as often as it may."""
        if slot is None or (self.ends_at and slot > self.ends_at):
            return None
        return None if self.max_fires is not None and fires >= self.max_fires else slot


class Policy(NamedTuple):
    """What an automation says about every run it starts. Copied onto the run, so an edit never reaches a fired one."""

    workspace_id: WorkspaceId
    automation_id: AutomationId
    agent_id: AgentId
    grant_id: GrantId
    owner_id: UserId
    revision: int
    overlap: str | None
    catch_up: str
    catch_up_limit: int | None
    late_after: timedelta
    session: str
    session_id: SessionId | None
    prompt: str | None  # for the log; a long one is left to be looked up where it is written
    max_attempts: int
    max_rescues: int
    timeout: timedelta
    start_within: timedelta
    queue: WorkspaceId | AgentId
    executor: str
    pool: str
    refused: str | None
    budgeted: bool = False  # its own budget, or some account's: then it is looked at closely

    def start(self, source: Source, placed: "Placement", **facts: Any) -> Start:
        """A run of this automation in its place."""
        skipped = placed.skip_reason is not None
        same = self.session == "same"
        return Start(
            workspace_id=self.workspace_id,
            id=RunId(new_id()),
            automation_id=self.automation_id,
            agent_id=self.agent_id,
            grant_id=self.grant_id,
            owner_id=self.owner_id,
            revision=self.revision,
            source=source,
            queue=self.queue,
            executor=self.executor,
            pool=self.pool,
            timeout=self.timeout,
            start_within=self.start_within,
            max_attempts=self.max_attempts,
            max_rescues=self.max_rescues,
            session_id=None if skipped else self.session_id if same else SessionId(new_id()),
            fresh_session=not (skipped or same),
            prompt=self.prompt,
            lane=placed.lane,
            waits_for_lane=placed.waits,
            skip_reason=placed.skip_reason,
            priority=PRIORITY.get(source, 2),
            budget=ASK if self.budgeted else None,
            **facts,
        )

    def lane(self, overlap: str) -> AutomationId | SessionId | None:
        if self.session == "same":
            return self.session_id
        return None if overlap == "allow" else self.automation_id


class Flight(NamedTuple):
    """Runs of an automation that have not ended: is there one, does one still wait to start, is the lane taken?"""

    busy: bool
    waiting: bool
    lane_taken: bool


class Due(NamedTuple):
    trigger_id: TriggerId
    slot: datetime
    overlap: str | None
    jitter: timedelta | None
    timing: Timing
    policy: Policy
    flight: Flight

    @property
    def keeps_one_waiting(self) -> bool:
        return effective_overlap(self.timing.kind, self.overlap, self.policy.overlap) == "queue_one"


class Firing(NamedTuple):
    """What to write for one due trigger."""

    workspace_id: WorkspaceId
    trigger_id: TriggerId
    starts: tuple[Start, ...]
    next_fire_at: datetime | None
    fires: int
    flight: Flight
    replaces: bool = False  # its first start does
    rests: bool = False  # its agent or workspace is paused: nothing is due until that is resumed


def fire(due: Due, now: datetime, flight: Flight) -> Firing:
    """Decide every slot of this trigger that is due at `now`, given what is in flight."""
    timing = due.timing
    schedule = timing.schedule()
    until = min(now, timing.ends_at) if timing.ends_at else now
    latest, count = due.slot, 1
    following = schedule.next_after(latest)
    if following is not None and _moved(schedule, latest, following - latest):
        if following > until:
            next_fire_at = timing.limited(following, timing.fires)
            return Firing(due.policy.workspace_id, due.trigger_id, (), next_fire_at, timing.fires, flight)
        due = due._replace(slot=following)
        latest, following = following, schedule.next_after(following)
    if following is not None and following <= until:
        latest = schedule.latest_until(due.slot, until)
        count = schedule.count_slots(due.slot, latest)
        following = schedule.next_after(latest)
    starts: list[Start] = []
    replaces = False
    for slot in _slots_to_run(due, schedule, latest, count):
        burst = any(each.skip_reason is None for each in starts)
        placed, flight = _place_slot(due, flight, late=now - slot, burst=burst)
        starts.append(_start(due, slot, placed, now))
        replaces |= placed.replaces
    if starts and count > len(starts):
        starts[0] = replace(starts[0], missed_count=count - len(starts), missed_since=due.slot)
    fires = timing.fires + sum(start.skip_reason is None for start in starts)
    return Firing(
        due.policy.workspace_id,
        due.trigger_id,
        tuple(starts),
        timing.limited(following, fires),
        fires,
        flight,
        replaces,
        rests=due.policy.refused in RESTING,
    )


def _moved(schedule: Schedule, slot: datetime, ahead: timedelta) -> bool:
    """Whether a slot that was stored comes only with the following one, because its zone has other rules since: firing
    both would be twice for one local time. One that was to come earlier by now is fired late instead."""
    if ahead > _LARGEST_MOVE or ahead % _QUARTER or schedule.timezone == "UTC":
        return False
    by_elapsed_time = isinstance(schedule, EverySchedule) and schedule.days is None
    return not by_elapsed_time and _between(schedule, slot, ahead)


@lru_cache(maxsize=4_096)
def _between(schedule: Schedule, slot: datetime, ahead: timedelta) -> bool:
    """Whether this is no slot, nor is any as near before it as the following one is after it. Many triggers ask the
    same at once."""
    return schedule.next_after(slot - ahead - _INSTANT) > slot  # type: ignore[operator]  # one follows


def pass_over(due: Due, now: datetime, reason: SkipReason) -> Start | None:
    """The one row for all slots of this trigger that are due and will not run: the latest, and how many before it."""
    policy = due.policy._replace(catch_up="one", refused=reason)
    return next(iter(fire(due._replace(policy=policy), now, due.flight).starts), None)


def uncounted(due: Due, firing: Firing, skipped: int) -> Firing:
    """The same when so many of its runs were skipped after all: only runs count as fires."""
    fires, latest = firing.fires - skipped, firing.starts[-1].slot
    assert latest
    return firing._replace(
        fires=fires, next_fire_at=due.timing.limited(due.timing.schedule().next_after(latest), fires)
    )


def _slots_to_run(due: Due, schedule: Schedule, latest: datetime, count: int) -> list[datetime]:
    """The slots that get a row of their own, oldest first; those before them are missed."""
    if due.policy.catch_up != "all" or count == 1:
        return [latest]
    left = count if due.timing.max_fires is None else due.timing.max_fires - due.timing.fires
    wanted = max(1, min(due.policy.catch_up_limit or 1, left, count))
    start = due.slot if wanted == count else _slot_number(schedule, due.slot, latest, count - wanted + 1)
    slots = [start]
    while slots[-1] < latest and (following := schedule.next_after(slots[-1])):
        slots.append(following)
    return slots


def _slot_number(schedule: Schedule, first: datetime, latest: datetime, number: int) -> datetime:
    """The slot with this number, counting from `first` as 1, found by halving the span."""
    low, high = first, latest
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        low, high = (low, middle) if schedule.count_slots(first, middle) >= number else (middle, high)
    return schedule.latest_until(first, high)


def _place_slot(due: Due, flight: Flight, *, late: timedelta, burst: bool) -> "tuple[Placement, Flight]":
    policy = due.policy
    if policy.catch_up == "skip" and late > policy.late_after:
        return Placement(skip_reason=SkipReason.MISSED), flight
    overlap = effective_overlap(due.timing.kind, due.overlap, policy.overlap)
    if burst and overlap in {"skip", "queue_one", "replace"}:
        overlap = "queue_all"  # slots caught up together would not have overlapped had they run in time
    return place(policy, overlap, flight)


def _start(due: Due, slot: datetime, placed: "Placement", now: datetime) -> Start:
    return due.policy.start(
        Source.SCHEDULE,
        placed,
        trigger_id=due.trigger_id,
        slot=slot,
        ready_at=max(now, slot + jitter(due.trigger_id, slot, due.jitter)) if due.jitter else now,
    )


def effective_overlap(kind: str, of_trigger: str | None, of_automation: str | None) -> str:
    return of_trigger or of_automation or ("queue_all" if kind in QUEUEING_KINDS else "skip")


class Placement(NamedTuple):
    """Where a run goes: at once, behind its lane, or nowhere, with the reason."""

    lane: AutomationId | SessionId | None = None
    waits: bool = False
    skip_reason: SkipReason | None = None
    replaces: bool = False


def place(policy: Policy, overlap: str, flight: Flight) -> tuple[Placement, Flight]:
    """Put a run into its lane, or skip it with the reason; and what is in flight then."""
    if policy.refused:
        return Placement(skip_reason=SkipReason(policy.refused)), flight
    if flight.busy and (overlap == "skip" or (overlap == "queue_one" and flight.waiting)):
        return Placement(skip_reason=SkipReason.PRIOR_IN_FLIGHT), flight
    lane = policy.lane(overlap)
    waits = lane is not None and (flight.busy or flight.lane_taken)
    after = Flight(busy=True, waiting=True, lane_taken=flight.lane_taken or lane is not None)
    return Placement(lane, waits, None, waits and overlap == "replace"), after


def jitter(trigger_id: UUID, slot: datetime, span: timedelta | None) -> timedelta:
    """How long after its slot this run starts: the same on every replica."""
    if not span:
        return timedelta()
    digest = hashlib.blake2b(trigger_id.bytes + slot.isoformat().encode(), digest_size=8).digest()
    return span * (int.from_bytes(digest) / 2**64)


def spread(firings: Sequence[Firing], now: datetime, *, threshold: int, span: timedelta) -> list[Start]:
    """The runs of these firings. If more than `threshold` of them are late, as after an outage, they start over a span
    of time instead of at once, and none before its own jitter allows."""
    late = {start.id for firing in firings if _is_late(firing, now) for start in firing.starts if not start.skip_reason}
    return [
        _delay(start, now, span) if start.id in late and len(late) > threshold else start
        for firing in firings
        for start in firing.starts
    ]


def _is_late(firing: Firing, now: datetime) -> bool:
    """Whether the first of its due slots is late. The latest is not, for a schedule of seconds."""
    if not firing.starts:
        return False
    first = firing.starts[0].missed_since or firing.starts[0].slot
    return first is not None and now - first > LATE


def _delay(start: Start, now: datetime, span: timedelta) -> Start:
    delayed = now + jitter(start.trigger_id or start.id, start.slot or now, span)
    return replace(start, ready_at=max(start.ready_at or now, delayed))
