"""A session: its statuses, and the verbs that lead from one to the next.

draft ──enable──► active ⇄ paused (pause, resume)
active, paused ──complete──► done ─┬─archive──► archived
active, paused ──fail──► failed ───┘
done, failed ──follow-up──► active
"""

from enum import StrEnum

from rota.errors import Conflict

MOST_TASKS = 10_000  # an agent whose tasks add tasks of the same kind would never end
MOST_ROLES = 100  # each message to all is delivered to every one of them


class SessionStatus(StrEnum):
    DRAFT = "draft"
    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    ARCHIVED = "archived"


class Verb(StrEnum):
    ENABLE = "enable"
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    ARCHIVE = "archive"


_OPEN = (SessionStatus.ACTIVE, SessionStatus.PAUSED)
_ENDED = (SessionStatus.DONE, SessionStatus.FAILED)

STEPS: dict[Verb, tuple[tuple[SessionStatus, ...], SessionStatus]] = {
    Verb.ENABLE: ((SessionStatus.DRAFT,), SessionStatus.ACTIVE),
    Verb.PAUSE: ((SessionStatus.ACTIVE,), SessionStatus.PAUSED),
    Verb.RESUME: ((SessionStatus.PAUSED,), SessionStatus.ACTIVE),
    Verb.COMPLETE: (_OPEN, SessionStatus.DONE),
    Verb.FAIL: (_OPEN, SessionStatus.FAILED),
    Verb.ARCHIVE: (_ENDED, SessionStatus.ARCHIVED),
}


def after(verb: Verb, status: SessionStatus) -> SessionStatus:
    """The status that a verb leads to from this one."""
    sources, target = STEPS[verb]
    if status not in sources:
        raise Conflict(
            f"To {verb} a session it must be {' or '.join(sources)}; this one is {status}.",
            code="wrong_state",
            session_status=status,
            allowed_from=list(sources),
        )
    return target


def followed_up(status: SessionStatus) -> SessionStatus:
    """The status in which a session takes a message of a person, or new tasks."""
    if status in {SessionStatus.ACTIVE, *_ENDED}:
        return SessionStatus.ACTIVE
    hint = {
        SessionStatus.DRAFT: "enable it first",
        SessionStatus.PAUSED: "resume it first",
        SessionStatus.ARCHIVED: "it can only be read",
    }[status]
    raise Conflict(
        f"A session takes messages while it is active, done or failed; this one is {status}: {hint}.",
        code="wrong_state",
        session_status=status,
        allowed_from=[SessionStatus.ACTIVE, *_ENDED],
    )


def extended(status: SessionStatus) -> SessionStatus:
    """The status of a session after tasks were added: one that had ended goes on."""
    if status == SessionStatus.ARCHIVED:
        raise Conflict(
            "This session is archived: it can only be read.", code="wrong_state", session_status=status,
            allowed_from=[SessionStatus.DRAFT, *_OPEN, *_ENDED],
        )  # fmt: skip
    return SessionStatus.ACTIVE if status in _ENDED else status


def room_for_roles(present: int, more: int) -> None:
    """Refuse more roles than a session may have."""
    if more and present + more > MOST_ROLES:
        raise Conflict(
            f"A session has at most {MOST_ROLES} roles; this one has {present}.",
            code="too_many_roles",
            limit=MOST_ROLES,
        )


def room_for_tasks(present: int, more: int) -> None:
    """Refuse more tasks than a session may have."""
    if more and present + more > MOST_TASKS:
        raise Conflict(
            f"A session has at most {MOST_TASKS:,} tasks; this one has {present:,}.",
            code="too_many_tasks",
            limit=MOST_TASKS,
        )
