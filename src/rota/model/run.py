"""A run: its statuses, and what becomes of it when an attempt ends."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from rota.model.budget import ASK
from rota.model.ids import AgentId, AutomationId, GrantId, RunId, SessionId, TriggerId, UserId, WorkspaceId
from rota.model.outcome import Cancelled, ErrorClass, Failed, Outcome, Parked, Succeeded, TimedOut
from rota.model.text import clean, plain

SUMMARY_LENGTH = 120
DETAIL_LENGTH = 2000


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.SKIPPED, Status.CANCELLED})


class Source(StrEnum):
    SCHEDULE = "schedule"
    RUN_NOW = "run_now"
    WEBHOOK = "webhook"
    EVENT = "event"
    AFTER = "after"
    TASK = "task"
    CHAT = "chat"
    RETRY = "retry"


PRIORITY: Mapping[Source, int] = {Source.CHAT: 0, Source.RUN_NOW: 1, Source.RETRY: 1}
FIRST_IN_LINE = -1  # a run that was parked and has its answer


class SkipReason(StrEnum):
    PRIOR_IN_FLIGHT = "prior_in_flight"
    MISSED = "missed"
    PAUSED = "paused"
    DELETED = "deleted"
    AGENT_PAUSED = "agent_paused"
    GRANT_REVOKED = "grant_revoked"
    GRANT_EXPIRED = "grant_expired"
    GRANT_SCOPE = "grant_scope"
    BUDGET = "budget"


@dataclass(slots=True)  # not frozen: ten thousand of these are made in one pass, and frozen ones take twice as long
class Start:
    """A run as it is about to be written: queued and ready, queued behind its lane, or skipped with a reason."""

    workspace_id: WorkspaceId
    id: RunId
    agent_id: AgentId
    grant_id: GrantId
    revision: int
    source: Source
    queue: WorkspaceId | AgentId
    executor: str
    pool: str
    timeout: timedelta
    owner_id: UserId
    automation_id: AutomationId | None = None
    trigger_id: TriggerId | None = None
    session_id: SessionId | None = None
    fresh_session: bool = True
    lane: AutomationId | SessionId | None = None
    waits_for_lane: bool = False
    skip_reason: SkipReason | None = None
    slot: datetime | None = None
    ready_at: datetime | None = None
    missed_count: int = 0
    missed_since: datetime | None = None
    idempotency_key: str | None = None
    prompt: str | None = None
    input: Any = None
    payload: Any = None
    retry_of: RunId | None = None
    created_by: UserId | None = None
    max_attempts: int = 1
    max_rescues: int = 2
    start_within: timedelta | None = None
    priority: int = 2
    budget: Any = ASK  # whether one concerns it is asked as it starts; then what it may spend of each unit, or None


class Claimed(NamedTuple):
    """A run in the hands of a worker: what it needs to execute and to settle this attempt. `number` tells which of the
    tokens offered with the claim is its own, `waiting` how many of its workspace could have been claimed with it."""

    workspace_id: WorkspaceId
    id: RunId
    session_id: SessionId
    automation_id: AutomationId | None
    agent_id: AgentId
    attempt: int
    tries: int
    max_attempts: int
    source: str
    executor: str
    slot: datetime | None
    missed: Mapping[str, Any] | None
    payload: Any
    prompt: str | None
    input: Any
    spec: str  # as JSON
    timeout: timedelta
    trace_id: str
    first_in_session: bool
    refused: SkipReason | None
    queue: WorkspaceId | AgentId
    pool: str
    priority: int
    ready_at: datetime
    number: int
    waiting: int
    budget: Mapping[str, str] | None = None
    retry_of: RunId | None = None


class Settlement(NamedTuple):
    """What is written when an attempt ends: the run's new status, and when it may be tried again."""

    status: Status
    tries: int
    retry_in: timedelta | None = None
    error_class: ErrorClass | None = None
    error_detail: str | None = None
    summary: str | None = None


def settlement(outcome: Outcome, *, tries: int, max_attempts: int, said: str = "") -> Settlement:
    """The run as it stands after this attempt. Only failures that the agent caused count as tries. `said` are the last
    words of an agent that came to no good end."""
    last = summarised(said)
    match outcome:
        case Succeeded(summary):
            return Settlement(Status.SUCCEEDED, tries, summary=summarised(summary))
        case Failed(error_class, detail, retryable):
            detail = _cut(plain(clean(detail))[0])
            if retryable and tries + 1 < max_attempts:
                return Settlement(Status.QUEUED, tries + 1, retry_delay(tries + 1), error_class, detail)
            return Settlement(Status.FAILED, tries + 1, None, error_class, detail, last)
        case TimedOut(detail):
            return Settlement(Status.FAILED, tries + 1, None, ErrorClass.TIMEOUT, detail, last)
        case Cancelled():
            return Settlement(Status.CANCELLED, tries, summary=last)
        case Parked():
            return Settlement(Status.AWAITING_APPROVAL, tries)
        case _:
            assert_never(outcome)


def _cut(detail: str) -> str:
    """No more of a failure than a page shows: runs are kept for good, and listed by the hundred."""
    return detail if len(detail) <= DETAIL_LENGTH else f"{detail[: DETAIL_LENGTH - 1]}…"


def retry_delay(tries: int, *, spread: float | None = None) -> timedelta:
    """Exponential: 2, 4, 8 … seconds up to ten minutes, each up to half longer so that failures don't march in step."""
    spread = random.random() if spread is None else spread  # nosec B311 # noqa: S311 — not a secret
    return timedelta(seconds=min(2.0**tries, 600.0) * (1 + spread / 2))


def summarised(text: str | None) -> str | None:
    """The first 120 characters, cut at a word."""
    words = " ".join(clean(text or "").split())
    if not words.isprintable():
        words = plain(words)[0]
    if len(words) <= SUMMARY_LENGTH:
        return words or None
    cut = words[: SUMMARY_LENGTH - 1]
    return (cut[: cut.rfind(" ")] if " " in cut[60:] else cut).rstrip() + "…"
