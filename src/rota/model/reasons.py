"""Why a run was skipped or failed, in the words of people: pages and transcripts use the same."""

SKIPPED = {
    "prior_in_flight": "Skipped: the run before was still going",
    "paused": "Skipped: the automation or the workspace was paused",
    "deleted": "Skipped: the automation was deleted",
    "agent_paused": "Skipped: its agent is paused",
    "grant_revoked": "Skipped: its grant was revoked",
    "grant_expired": "Skipped: its grant has expired",
    "grant_scope": "Skipped: its grant does not allow this agent",
    "budget": "Skipped: its budget is used up",
}
FAILED = {
    "agent_error": "The agent failed",
    "executor_error": "The agent could not be run",
    "timeout": "It took longer than it may",
    "stuck": "No worker had a free place in time",
    "stalled": "Its worker was lost",
    "budget_exceeded": "Its budget was used up",
    "grant_invalid": "Its grant ended while it ran",
    "approval_refused": "Approval was refused",
    "approval_expired": "Nobody approved in time",
    "cancelled_by_user": "Cancelled by hand",
    "replaced": "Cancelled: a later run took its turn",
}
