"""Admits event streams in turn. Opening one takes a few round trips to the database; a thousand that are opened at
once, as after a restart, would fill the queue for connections, and other requests with them would be refused."""

import asyncio
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.errors import Busy
from rota.http.errors import answer, of_error

ADMIT_SECONDS = 10.0
ENDINGS = ("/trace", "/stream", "/top")


class Admitting:
    """ASGI. Half of the pool's connections open streams, the rest is left to other requests."""

    def __init__(self, app: ASGIApp, *, pool_size: int) -> None:
        self._app = app
        self._turns = asyncio.Semaphore(max(1, pool_size // 2))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not opens_stream(scope):
            return await self._app(scope, receive, send)
        try:
            async with asyncio.timeout(ADMIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            refused = Busy("Too many streams are being opened at once; try again in a moment.")
            return await answer(of_error(refused))(scope, receive, send)
        with ExitStack() as turn:
            turn.callback(self._turns.release)
            return await self._app(scope, receive, _releasing(turn, send))


def opens_stream(scope: Scope) -> bool:
    """By its address, before anything is asked of the database."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    path, query = scope["path"], scope["query_string"]
    return path.endswith(ENDINGS) or (path.startswith("/w/") and b"live=" in query)


def _releasing(turn: ExitStack, send: Send) -> Send:
    """The turn ends when the answer begins."""

    async def answer(message: Message) -> None:
        turn.close()
        await send(message)

    return answer
