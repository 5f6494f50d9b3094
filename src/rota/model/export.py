"""A session as lines of JSON: what an export holds, and what an import takes.

The first line is the head, the last one counts the events; in between come roles, tasks and events, one a line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rota.errors import Invalid

VERSION = 1
KINDS = frozenset({"run", "task", "message", "output", "tool", "approval", "artifact", "session"})
SESSION_KINDS = frozenset({"interactive", "automation", "background"})
LARGEST_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Head:
    """What of the session is kept beside its log."""

    id: str
    kind: str
    title: str
    goal: str | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImportedEvent:
    seq: int
    kind: str
    run_id: str | None
    attempt: int | None
    data: dict[str, Any]
    created_at: str


@dataclass(frozen=True, slots=True)
class End:
    events: int


def read_head(line: Any, number: int = 1) -> Head:
    """The first line of an export."""
    if not isinstance(line, Mapping) or line.get("rota") != "session":
        raise _wrong(number, 'an export begins with {"rota": "session", …}; this file does not')
    if line.get("version") != VERSION:
        raise _wrong(number, f"this is version {line.get('version')!r} of the format; this Rota reads {VERSION}")
    session = line.get("session")
    if not isinstance(session, Mapping):
        raise _wrong(number, "`session` must be an object")
    if session.get("kind") not in SESSION_KINDS:
        raise _wrong(number, f"`session.kind` must be one of {', '.join(sorted(SESSION_KINDS))}")
    title, goal = session.get("title"), session.get("goal")
    if not isinstance(title, str) or not title.strip():
        raise _wrong(number, "`session.title` must be text")
    if goal is not None and not isinstance(goal, str):
        raise _wrong(number, "`session.goal` must be text or null")
    identity = _uuid(session.get("id"), number, "session.id")
    facts = {"id": identity, "exported_at": line.get("exported_at"), "session": dict(session)}
    return Head(identity, session["kind"], title[:200], goal, facts)


def read_line(line: Any, number: int) -> ImportedEvent | End | None:
    """A later line: an event, the end, or None for a role or task, whose story the events tell."""
    if not isinstance(line, Mapping) or len(line) != 1:
        raise _wrong(number, 'a line is {"event": …}, {"task": …}, {"role": …} or {"end": …}')
    [(what, value)] = line.items()
    if not isinstance(value, Mapping):
        raise _wrong(number, f"`{what}` must be an object")
    match what:
        case "event":
            return _event(value, number)
        case "end":
            return End(_whole(value.get("events"), number, "end.events", least=0))
        case "task" | "role":
            return None
        case _:
            raise _wrong(number, f"there is no `{str(what)[:40]}` in an export")


def _event(value: Mapping[str, Any], number: int) -> ImportedEvent:
    if value.get("kind") not in KINDS:
        raise _wrong(number, f"`event.kind` must be one of {', '.join(sorted(KINDS))}")
    if not isinstance(value.get("data"), Mapping):
        raise _wrong(number, "`event.data` must be an object")
    run_id, attempt = value.get("run_id"), value.get("attempt")
    return ImportedEvent(
        _whole(value.get("seq"), number, "event.seq", least=1),
        value["kind"],
        None if run_id is None else _uuid(run_id, number, "event.run_id"),
        None if attempt is None else _whole(attempt, number, "event.attempt", least=0, most=2**31 - 1),
        dict(value["data"]),
        _instant(value.get("created_at"), number),
    )


def _whole(value: Any, number: int, field: str, *, least: int, most: int = LARGEST_SEQ) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(number, f"`{field}` must be a whole number from {least}")
    return value


def _uuid(value: Any, number: int, field: str) -> str:
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise _wrong(number, f"`{field}` must be an id") from None


def _instant(value: Any, number: int) -> str:
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        moment = None
    if moment is None or moment.tzinfo is None or not 1970 <= moment.year <= 9998:
        raise _wrong(number, "`event.created_at` must be a time with an offset")
    return moment.isoformat()


def _wrong(number: int, what: str) -> Invalid:
    return Invalid(f"Line {number}: {what}.", code="invalid_export", field="lines", line=number)
