"""The way to a desk that keeps what it is told and answers as prepared."""

import asyncio
import base64
import json
from collections.abc import Generator, Mapping
from typing import Any

from rota.model.text import clean_json

ANSWER = {"approval_id": "1", "option_id": "approve", "approved": True, "text": "Go.", "answered_by": "2"}


class Reply:
    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return self.result()

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class Line:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}

    def send(self, message: Mapping[str, Any]) -> None:
        """Refuses what the real one would."""
        json.dumps(message, allow_nan=False)
        clean_json(message)
        self.sent.append(dict(message))

    def request(self, message: Mapping[str, Any]) -> Reply:
        self.send(message)
        match message["type"]:
            case "park":
                return Reply(self.answers.get(message["key"], {"parked": "1"}))
            case "message":
                return Reply({"id": 7})
            case "recall":
                return Reply(self.memory.get(message["key"]))
            case kind:
                return Reply(self.answers.get(kind))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.sent if each["type"] == kind]

    @property
    def checkpoint(self) -> bytes | None:
        stored = self.of("checkpoint")
        return base64.b64decode(stored[-1]["data"]) if stored else None

    @property
    def text(self) -> str:
        return "".join(each["text"] for each in self.of("say"))

    @property
    def used(self) -> list[tuple[str, Any, Any]]:
        return [(each["name"], each.get("result"), each.get("outcome")) for each in self.of("tool")]
