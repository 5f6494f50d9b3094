"""A session as lines of JSON: what an export holds, and what an import takes.

The first line is the head, the last one counts the events; in between come roles, tasks and events, one a line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rota.errors import Invalid
from rota.model.artifact import check_media_type, check_name, check_uri
from rota.model.message import ROLE

VERSION = 1
KINDS = frozenset({"run", "task", "message", "output", "tool", "approval", "artifact", "session"})
SESSION_KINDS = frozenset({"interactive", "automation", "background"})
TASK_STATUSES = frozenset({"pending", "ready", "running", "done", "failed", "skipped"})
LARGEST_SEQ = 2**63 - 1
LONGEST = 1_000_000
MOST_NEEDED = 10_000
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


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
class ImportedPart:
    """A role, or a task as it stood. `name` is the task's id."""

    what: str
    name: str
    line: int
    data: dict[str, Any]


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


def read_line(line: Any, number: int) -> ImportedEvent | ImportedPart | End:
    """A later line: a role, a task, an event or the end."""
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
        case "role":
            agent = _text(value.get("agent"), number, "role.agent", most=200)
            return ImportedPart("role", _role(value.get("name"), number, "role.name"), number, {"agent": agent})
        case "task":
            return ImportedPart("task", _uuid(value.get("id"), number, "task.id"), number, _task(value, number))
        case _:
            raise _wrong(number, f"there is no `{str(what)[:40]}` in an export")


def _event(value: Mapping[str, Any], number: int) -> ImportedEvent:
    if value.get("kind") not in KINDS:
        raise _wrong(number, f"`event.kind` must be one of {', '.join(sorted(KINDS))}")
    if not isinstance(value.get("data"), Mapping):
        raise _wrong(number, "`event.data` must be an object")
    run_id, attempt = value.get("run_id"), value.get("attempt")
    if value["kind"] == "artifact":
        _check_artifact(value["data"], number)
    return ImportedEvent(
        _whole(value.get("seq"), number, "event.seq", least=1),
        value["kind"],
        None if run_id is None else _uuid(run_id, number, "event.run_id"),
        None if attempt is None else _whole(attempt, number, "event.attempt", least=0, most=2**31 - 1),
        dict(value["data"]),
        _instant(value.get("created_at"), number),
    )


def _check_artifact(data: Mapping[str, Any], number: int) -> None:
    """It is shown in a list, with a link: the same holds for it as for one that is left here."""
    _uuid(data.get("artifact_id"), number, "event.data.artifact_id")
    texts = {name: data.get(name) for name in ("name", "media_type", "uri", "sha256")}
    try:
        check_name(_text(texts["name"], number, "event.data.name", most=LONGEST))
        check_media_type(_text(texts["media_type"], number, "event.data.media_type", most=LONGEST), "")
        if texts["uri"] is not None:
            check_uri(_text(texts["uri"], number, "event.data.uri", most=LONGEST))
    except Invalid as refused:
        if refused.code == "invalid_export":
            raise
        raise _wrong(number, f"`event.data.{refused.field}` cannot be shown: {refused.message.rstrip('.')}") from None
    if (texts["uri"] is None) != (texts["sha256"] is not None):
        raise _wrong(number, "an artifact has `event.data.sha256`, or it is elsewhere and has `event.data.uri`")
    if texts["sha256"] is not None:
        if not isinstance(texts["sha256"], str) or not SHA256.fullmatch(texts["sha256"]):
            raise _wrong(number, "`event.data.sha256` must be 64 hexadecimal digits")
        _whole(data.get("size"), number, "event.data.size", least=0)


def _task(value: Mapping[str, Any], number: int) -> dict[str, Any]:
    if value.get("status") not in TASK_STATUSES:
        raise _wrong(number, f"`task.status` must be one of {', '.join(sorted(TASK_STATUSES))}")
    needs = value.get("depends_on", [])
    if not isinstance(needs, list) or len(needs) > MOST_NEEDED:
        raise _wrong(number, f"`task.depends_on` must be a list of at most {MOST_NEEDED:,} ids")
    texts = {
        name: None if value.get(name) is None else _text(value[name], number, f"task.{name}", most=LONGEST)
        for name in ("prompt", "reason", "summary", "error_class", "error_detail")
    }
    ids = {
        name: None if value.get(name) is None else _uuid(value[name], number, f"task.{name}")
        for name in ("run_id", "added_by_run")
    }
    times = {
        name: None if value.get(name) is None else _instant(value[name], number, f"task.{name}")
        for name in ("started_at", "finished_at")
    }
    return {
        "key": _text(value.get("key"), number, "task.key", most=200),
        "role": _role(value.get("role"), number, "task.role"),
        "status": value["status"],
        "input": value.get("input"),
        "depends_on": [_uuid(each, number, "task.depends_on") for each in needs],
        "timeout": _whole(value.get("timeout", 3600), number, "task.timeout", least=0, most=2**31 - 1),
        "max_attempts": _whole(value.get("max_attempts", 1), number, "task.max_attempts", least=1, most=2**31 - 1),
        "created_at": _instant(value.get("created_at"), number, "task.created_at"),
        **texts, **ids, **times,
    }  # fmt: skip


def _text(value: Any, number: int, field: str, *, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise _wrong(number, f"`{field}` must be text of at most {most:,} characters")
    return value


def _role(value: Any, number: int, field: str) -> str:
    if not isinstance(value, str) or not ROLE.fullmatch(value):
        raise _wrong(number, f"`{field}` must be the name of a role")
    return value


def _whole(value: Any, number: int, field: str, *, least: int, most: int = LARGEST_SEQ) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(number, f"`{field}` must be a whole number from {least}")
    return value


def _uuid(value: Any, number: int, field: str) -> str:
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise _wrong(number, f"`{field}` must be an id") from None


def _instant(value: Any, number: int, field: str = "event.created_at") -> str:
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        moment = None
    if moment is None or moment.tzinfo is None or not 1970 <= moment.year <= 9998:
        raise _wrong(number, f"`{field}` must be a time with an offset")
    return moment.isoformat()


def _wrong(number: int, what: str) -> Invalid:
    return Invalid(f"Line {number}: {what}.", code="invalid_export", field="lines", line=number)
