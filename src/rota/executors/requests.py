"""What a Python agent asks of the desk over its line, and gets an answer to."""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from rota.executors.events import Event, Shapes
from rota.model.approval import APPROVE_OR_REFUSE, Option, as_json
from rota.model.executor import Desk
from rota.model.outcome import Parked


class Requests:
    """Remembers the question for which the agent was parked."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.parked: Parked | None = None

    async def take(self, event: Event) -> Any:
        """What the agent gets back; `Refused` tells it why not."""
        match event["type"]:
            case "checkpoint":
                await self._desk.checkpoint(base64.b64decode(event["data"]))
                return None
            case "ask":
                return as_json(await self._desk.ask(event["question"], **_about(event)))
            case _:
                answer = await self._desk.park(event["question"], **_about(event))
                if isinstance(answer, Parked):
                    self.parked = answer
                    return {"parked": str(answer.approval_id)}
                return as_json(answer)


def _about(event: Event) -> dict[str, Any]:
    options = [Option(each["id"], each["label"], each["approves"]) for each in event.get("options") or ()]
    return {"options": options or APPROVE_OR_REFUSE, "detail": event.get("detail"), "key": event.get("key")}


def _is_base64(value: object) -> bool:
    try:
        base64.b64decode(value if isinstance(value, str) else "!", validate=True)
    except binascii.Error:
        return False
    return True


def _is_option(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("label"), str)
        and isinstance(value.get("approves"), bool)
    )


_QUESTION: Mapping[str, Callable[[object], bool]] = {
    "question": lambda value: isinstance(value, str),
    "options": lambda value: value is None or (isinstance(value, list) and all(map(_is_option, value))),
    "detail": lambda value: value is None or isinstance(value, dict),
    "key": lambda value: value is None or isinstance(value, str),
}
REQUESTS: Shapes = {"ask": _QUESTION, "park": _QUESTION, "checkpoint": {"data": _is_base64}}
