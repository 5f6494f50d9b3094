"""HEAD, wherever there is GET: the same status and headers, and nothing behind them."""

from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _Answered(Exception):
    """Leads out of an answer whose headers are sent: of a stream nothing is begun, of a file nothing more is read."""


class Heads:
    """ASGI, before anything that asks for the method: to all of it a HEAD is a GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def send_head(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body"})
            raise _Answered

        with suppress(_Answered):
            await self._app({**scope, "method": "GET"}, receive, send_head)
        return None
