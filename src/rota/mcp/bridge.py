"""Between a client that speaks over pipes and the server: a line in is a request to `/mcp`, its answer a line out."""

import asyncio
import base64
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import orjson

from rota.client.wire import PASSING, TOO_MANY, address, asked_to_wait, bearer, pause_after
from rota.mcp import forms, protocol
from rota.mcp.protocol import INTERNAL_ERROR, METHOD_HEADER, NAME_HEADER, PARSE_ERROR, VERSION_HEADER
from rota.mcp.tools import ADDS, BY_NAME

PIECE = 65_536
AT_ONCE = 32
ANSWERS_WITHIN = httpx.Timeout(120.0, connect=10.0)
KEPT = 2.0  # less than a server keeps an idle connection, or a request could be sent into one that it just closes
PATIENCE = 5.0  # with a server that is busy: who started this waits too
LAST_WORDS_WITHIN = 10.0  # for what is under way when the input ends
LATE = "The input has ended, and the server has not answered since. Look whether it was done."


class Bridge:
    """One client's way to one server. Requests are answered as the server answers them, in any order."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        write: Callable[[bytes], None],
        warn: Callable[[str], None],
        patience: float = PATIENCE,
        last_words_within: float = LAST_WORDS_WITHIN,
    ) -> None:
        headers = {**bearer(token), "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self._http = httpx.AsyncClient(
            base_url=address(url), headers=headers, timeout=ANSWERS_WITHIN, limits=httpx.Limits(keepalive_expiry=KEPT)
        )
        self._url, self._write, self._warn = url, write, warn
        self._patience, self._last_words_within = patience, last_words_within
        self._free = asyncio.Semaphore(AT_ONCE)
        self._version: str | None = None  # what `initialize` agreed on
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._ending = False

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Until the input ends, and what is under way then is answered, or told to be late."""
        async with self._http:
            tasks: set[asyncio.Task[None]] = set()
            async for line in lines:
                if line.strip():
                    await self._free.acquire()
                    task = asyncio.create_task(self._take(line))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    task.add_done_callback(lambda _: self._free.release())
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=self._last_words_within)
                self._ending = True
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)

    async def _take(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError as wrong:
            return self._say(protocol.error(None, PARSE_ERROR, f"This line is not JSON: {wrong}."))
        if not isinstance(message, dict):
            return self._say(await self._answered(message))
        if message.get("method") == "notifications/cancelled":
            return self._cancel(message)
        number, task = str(message.get("id")), asyncio.current_task()
        assert task
        self._under_way[number] = task
        try:
            return self._say(await self._answered(message))
        finally:
            self._under_way.pop(number, None)

    def _cancel(self, message: dict[str, Any]) -> None:
        """Whoever takes a request back wants no answer to it."""
        params = message.get("params")
        number = params.get("requestId") if isinstance(params, dict) else None
        if task := self._under_way.get(str(number)):
            task.cancel()

    async def _answered(self, message: Any) -> Any:
        try:
            return await self._answer(message)
        except asyncio.CancelledError:
            if not self._ending:
                raise
            return self._failed(message, LATE)

    async def _answer(self, message: Any) -> Any:
        try:
            answered = await self._send(message)
        except (httpx.ConnectError, httpx.ConnectTimeout) as failure:
            return self._failed(message, f"Nobody answers at {self._url}: {failure}. Is Rota up, and ROTA_URL right?")
        except httpx.HTTPError as failure:
            told = str(failure) or type(failure).__name__
            return self._failed(message, f"The answer of {self._url} was lost: {told}. Look whether it was done.")
        answer = _read(answered)
        if answer is None and answered.status_code >= 300:
            return self._failed(message, f"{self._url} answered {answered.status_code} {answered.reason_phrase}.")
        if answer is None and (answered.content or _waits(message)):  # a page: who waits would wait for ever
            return self._failed(message, f"What answers at {self._url} is not Rota. Is ROTA_URL right?")
        if isinstance(answer, dict) and answer.get("id") is None and "error" in answer:
            told = answer["error"]  # refused before anybody read which request it is
            return self._failed(message, told["message"], told["code"], told.get("data"))
        self._remember(message, answer)
        return answer

    async def _send(self, message: Any) -> httpx.Response:
        """Again while the server is busy, unless that might do it twice."""
        until, tries = time.monotonic() + self._patience, 0
        while True:
            answered = await self._http.post("/mcp", content=orjson.dumps(message), headers=self._headers(message))
            status, wait = _busy(answered)
            may_repeat = status == TOO_MANY or _may_repeat(message)
            if status not in PASSING or not may_repeat or time.monotonic() + wait >= until:
                return answered
            tries += 1
            await asyncio.sleep(max(wait, pause_after(tries)))

    def _headers(self, message: Any) -> dict[str, str]:
        """What the protocol wants to see outside the body."""
        if not isinstance(message, dict):
            return {VERSION_HEADER: self._version} if self._version else {}
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        stated = meta.get(f"{protocol.META}protocolVersion") if isinstance(meta, dict) else None
        version, method, name = stated or self._version, message.get("method"), params.get("name")
        found = {VERSION_HEADER: version, METHOD_HEADER: method, NAME_HEADER: name}
        return {name: _header(value) for name, value in found.items() if isinstance(value, str)}

    def _remember(self, message: Any, answer: Any) -> None:
        if isinstance(message, dict) and message.get("method") == "initialize" and isinstance(answer, dict):
            self._version = (answer.get("result") or {}).get("protocolVersion")

    def _failed(self, sent: Any, message: str, code: int = INTERNAL_ERROR, data: Any = None) -> Any:
        """An error for every request among what was sent; of a notification only the log tells."""
        self._warn(message)
        if isinstance(sent, list):
            return [told for each in sent if (told := self._error(each, message, code, data))] or None
        return self._error(sent, message, code, data)

    @staticmethod
    def _error(sent: Any, message: str, code: int, data: Any) -> dict[str, Any] | None:
        if isinstance(sent, dict) and "method" in sent and "id" not in sent:
            return None
        return protocol.error(sent.get("id") if isinstance(sent, dict) else None, code, message, data)

    def _say(self, answer: Any) -> None:
        if answer is not None:
            self._write(orjson.dumps(answer) + b"\n")


def _header(value: str) -> str:
    """As it is if a header can carry it, else wrapped."""
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def _read(answered: httpx.Response) -> Any:
    """What the server says in its protocol; None if it says nothing, or something else."""
    try:
        answer = orjson.loads(answered.content)
    except orjson.JSONDecodeError:
        return None
    said = answer if isinstance(answer, list) else [answer]
    return answer if said and all(isinstance(each, dict) and each.get("jsonrpc") for each in said) else None


def _busy(answered: httpx.Response) -> tuple[int, float]:
    """The status of an answer, or of what a tool was answered, and how many seconds it asks to wait."""
    match _read(answered):
        case {"result": {"isError": True, "structuredContent": {"status": int(status), **told}}}:
            wait = told.get("retry_after")
            return status, float(wait) if isinstance(wait, int) else 0.0
    return answered.status_code, asked_to_wait(answered)


def _may_repeat(sent: Any) -> bool:
    """Whether it does nothing more when it is done twice, or has a key by which it is done once."""
    if isinstance(sent, list):
        return all(map(_may_repeat, sent))
    match sent:
        case {"method": "tools/call", "params": {"arguments": {forms.KEY: str()}}}:
            return True
        case {"method": "tools/call", "params": {"name": str(name)}}:
            return name in BY_NAME and BY_NAME[name].effect is not ADDS
    return True


def _waits(sent: Any) -> bool:
    """Whether something among what was sent is answered."""
    return any(isinstance(each, dict) and "id" in each for each in (sent if isinstance(sent, list) else [sent]))


async def lines_of(descriptor: int) -> AsyncIterator[bytes]:
    """The lines of a pipe, a file or a terminal. A thread of its own reads them: not all of these can be waited for,
    and none must keep this process from ending."""
    loop, found = asyncio.get_running_loop(), asyncio.Queue[bytes | None](AT_ONCE)

    def read() -> None:
        with suppress(OSError):  # what cannot be read has ended
            for line in _lines(descriptor):
                asyncio.run_coroutine_threadsafe(found.put(line), loop).result()
        asyncio.run_coroutine_threadsafe(found.put(None), loop).result()

    threading.Thread(target=read, daemon=True).start()
    while (line := await found.get()) is not None:
        yield line


def _lines(descriptor: int) -> Iterator[bytes]:
    begun: list[bytes] = []
    while piece := os.read(descriptor, PIECE):
        *ended, rest = piece.split(b"\n")
        for line in ended:
            yield b"".join((*begun, line))
            begun = []
        begun.append(rest)
    yield b"".join(begun)
