"""How request bodies arrive: at a minimum rate, and those of callers who are not signed in within one shared limit."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from starlette.types import Message, Receive

from rota.errors import Busy, TooSlow

MINIMUM_RATE = 16_384  # bytes a second


class Body:
    """The body of one request. `receive` stands in for that of ASGI and has a deadline: the client may pause for
    `pause` at most, and on the whole it must send at MINIMUM_RATE. Only time spent waiting for the client counts."""

    def __init__(self, receive: Receive, pause: timedelta) -> None:
        self.size = 0
        self.complete = False
        self._receive = receive
        self._pause = pause.total_seconds()
        self._waited = 0.0
        self._timeout: asyncio.Timeout | None = None
        self._crowded_out = False

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        if self._crowded_out:
            raise _crowded_out()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        ahead = self.size / MINIMUM_RATE - self._waited
        try:
            async with asyncio.timeout(self._pause + min(0.0, ahead)) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            raise (_crowded_out() if self._crowded_out else self._too_slow()) from None
        finally:
            self._timeout = None
        self._waited += loop.time() - begun
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.complete = not message.get("more_body")
        return message

    def crowd_out(self) -> None:
        """Have `receive` raise Busy, at once if it waits."""
        self._crowded_out = True
        if self._timeout:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def _too_slow(self) -> TooSlow:
        return TooSlow(
            f"The body stopped arriving after {self.size:,} bytes. Send it without a pause of over {self._pause:g} s,"
            f" and at {MINIMUM_RATE:,} bytes a second or more.",
            code="body_too_slow",
        )


class UnauthenticatedBodies:
    """All bodies of callers who are not known yet. When they exceed the limit, the largest unfinished one is refused:
    a few clients that send large bodies slowly cannot keep small webhooks and sign-ins out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Body, int] = {}
        self._total = 0

    @contextmanager
    def counting(self, body: Body) -> Iterator[None]:
        self._sizes[body] = 0
        try:
            yield
        finally:
            self.release(body)

    def release(self, body: Body) -> None:
        """Stop counting a body: its sender is known, or it is gone."""
        self._total -= self._sizes.pop(body, 0)

    def update(self, body: Body) -> None:
        """Count what arrived of a body, if it is still counted. Raises Busy if there is no room for it."""
        if body not in self._sizes:
            return
        self._total += body.size - self._sizes[body]
        self._sizes[body] = body.size
        while self._total > self._limit:
            largest = max(
                (each for each in self._sizes if each is body or not each.complete), key=lambda each: each.size
            )
            self.release(largest)
            if largest is body:
                raise _crowded_out()
            largest.crowd_out()


def _crowded_out() -> Busy:
    """Made anew each time and kept nowhere: its traceback refers to the body, which must be freed at once."""
    return Busy(
        "The server receives too much from callers who are not signed in. Try again in a moment.",
        code="too_many_bodies",
    )
