"""How an attempt ended, as a value: expected endings are not exceptions."""

from dataclasses import dataclass
from enum import StrEnum

from rota.model.ids import ApprovalId


class ErrorClass(StrEnum):
    """The closed list of reasons for which a run fails or is cancelled."""

    AGENT_ERROR = "agent_error"
    EXECUTOR_ERROR = "executor_error"
    TIMEOUT = "timeout"
    STUCK = "stuck"
    STALLED = "stalled"
    BUDGET_EXCEEDED = "budget_exceeded"
    GRANT_INVALID = "grant_invalid"
    APPROVAL_REFUSED = "approval_refused"
    APPROVAL_EXPIRED = "approval_expired"
    CANCELLED_BY_USER = "cancelled_by_user"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The agent said explicitly that it is done."""

    summary: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    error_class: ErrorClass
    detail: str
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class TimedOut:
    detail: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    pass


@dataclass(frozen=True, slots=True)
class Parked:
    """The agent waits for an answer and has freed its place. `Desk.park` gives this value."""

    approval_id: ApprovalId


Outcome = Succeeded | Failed | TimedOut | Cancelled | Parked
