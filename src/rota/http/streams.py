"""Server-sent events: an answer that goes on, as long as its reader keeps up and may still read."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from rota.db.pool import PASSING
from rota.errors import Refused
from rota.http.context import sign

log = logging.getLogger(__name__)

STILL_HERE = b": still here\n\n"
CUT_OFF_SECONDS = 45.0  # where the kernel can, it is quicker (daemon.bind)
ASK_AGAIN_SECONDS = 30.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Cuts off a reader who takes nothing for a while, instead of keeping what it does not read; and one whose token or
    login no longer holds."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(_while_allowed(request, lines), headers=HEADERS)

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
