"""The HTTP server: uvicorn with h11, and the limits on clients that uvicorn does not have.

- The head of a request must arrive within a deadline, else the connection is closed.
- A request whose end two HTTP parsers could see in different places is refused.
- A response that is sent before the whole request was read closes the connection, but only after the client had time
  to read it.
"""

import asyncio
import socket
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import orjson
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rota.http.accepting import Acceptor, first_reserved
from rota.http.errors import problem
from rota.settings import Settings

LINGER_SECONDS = 5.0
CLOSE = (b"connection", b"close")
END_OF_HEAD = b"\r\n\r\n"


def create_server(app: ASGIApp, settings: Settings) -> "Server":
    config = uvicorn.Config(
        app,
        http=partial(ClientProtocol, header_seconds=settings.header_seconds),  # type: ignore[arg-type]  # called as a class is
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    return Server(config, below=first_reserved(settings))


class Server(uvicorn.Server):
    """Uvicorn, but for how connections are accepted."""

    def __init__(self, config: uvicorn.Config, *, below: int) -> None:
        super().__init__(config)
        self._below = below
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for each in sockets or []:
            acceptor = Acceptor(each, self._make_protocol, self.server_state.connections, below=self._below)
            self._accepting.append(asyncio.create_task(acceptor.run()))

    async def on_tick(self, counter: int) -> bool:
        for each in self._accepting:
            if each.done():  # a server that no longer accepts must not look alive
                each.result()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self._accepting:
            each.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _make_protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


class StrictConnection(h11.Connection):
    """Refuses requests that a proxy in front of Rota might split differently (RFC 9112, section 11.2). h11 itself
    refuses different lengths, unknown and repeated transfer encodings, and control characters."""

    fault: str | None = None

    def next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        head = self.trailing_data[0].partition(END_OF_HEAD)[0]
        if head.count(b"\n") != head.count(b"\r\n") or b"\n " in head or b"\n\t" in head:
            raise self._refusal("End each line of the head with CR LF, and do not continue it on the next line.")
        event = super().next_event()
        if isinstance(event, h11.Request) and b"transfer-encoding" in head.lower():
            names = {name for name, _ in event.headers}
            if {b"transfer-encoding", b"content-length"} <= names:
                raise self._refusal("Send either Content-Length or Transfer-Encoding, not both.")
            if b"transfer-encoding" in names and event.http_version < b"1.1":
                raise self._refusal("HTTP/1.0 has no Transfer-Encoding; send Content-Length.")
        return event

    def _refusal(self, fault: str) -> h11.RemoteProtocolError:
        self.fault = fault
        return h11.RemoteProtocolError(fault)


class LingeringTransport:
    """A connection's transport, as uvicorn uses it. Closing it is left to the protocol, which knows whether the client
    is still sending."""

    def __init__(self, transport: asyncio.Transport, protocol: "ClientProtocol") -> None:
        self._transport, self._protocol = transport, protocol
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._protocol.close()

    def is_closing(self) -> bool:
        return self._protocol.lingers or self._transport.is_closing()


class ClientProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *args: Any, header_seconds: timedelta, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn: StrictConnection = StrictConnection(h11.SERVER)
        self._app: ASGIApp = self.app
        self.app = self._answer
        self._header_seconds = header_seconds.total_seconds()
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    @property
    def lingers(self) -> bool:
        return self._linger_timer is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport
        self.transport = LingeringTransport(transport, self)  # type: ignore[assignment]
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._start_head_timer()
        else:
            self._stop_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._linger_timer:
            self._linger_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self.lingers:
            self._socket.abort()
        else:
            super().shutdown()

    # The head -------------------------------------------------------------------------------------------------------

    def _start_head_timer(self) -> None:
        """For the first request it runs from the connection on, for later ones from their first byte: until then
        uvicorn's keep-alive timeout applies."""
        if not self._head_timer:
            self._head_timer = self.loop.call_later(self._header_seconds, self._refuse_late_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_late_head(self) -> None:
        if self.conn.trailing_data[0]:
            within = f"within {self._header_seconds:g} s"
            self._refuse(
                problem(408, "headers_too_slow", f"The headers of the request did not arrive {within}. Try again.")
            )
        else:  # a connection that a browser opened in advance, say: nobody waits for a response
            self._socket.close()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for a request that cannot be parsed."""
        if fault := self.conn.fault:
            self._refuse(problem(400, "ambiguous_request", fault))
        else:
            self._refuse(problem(400, "refused", msg))

    def _refuse(self, told: dict[str, Any]) -> None:
        """Answer in place of the application, and close."""
        if self.cycle is not None and not self.cycle.response_complete:  # the body of a request turned out to be bad
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self._socket.close()
                return
        content = orjson.dumps(told)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(content)).encode()),
            CLOSE,
        ]
        reason = HTTPStatus(told["status"]).phrase.encode()
        head = h11.Response(status_code=told["status"], reason=reason, headers=headers)
        for event in (head, h11.Data(content), h11.EndOfMessage()):
            self._socket.write(self.conn.send(event) or b"")
        self._linger()

    # The end --------------------------------------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application. A response that begins while the body is still arriving ends the connection: otherwise
        the rest of the body would have to be read first, however slowly it comes."""
        if self.conn.their_state is not h11.SEND_BODY:
            return await self._app(scope, receive, send)

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                headers = [each for each in message.get("headers", ()) if each[0].lower() != b"connection"]
                message = {**message, "headers": [*headers, CLOSE]}
            await send(message)

        return await self._app(scope, receive, send_and_close)

    def close(self) -> None:
        if self.lingers:
            return
        if self.conn.their_state in {h11.SEND_BODY, h11.ERROR} and not self._socket.is_closing():
            self._linger()
        else:
            self._socket.close()

    def _linger(self) -> None:
        """Discard what the client still sends, until it closes the connection or the time is up. Closing a socket that
        has unread data resets the connection, and the client could lose the response."""
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, self._socket.abort)
        self.flow.resume_reading()
        with suppress(OSError):  # the client is gone
            self._socket.write_eof()
