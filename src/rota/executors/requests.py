"""What a Python agent asks of the desk over its line, and gets an answer to."""

import base64
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from rota.errors import Invalid
from rota.executors.events import Event, Shapes
from rota.model.approval import APPROVE_OR_REFUSE, Option, as_json
from rota.model.duration import parse_duration
from rota.model.executor import Desk
from rota.model.memory import Remembered
from rota.model.outcome import Parked
from rota.model.task import TaskForm

MOST_SECONDS = 1e9
MOST_ATTEMPTS = 100


class Requests:
    """Remembers the question for which the agent was parked."""

    def __init__(self, desk: Desk, directory: Path) -> None:
        self._desk, self._directory = desk, directory
        self.parked: Parked | None = None

    async def take(self, event: Event) -> Any:
        """What the agent gets back; `Refused` tells it why not."""
        match event["type"]:
            case "checkpoint":
                await self._desk.checkpoint(base64.b64decode(event["data"]))
                return None
            case "ask":
                return as_json(await self._desk.ask(event["question"], **_about(event)))
            case "park":
                answer = await self._desk.park(event["question"], **_about(event))
                if isinstance(answer, Parked):
                    self.parked = answer
                    return {"parked": str(answer.approval_id)}
                return as_json(answer)
            case _:
                return plain(await self._do(event))

    async def _do(self, event: Event) -> Any:
        desk = self._desk
        done: Any = None
        match event["type"]:
            case "message":
                done = await desk.message(event.get("body"), to=event["to"], key=event.get("key"))
            case "inbox":
                done = await desk.inbox(after=event["after"], wait=timedelta(seconds=event["wait"]))
            case "ack":
                await desk.ack(event["ids"])
            case "task":
                done = await desk.task([_task(at, each) for at, each in enumerate(event["tasks"])])
            case "event":
                done = await desk.event(event["name"], event.get("data"), key=event.get("key"))
            case "artifact":
                done = await self._keep(event)
            case "remember":
                done = await desk.remember(_remembered(event))
            case "recall":
                found = await desk.recall(event["key"])
                done = None if found is None else {"value": found["value"]}
            case _:
                await desk.forget(event["key"])
        return done

    async def _keep(self, event: Event) -> Any:
        if event.get("uri") is not None:
            return await self._desk.link(event["uri"], name=event.get("name"))
        name, media_type = event.get("name") or "", event.get("media_type")
        if event.get("path") is None:
            data = base64.b64decode(event.get("data") or "")
            return await self._desk.artifact(name, data, media_type=media_type)
        with open_inside(self._directory, event["path"]) as file:
            name, content = name or Path(event["path"]).name, Path(f"/dev/fd/{file.fileno()}")
            return await self._desk.artifact(name, content, media_type=media_type)


def open_inside(directory: Path, path: str) -> BinaryIO:
    """Open a file of the agent's own directory. The agent may change the directory meanwhile, so no link is followed
    once the path is resolved: it could lead this process, which sees more than the agent, to anything else."""
    try:
        inside = directory.resolve()
        target = (inside / path).resolve()
        below = target.relative_to(inside)
        return _open_below(inside, below.parts)
    except PermissionError:
        raise Invalid(f"The file {path!r} may not be read.", field="path") from None
    except (OSError, RuntimeError, ValueError):  # also a name that no file can have, or a link that leads to itself
        raise Invalid(f"There is no file {path!r} in the directory of this session.", field="path") from None


def _open_below(directory: Path, parts: Sequence[str]) -> BinaryIO:
    """Open step by step without following any link, as they may have been put there after the path was resolved."""
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for each in parts[:-1]:
            following = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = following
        name = parts[-1] if parts else "."
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    opened = os.fdopen(file, "rb", closefd=True) if stat.S_ISREG(os.fstat(file).st_mode) else None
    if opened is None:
        os.close(file)
        raise FileNotFoundError
    return opened


def plain(value: Any) -> Any:
    """As JSON has it: ids and times are text."""
    return json.loads(json.dumps(value, default=str))


def _remembered(event: Event) -> Remembered:
    ttl = event.get("ttl")
    span = parse_duration(ttl, field="ttl") if ttl else None
    return Remembered(event["key"], event.get("value"), span, event.get("confidence"))


def _task(at: int, given: Mapping[str, Any]) -> TaskForm:
    for name, value in given.items():
        fits, wanted = TASK_FIELDS.get(name, _NO_FIELD)
        if not fits(value):
            raise Invalid(f"tasks.{at}.{name}: {wanted}", field=f"tasks.{at}.{name}")
    timeout, most = given.get("timeout"), given.get("max_attempts")
    return TaskForm(
        given.get("role") or "", given.get("key"), given.get("prompt"), given.get("input"),
        tuple(given.get("depends_on") or ()), parse_duration(timeout, field="timeout") if timeout else None,
        1 if most is None else most,
    )  # fmt: skip


def _about(event: Event) -> dict[str, Any]:
    options = [Option(each["id"], each["label"], each["approves"]) for each in event.get("options") or ()]
    return {"options": options or APPROVE_OR_REFUSE, "detail": event.get("detail"), "key": event.get("key")}


def _is_base64(value: object) -> bool:
    try:
        base64.b64decode(value if isinstance(value, str) else "!", validate=True)
    except ValueError:
        return False
    return True


def _is_option(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("label"), str)
        and isinstance(value.get("approves"), bool)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_seq(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_texts_or_none(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _is_attempts_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ATTEMPTS)


TASK_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "role": (lambda value: isinstance(value, str), "Name a role of the session."),
    "key": (_is_text_or_none, "Give a text, by which other tasks call it."),
    "prompt": (_is_text_or_none, "Give a text."),
    "input": (lambda _: True, ""),
    "depends_on": (_is_texts_or_none, "Give a list of keys or ids of tasks."),
    "timeout": (_is_text_or_none, "Give a duration, such as “30m”."),
    "max_attempts": (_is_attempts_or_none, f"Give a whole number from 1 to {MOST_ATTEMPTS}."),
}
_NO_FIELD: tuple[Callable[[object], bool], str] = (lambda _: False, "There is no such field.")
_QUESTION: Mapping[str, Callable[[object], bool]] = {
    "question": lambda value: isinstance(value, str),
    "options": lambda value: value is None or (isinstance(value, list) and all(map(_is_option, value))),
    "detail": lambda value: value is None or isinstance(value, dict),
    "key": lambda value: value is None or isinstance(value, str),
}
_KEY: Mapping[str, Callable[[object], bool]] = {"key": lambda value: isinstance(value, str)}
LATER = ("ask", "inbox")  # these may take long: others go on meanwhile
REQUESTS: Shapes = {
    "ask": _QUESTION,
    "park": _QUESTION,
    "checkpoint": {"data": _is_base64},
    "message": {
        "to": lambda value: isinstance(value, str),
        "key": lambda value: value is None or isinstance(value, str),
    },
    "inbox": {"after": _is_seq, "wait": lambda value: _is_number(value) and float(str(value)) < MOST_SECONDS},
    "ack": {"ids": lambda value: isinstance(value, list) and all(map(_is_seq, value))},
    "task": {"tasks": lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value)},
    "event": {"name": lambda value: isinstance(value, str), "key": _is_text_or_none},
    "artifact": {
        "name": _is_text_or_none,
        "data": lambda value: value is None or _is_base64(value),
        "path": _is_text_or_none,
        "uri": _is_text_or_none,
        "media_type": _is_text_or_none,
    },
    "remember": {**_KEY, "ttl": _is_text_or_none, "confidence": lambda value: value is None or _is_number(value)},
    "recall": _KEY,
    "forget": _KEY,
}
