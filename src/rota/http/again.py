"""Makes a change again that PostgreSQL ended: of two that wait for each other, or that save the same, it ends one."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.db.pool import MOST_OVERTAKEN
from rota.http.bodies import is_upload, replay
from rota.http.errors import ENDED
from rota.model.scope import READING


class TryingAgain:
    """ASGI, inside the body's guard, which has read the body. Of a try that was ended nothing is left: its transaction
    was taken back, and what it would answer is held back here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING or is_upload(scope):
            return await self._app(scope, receive, send)
        body = (await receive()).get("body", b"")
        for _ in range(MOST_OVERTAKEN - 1):
            ended = asyncio.Event()
            await self._app({**scope, ENDED: ended}, replay(body, receive), _unless(ended, send))
            if not ended.is_set():
                return None
        return await self._app(scope, replay(body, receive), send)


def _unless(ended: asyncio.Event, send: Send) -> Send:
    async def answer(message: Message) -> None:
        if not ended.is_set():
            await send(message)

    return answer
