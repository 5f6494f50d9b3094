"""Server-sent events: an answer that goes on, as long as its reader keeps up and may still read."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from rota.db.pool import PASSING
from rota.errors import Refused, TooMany
from rota.http.context import sign, web
from rota.http.errors import answer, of_error

log = logging.getLogger(__name__)

STILL_HERE = b": still here\n\n"
CUT_OFF_SECONDS = 45.0  # where the kernel can, it is quicker (daemon.bind)
ASK_AGAIN_SECONDS = 30.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Cuts off a reader who takes nothing for a while, instead of keeping what it does not read; and one whose token or
    login no longer holds. Refused with 429 if the caller has too many streams open."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(_while_allowed(request, lines), headers=HEADERS)
        self._slot = web(request).streams.open(request.state.caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._slot)
            except TooMany as refused:
                return await answer(of_error(refused))(scope, receive, send)
            return await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(CUT_OFF_SECONDS):
                await send(message)

        try:
            await super().stream_response(send_soon)
        except TimeoutError:
            log.info("reader.cut_off")


async def _while_allowed(request: Request, lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    asked = time.monotonic()
    async with aclosing(lines):
        async for line in lines:
            if time.monotonic() - asked >= ASK_AGAIN_SECONDS:
                if not await _allowed(request):
                    return
                asked = time.monotonic()
            yield line


async def _allowed(request: Request) -> bool:
    try:
        await sign(request, request.path_params["workspace"])
    except Refused as refusal:
        log.info("reader.refused", extra={"code": refusal.code})
        return False
    except PASSING:  # not known just now; asked again later
        return True
    return True
