"""Server-sent events: the data of each message is an event of ours, or else words, as they are."""

import re

from rota.executors.events import LONGEST_LINE, Counter, parse
from rota.executors.outbound import CutShort
from rota.executors.transcript import Transcript, Words
from rota.model.outcome import ErrorClass

_LINE_END = re.compile(rb"\r?\n|\r(?=[^\n])")  # a \r at the very end may still become \r\n
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerSentEvents:
    """No line break is added after a message: agents stream their sentences in pieces."""

    def __init__(self, transcript: Transcript, counter: Counter) -> None:
        self._words, self._counter = Words(transcript), counter
        self._held = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    async def hear(self, data: bytes) -> None:
        self._held += data
        if b"\n" in data or b"\r" in self._held[-len(data) - 1 :]:
            *lines, rest = _LINE_END.split(self._held)
            self._held = bytearray(rest)
            for line in lines:
                await self._take(bytes(line))
        if len(self._held) + self._size > LONGEST_LINE:
            raise CutShort(ErrorClass.AGENT_ERROR, f"a message of over {LONGEST_LINE:,} bytes", retryable=False)

    async def end(self) -> None:
        """The last message counts without the empty line too: that the body is whole, HTTP has said."""
        await self._take(bytes(self._held).removesuffix(b"\r"))
        await self._dispatch()
        await self._words.hear(b"", last=True)

    async def _take(self, line: bytes) -> None:
        if not line:
            await self._dispatch()
        name, _, value = line.removeprefix(_BYTE_ORDER_MARK).partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)

    async def _dispatch(self) -> None:
        message = b"\n".join(self._data)
        self._data, self._size = [], 0
        event = parse(message)
        if event is None:
            await self._words.hear(message)
        else:
            await self._counter.take(event, len(message))
