"""The transcript: events told as a conversation. Pages, API and agents all read it from here."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from rota.db.events import Event
from rota.model.executor import Turn
from rota.model.ids import RunId


@dataclass(frozen=True, slots=True)
class Line:
    """One line as a reader sees it. `speaker` is user, agent, tool or rota."""

    seq: int
    speaker: str
    text: str
    at: datetime
    run_id: RunId | None
    attempt: int | None
    data: dict[str, Any]


def lines(events: Iterable[Event]) -> Iterator[Line]:
    for event in events:
        match event.kind:
            case "output":
                yield _line(event, "agent", str(event.data.get("text", "")))
            case "tool":
                yield _line(event, "tool", str(event.data.get("name", "")))
            case "message":
                yield _line(event, str(event.data.get("from", "agent")), _body(event.data))
            case "run":
                yield from _of_run(event)


def merged(told: Iterable[Line]) -> list[Line]:
    """Join what the agent said in several pieces of one attempt."""
    result: list[Line] = []
    for line in told:
        last = result[-1] if result else None
        if (
            last
            and line.speaker == last.speaker == "agent"
            and (line.run_id, line.attempt) == (last.run_id, last.attempt)
        ):
            result[-1] = Line(last.seq, "agent", last.text + line.text, last.at, last.run_id, last.attempt, last.data)
        else:
            result.append(line)
    return result


def turns(events: Sequence[Event]) -> list[Turn]:
    """What an agent is given of the conversation so far."""
    return [Turn(line.speaker, line.text) for line in merged(lines(events)) if line.speaker in {"user", "agent"}]


def _body(data: dict[str, Any]) -> str:
    body = data.get("body", data.get("text", ""))
    return body if isinstance(body, str) else orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()


def _of_run(event: Event) -> Iterator[Line]:
    status = event.data.get("status")
    if status == "queued" and "source" in event.data:
        if prompt := event.data.get("prompt"):
            yield _line(event, "user", str(prompt))
        return
    if asked := event.data.get("cancel_requested"):
        yield _line(
            event, "rota", "Asked to stop." if asked != "replaced" else "Asked to stop: a later run takes its turn."
        )
    elif text := _told(event.data):
        yield _line(event, "rota", text)


def _told(data: dict[str, Any]) -> str:
    detail = data.get("error_detail") or data.get("reason") or ""
    match data.get("status"):
        case "queued":
            return f"Back in the queue: {detail}" if detail else "Back in the queue."
        case "succeeded":
            return "Done."
        case "failed":
            return f"Failed ({data.get('error_class')}). {detail}".strip()
        case "cancelled":
            return "Cancelled." if data.get("error_class") != "replaced" else "Cancelled: a later run took its turn."
        case "skipped":
            return f"Skipped: {data.get('skip_reason')}."
        case _:
            return ""


def _line(event: Event, speaker: str, text: str) -> Line:
    return Line(event.seq, speaker, text, event.created_at, event.run_id, event.attempt, event.data)
