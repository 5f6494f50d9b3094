"""An agent's words on their way to the desk: decoded, cleaned, in order, and never more than the limit."""

import asyncio
import codecs
import re
from collections.abc import Mapping
from typing import Any

from rota.executors.pipes import Pipe
from rota.model.executor import Desk
from rota.model.text import clean

_FIRST_WORD = re.compile(rb"\A\S+")


class Transcript:
    """Counts what is kept. Beyond the limit there is one note, and then silence; usage is always charged."""

    def __init__(self, desk: Desk, limit: int) -> None:
        self._desk = desk
        self._limit = self._left = limit
        self._turn = asyncio.Lock()  # two streams speak; what one says is not cut by the other's note
        self.full = False

    async def say(self, text: str, voice: str = "") -> None:
        async with self._turn:
            kept = self._keep(clean(text))
            if kept:
                await self._desk.say(kept, voice=voice)

    async def tool(self, name: str, data: Mapping[str, Any], size: int) -> None:
        """`size` is what the event took on the wire."""
        async with self._turn:
            if size <= self._left and not self.full:
                self._left -= size
                await self._desk.tool(name, data)
            elif not self.full:
                await self._desk.say(self._note())

    async def usage(self, unit: str, amount: float) -> None:
        async with self._turn:
            await self._desk.usage(unit, amount)

    def _keep(self, text: str) -> str:
        if self.full or not text:
            return ""
        size = len(text.encode())
        if size <= self._left:
            self._left -= size
            return text
        return text.encode()[: self._left].decode(errors="ignore") + self._note()

    def _note(self) -> str:
        self.full = True
        return f"\n[The output is over {self._limit:,} bytes; the rest is not kept.]\n"


class Words:
    """One stream of bytes becoming text, piece by piece as it arrives."""

    def __init__(self, transcript: Transcript, voice: str = "") -> None:
        self._transcript, self._voice = transcript, voice
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def hear(self, data: bytes, *, last: bool = False) -> None:
        if (data or last) and not self._transcript.full:
            await self._transcript.say(self._decoder.decode(data, last), self._voice)


class Tail:
    """The end of a stream, for the reason of a failure."""

    SIZE = 2048

    def __init__(self) -> None:
        self._kept = b""
        self._cut = False

    def hear(self, data: bytes) -> None:
        kept = self._kept + data[-self.SIZE :]
        self._cut = self._cut or len(kept) > self.SIZE or len(data) > self.SIZE
        self._kept = kept[-self.SIZE :]

    def text(self) -> str:
        """Not the end of a word whose beginning is gone: it may be half a secret, which nobody would know as one."""
        kept = _FIRST_WORD.sub(b"", self._kept) if self._cut else self._kept
        return kept.decode(errors="replace")

    def last_line(self) -> str:
        lines = self.text().split("\n")
        return clean(next((line.strip() for line in reversed(lines) if line.strip()), ""))


async def hear_text(pipe: Pipe, transcript: Transcript, voice: str, tail: Tail | None = None) -> None:
    """Say all that comes out of a pipe."""
    words = Words(transcript, voice)
    while data := await pipe.read():
        if tail is not None:
            tail.hear(data)
        await words.hear(data)
    await words.hear(b"", last=True)
