"""The transcript: events told as a conversation. Pages, API and agents all read it from here."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import orjson

from rota.db.events import Event
from rota.model.approval import PRE_APPROVAL
from rota.model.executor import Turn
from rota.model.ids import RunId
from rota.model.reasons import FAILED, SKIPPED
from rota.model.session import MOST_TASKS
from rota.model.text import plain


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
            case "approval":
                yield _line(event, "rota", _of_approval(event.data))
            case "task" if _has_line(event.data):
                yield replace(_line(event, "rota", _of_task(event.data)), seq=span(event)[0])
            case "artifact":
                yield _line(event, "rota", f"Left {event.data.get('name', 'an artifact')}.")
            case "session":
                yield _line(event, "rota", _of_session(event.data))


def span(event: Event) -> tuple[int, int]:
    """The first and the last event of what its line tells, though not all of them may be at hand: many tasks that were
    added together were written in one go."""
    if event.kind != "task" or not _is_of_many(event.data):
        return event.seq, event.seq
    first = max(1, event.seq - int(event.data["place"]) + 1)
    return first, max(event.seq, first + int(event.data["of"]) - 1)


def merged(told: Iterable[Line]) -> list[Line]:
    """Join what the agent said in several pieces of one attempt; at once, since each joint copies what is before. Many
    tasks that were added together each say how many they are, so that one speaks for all, wherever a part begins."""
    breaths: list[list[Line]] = []
    for line in told:
        if breaths and _same_breath(breaths[-1][0], line):
            breaths[-1].append(line)
        else:
            breaths.append([line])
    return [_joined(each) for each in breaths]


def _joined(breath: Sequence[Line]) -> Line:
    if len(breath) == 1 or breath[0].speaker == "rota":
        return breath[0]
    return replace(breath[0], text="".join(line.text for line in breath))


def _same_breath(last: Line, line: Line) -> bool:
    if line.speaker == last.speaker == "rota" and _is_of_many(last.data) and _is_of_many(line.data):
        return bool(last.data["of"] == line.data["of"] and line.data["place"] > 1)
    pieces = "body" not in last.data and "body" not in line.data  # a message is whole
    same = (line.run_id, line.attempt) == (last.run_id, last.attempt)
    return line.speaker == last.speaker == "agent" and same and pieces


def conversation(events: Iterable[Event]) -> list[Line]:
    """The same lines with the same words as on the page."""
    return [replace(line, text=plain(line.text)[0]) for line in merged(lines(events))]


def turns(events: Sequence[Event]) -> list[Turn]:
    """What an agent is given of the conversation so far: what was asked and what was answered, each question where its
    run began, so that what still waits for its turn is not heard before."""
    asked: dict[RunId, str] = {}
    said: list[Line] = []
    for event in events:
        status = event.data.get("status")
        if event.kind == "output":
            said.append(_line(event, "agent", str(event.data.get("text", ""))))
        elif event.kind == "run" and event.run_id and status == "queued" and event.data.get("prompt"):
            asked[event.run_id] = str(event.data["prompt"])
        elif event.kind == "run" and event.run_id and status == "running" and event.run_id in asked:
            said.append(_line(event, "user", asked.pop(event.run_id)))
    return [Turn(line.speaker, line.text) for line in merged(said)]


def _body(data: dict[str, Any]) -> str:
    body = data.get("body", "")
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
    elif event.data.get("tasks_refused"):
        yield _line(event, "rota", f"Tasks were refused: {event.data.get('reason')}")
    elif text := _told(event.data):
        yield _line(event, "rota", text)


def _of_approval(data: dict[str, Any]) -> str:
    note = f" “{data['text']}”" if data.get("text") else ""
    match data.get("status"):
        case "pending":
            return f"Asks: {data.get('question')}"
        case "approved" if data.get("by") == PRE_APPROVAL:
            return f"Approved beforehand: {data.get('question')}"
        case "approved" | "refused" as status:
            return f"{status.capitalize()} by {data.get('by')}: {data.get('label')}.{note}"
        case "expired":
            return "Nobody answered in time."
        case _:
            return "The question was withdrawn."


def _told(data: dict[str, Any]) -> str:
    detail = str(data.get("error_detail") or data.get("reason") or "")
    match data.get("status"):
        case "queued":
            return _queued_again(detail)
        case "awaiting_approval":
            return "Waits for an answer; its place is free."
        case "succeeded":
            return "Done."
        case "failed":
            return _sentence(FAILED.get(str(data.get("error_class")), "It failed"), detail)
        case "cancelled":
            return _sentence(FAILED.get(str(data.get("error_class")), "Cancelled"), "")
        case status:
            skipped = _sentence(SKIPPED.get(str(data.get("skip_reason")), "Skipped"), "")
            return skipped if status == "skipped" else ""


def _queued_again(why: str) -> str:
    if why == "answered":
        return "Goes on with the answer."
    return _sentence("Back in the queue", why)


def _sentence(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else f"{text}."


def _has_line(data: dict[str, Any]) -> bool:
    """The graph of the tasks shows when one is ready and runs; the transcript names retries and ends."""
    return data.get("status") not in {"ready", "running"} or bool(data.get("retried"))


def _of_task(data: dict[str, Any]) -> str:
    task, reason = f"Task {data.get('task')}", str(data.get("reason"))
    match data.get("status"):
        case "pending" if _is_of_many(data):
            return f"{data['of']:,} tasks were added."
        case "pending":
            return f"{task} was added for the {data.get('role')}."
        case "ready":
            return f"{task} is tried again."
        case "done":
            return f"{task} is done."
        case "failed":
            return _sentence(f"{task} failed", (FAILED.get(reason) or SKIPPED.get(reason) or "").lower())
        case _:
            why = "the session was ended" if reason == "session_ended" else "a task before it failed"
            return f"{task} was skipped: {why}."


def _is_of_many(data: dict[str, Any]) -> bool:
    """A task that was added with many others. What was imported may say anything."""
    place, of = data.get("place"), data.get("of")
    return data.get("status") == "pending" and type(place) is int and type(of) is int and 0 < place <= of <= MOST_TASKS


def _of_session(data: dict[str, Any]) -> str:
    told = {
        "active": "The session goes on",
        "paused": "The session was paused",
        "done": "The session is done",
        "failed": "The session failed",
        "archived": "The session was archived",
    }.get(str(data.get("status")), "The session was opened")
    return f"{told}, by {data['by']}." if data.get("by") else f"{told}."


def _line(event: Event, speaker: str, text: str) -> Line:
    return Line(event.seq, speaker, text, event.created_at, event.run_id, event.attempt, event.data)
