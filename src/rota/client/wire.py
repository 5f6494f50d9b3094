"""One request and its answer: repeated until it arrives, and a refusal as the error it is.

Everything above is written once, with `await`. The blocking wire never suspends, so that `blocking` can run the same
code without an event loop.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from rota.errors import STATUS, Broken, Invalid, Refused, RotaError, Unauthenticated

ERRORS: Mapping[int, type[RotaError]] = {status: kind for kind, status in STATUS.items()}
TOLD = {"title", "status", "code", "detail", "field"}
ANSWERS_WITHIN = 30.0
TOO_MANY = 429
PASSING = {TOO_MANY, 502, 503, 504}
LONGEST_KEY = 200
PIECE = 262_144
ADOPTED_WITHIN = 180.0
LOOK_AGAIN = 0.5
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
MOST_DOUBLED = 10  # who waits for days tries more often than a number can be doubled


class Unreachable(Broken):
    """Nobody answers there, or the answer broke off too often."""

    code = "unreachable"


def address(url: str) -> str:
    """Where Rota answers, as httpx takes it."""
    try:
        read = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        read = httpx.URL()
    if read.scheme not in {"http", "https"} or not read.host:
        raise Invalid(f"{url!r} is no address of Rota; write one like http://127.0.0.1:7682.", field="url")
    return url


def bearer(token: str) -> dict[str, str]:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid("This is no token; one begins with rota_ and has neither spaces nor line ends.", field="token")
    return {"Authorization": f"Bearer {token}"} if token else {}


def checked_key(key: str) -> str:
    """As a header can carry it. An empty one is a variable that was not set: with another in its place, what should be
    done once would be done each time."""
    if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable() or key != key.strip():
        told = f"An Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters, the first and last no space."
        raise Invalid(told, code="invalid_key", field="key")
    return key


class NoDesk(Broken):
    """This process is no agent at work."""

    code = "no_desk"


@dataclass(frozen=True, slots=True)
class Call:
    """`content` gives the body anew for each try; `key` makes the tries one write."""

    method: str
    path: str
    json: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Callable[[], bytes | Iterable[bytes]] | None = None
    key: str | None = None
    within: float = ANSWERS_WITHIN

    def options(self) -> dict[str, Any]:
        headers = dict(self.headers)
        if self.method not in {"GET", "HEAD"}:
            headers["Idempotency-Key"] = uuid.uuid4().hex if self.key is None else checked_key(self.key)
        return {
            "params": {name: value for name, value in self.params.items() if value is not None},
            "headers": headers,
            "timeout": httpx.Timeout(self.within, connect=10.0),
            **({"json": self.json} if self.json is not None else {}),
        }


class Wire(Protocol):
    async def request(self, call: Call, options: Mapping[str, Any]) -> httpx.Response: ...

    def streaming(self, call: Call, options: Mapping[str, Any]) -> AbstractAsyncContextManager["Stream"]: ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that comes piece by piece."""

    answer: httpx.Response
    pieces: AsyncIterator[bytes]
    read: Callable[[], Any]


class AsyncWire:
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._http = httpx.AsyncClient(base_url=address(url), headers=headers)

    async def request(self, call: Call, options: Mapping[str, Any]) -> httpx.Response:
        return await self._http.request(call.method, call.path, content=_later(call.content), **options)

    @asynccontextmanager
    async def streaming(self, call: Call, options: Mapping[str, Any]) -> AsyncIterator[Stream]:
        async with self._http.stream(call.method, call.path, **options) as answer:
            yield Stream(answer, answer.aiter_bytes(), answer.aread)  # as they come: a size would be waited for

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()


class BlockingWire:
    """The same without an event loop: nothing here ever suspends."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._http = httpx.Client(base_url=address(url), headers=headers)

    async def request(self, call: Call, options: Mapping[str, Any]) -> httpx.Response:
        return self._http.request(call.method, call.path, content=call.content() if call.content else None, **options)

    @asynccontextmanager
    async def streaming(self, call: Call, options: Mapping[str, Any]) -> AsyncIterator[Stream]:
        with self._http.stream(call.method, call.path, **options) as answer:
            yield Stream(answer, _stepping(answer.iter_bytes()), _blocking_read(answer))

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 — nobody else runs here

    async def close(self) -> None:
        self._http.close()


def _blocking_read(answer: httpx.Response) -> Callable[[], Any]:
    async def read() -> bytes:
        return answer.read()

    return read


async def _stepping(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _later(content: Callable[[], bytes | Iterable[bytes]] | None) -> Any:
    given = content() if content else None
    return given if given is None or isinstance(given, bytes) else _stepping(iter(given))


class Line:
    """Sends calls until they are answered, for as long as `patience` lasts. Until the first answer, an address where
    nothing listens is tried for `connect_patience` only: it may be the wrong one.

    A `token_file` is written anew when another attempt adopts the agent that calls; it is read when the token in it is
    worth nothing any more."""

    def __init__(
        self, wire: Wire, *, patience: float, connect_patience: float | None = None, token_file: Path | None = None
    ) -> None:
        self.wire = wire
        self.patience = patience
        self._first_patience = patience if connect_patience is None else min(connect_patience, patience)
        self._token_file = token_file

    async def send(self, call: Call) -> httpx.Response:
        options = call.options()
        if self._token_file is None:
            return await self._send(call, options)
        token = read_token(self._token_file)
        while True:
            options["headers"]["Authorization"] = f"Bearer {token}"
            try:
                return await self._send(call, options)
            except Unauthenticated as over:
                if over.code != "attempt_over":
                    raise
                token = await self._next_token(self._token_file, token, over)

    async def _next_token(self, file: Path, token: str, over: Unauthenticated) -> str:
        until = time.monotonic() + ADOPTED_WITHIN
        while (found := read_token(file)) == token:
            if time.monotonic() >= until:
                raise over
            await self.wire.pause(LOOK_AGAIN)
        return found

    async def _send(self, call: Call, options: Mapping[str, Any]) -> httpx.Response:
        began, tries = time.monotonic(), 0
        while True:
            wait, until = 0.0, began + self.patience
            try:
                answer = await self.wire.request(call, options)
            except httpx.LocalProtocolError as wrong:  # ours, so no later try is better
                raise Invalid(f"This cannot be sent: {wrong}.") from None
            except httpx.TransportError as failure:
                if isinstance(failure, httpx.ConnectError):
                    until = began + self._first_patience
                if time.monotonic() >= until:
                    raise unreachable(failure) from failure
            except ValueError:  # before anything was sent
                told = "This cannot be sent: it holds a number that JSON does not have, or half a character."
                raise Invalid(told) from None
            else:
                self._first_patience = self.patience
                wait = asked_to_wait(answer)
                if answer.status_code not in PASSING or time.monotonic() + wait >= until:
                    return checked(answer)
            tries += 1
            left = max(until - time.monotonic(), 0.0)
            await self.wire.pause(max(wait, min(pause_after(tries), left)))

    async def json(self, call: Call) -> Any:
        answer = await self.send(call)
        if not answer.content and call.method != "GET":
            return None
        try:
            given = answer.json()
        except ValueError:
            raise not_rota(answer) from None
        if not isinstance(given, dict):
            raise not_rota(answer)
        return Answer(given, answer)


class Answer(dict[str, Any]):
    """What a route gives, which is an object always. Who looks for a name that is not there asks another program, or a
    Rota of another time."""

    def __init__(self, given: Mapping[str, Any], answer: httpx.Response) -> None:
        super().__init__(given)
        self._answer = answer

    def __missing__(self, name: str) -> Any:
        raise Unnamed(self._answer, name)


def pause_after(tries: int) -> float:
    """Seconds before the next try: ever longer, up to a limit."""
    return min(FIRST_PAUSE * 2.0 ** min(tries, MOST_DOUBLED), LONGEST_PAUSE)


def asked_to_wait(answer: httpx.Response) -> float:
    """Seconds, by a server that was asked too often."""
    asked = answer.headers.get("Retry-After", "0")
    return float(asked) if answer.status_code == TOO_MANY and asked.isdecimal() else 0.0


def read_token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as failure:
        raise NoDesk(f"The token cannot be read from {file}: {failure.strerror}.") from None


def unreachable(failure: httpx.TransportError) -> Unreachable:
    told = str(failure) or type(failure).__name__
    where = f" at {failure.request.url.copy_with(query=None)}" if failure._request else ""  # noqa: SLF001 — `request` raises
    return Unreachable(f"Nobody answers{where}: {told}. Is Rota up, and ROTA_URL right?")


def broken_off(failure: httpx.TransportError) -> Unreachable:
    return Unreachable(f"The answer broke off before its end: {str(failure) or type(failure).__name__}. Ask again.")


def not_rota(answer: httpx.Response) -> Unreachable:
    """A proxy's page, or another program at this address."""
    kind, where = answer.headers.get("Content-Type", "something"), answer.url.copy_with(query=None)
    return Unreachable(
        f"What answers at {where} is not Rota: it gives {kind[:80]}. Is ROTA_URL right?", code="not_rota"
    )


class Unnamed(Unreachable, KeyError):
    """The answer is not what this program expects. For who reads it as any other mapping, a name that is missing."""

    code = "not_rota"

    def __init__(self, answer: httpx.Response, name: str) -> None:
        where = answer.url.copy_with(query=None)
        super().__init__(
            f"What answers at {where} is not Rota, or not of this version: it gives no {name!r}. Is ROTA_URL right?"
        )


def checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    raise refusal(answer)


def refusal(answer: httpx.Response) -> RotaError:
    """The error that a problem+json tells, with its code, its field and its further facts."""
    try:
        told = answer.json()
        detail, code = str(told["detail"]), str(told["code"])
    except (ValueError, KeyError, TypeError):
        return Broken(f"The server answered {answer.status_code} {answer.reason_phrase}.")
    kind = ERRORS.get(answer.status_code, Refused if answer.status_code < 500 else Broken)
    facts = {name: value for name, value in told.items() if name not in TOLD}
    field = told.get("field")
    return kind(detail, code=code, field=field if isinstance(field, str) else None, **facts)


@contextmanager
def opened(
    content: bytes | str | Path, told: Callable[[int], object] = lambda _: None
) -> Iterator[Callable[[], bytes | Iterable[bytes]]]:
    """A body that can be sent anew for each try. `told` hears how much of a file was sent in the last."""
    if isinstance(content, Path):
        with content.open("rb") as file:

            def pieces() -> Iterator[bytes]:
                told(-file.tell())
                file.seek(0)
                for piece in iter(lambda: file.read(PIECE), b""):
                    yield piece
                    told(len(piece))

            yield pieces
    else:
        data = content.encode() if isinstance(content, str) else content
        yield lambda: data
