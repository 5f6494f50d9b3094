"""Messages of the protocol over the pipes of a program: whole, in order, and no faster than they are taken in."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from rota.executors.events import Lines
from rota.executors.pipes import Pipe
from rota.executors.transcript import Words

LONGEST_MESSAGE = 10_000_000
UPDATE = "session/update"

Message = dict[str, Any]


class Wire:
    """A transport for the protocol's library. Updates are not left to it: it would start a task for each, however
    fast they come, and swallow what the desk says of them. What is no message becomes text, so that it is seen."""

    def __init__(
        self,
        stdin: Pipe,
        stdout: Pipe,
        words: Words,
        hear: Callable[[Any], Awaitable[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._stdin, self._stdout, self._words, self._hear, self._fail = stdin, stdout, words, hear, fail
        self._lines = Lines(LONGEST_MESSAGE)
        self._arrived: deque[bytes | Message] = deque()
        self._writing = asyncio.Lock()

    async def send(self, message: Message) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._writing:
            await self._stdin.write(line)

    async def receive(self) -> Message | None:
        """The next message that is not an update, or None at the end."""
        try:
            while True:
                while self._arrived:
                    if message := await self._take(self._arrived.popleft()):
                        return message
                if not (data := await self._stdout.read()):
                    await self._words.hear(self._lines.rest(), last=True)
                    return None
                self._sort(data)
        except Exception as failure:  # the desk's, of whatever kind: the library would only write it into a log
            self._fail(failure)
            return None

    async def close(self) -> None:
        """Nothing: the pipes belong to the program."""

    def _sort(self, data: bytes) -> None:
        for perhaps, piece in self._lines.feed(data):
            message = parse(piece) if perhaps else None
            self._arrived.append(piece if message is None else message)

    async def _take(self, arrived: bytes | Message) -> Message | None:
        if isinstance(arrived, bytes):
            await self._words.hear(arrived)
        elif arrived.get("method") == UPDATE:
            await self._hear(arrived.get("params"))
        else:
            return arrived
        return None


def parse(line: bytes) -> Message | None:
    """The message of a line, if it is one."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("jsonrpc") == "2.0" else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
