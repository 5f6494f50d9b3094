"""What people are told of, in plain words, and where each leads. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    RUN_FAILED = "run_failed"
    NEEDS_APPROVAL = "needs_approval"
    PAUSED = "paused"
    BUDGET_LOW = "budget_low"
    GRANT_EXPIRING = "grant_expiring"


# What somebody chooses by.
WORDS = {
    Kind.RUN_FAILED: "A run failed",
    Kind.NEEDS_APPROVAL: "An agent waits for an answer",
    Kind.PAUSED: "An automation was paused after failures",
    Kind.BUDGET_LOW: "A budget is nearly used up",
    Kind.GRANT_EXPIRING: "A grant is about to expire",
}
_TITLES = {
    Kind.RUN_FAILED: "{about} failed",
    Kind.NEEDS_APPROVAL: "{about} waits for an answer",
    Kind.PAUSED: "{about} was paused",
    Kind.BUDGET_LOW: "The budget of {about} is nearly used up",
    Kind.GRANT_EXPIRING: "The grant of {about} is about to expire",
}


def title(told: Mapping[str, Any]) -> str:
    """One sentence without a full stop."""
    kind = Kind(told["kind"])
    times = f" {told['count']} times" if kind == Kind.RUN_FAILED and told["count"] > 1 else ""
    return _TITLES[kind].format(about=told["about"]) + times


def path(told: Mapping[str, Any]) -> str | None:
    """Where it leads within its workspace; None if there is nothing to look at."""
    match Kind(told["kind"]):
        case Kind.RUN_FAILED:
            return f"/sessions/{told['session_id']}" if told["session_id"] else None
        case Kind.NEEDS_APPROVAL:
            return f"/sessions/{told['session_id']}#a-{told['approval_id']}"
        case Kind.GRANT_EXPIRING:
            return f"/settings/grants/{told['grant_id']}"
        case Kind.BUDGET_LOW if told["account_id"]:
            return f"/settings/accounts#a-{told['account_id']}"
        case Kind.PAUSED | Kind.BUDGET_LOW:
            return f"/automations/{told['automation_id']}" if told["automation_id"] else None
