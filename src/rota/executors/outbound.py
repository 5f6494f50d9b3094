"""The way out of a worker: names are looked up once, every answer is checked, and the checked address is called."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import cached_property
from ipaddress import ip_address

from rota.model.address import SETTING, Address, AllowList, Target
from rota.model.duration import format_duration
from rota.model.outcome import ErrorClass, Failed

MOST_ADDRESSES = 4

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Dial = Callable[..., Awaitable[Streams]]


class CutShort(Exception):
    """There is no answer, or no more of it."""

    def __init__(self, error_class: ErrorClass, detail: str, *, retryable: bool = True) -> None:
        super().__init__(detail)
        self.failure = Failed(error_class, detail, retryable)


async def look_up(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


class Outbound:
    """Makes connections to targets that may be called. Knows of no proxies: they would look up names themselves."""

    def __init__(
        self,
        allow: Iterable[str] = (),
        *,
        resolve: Resolve = look_up,
        dial: Dial = asyncio.open_connection,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.allowed = AllowList(allow)
        self._resolve, self._dial, self._trust = resolve, dial, trust

    @asynccontextmanager
    async def connect(self, target: Target, timeout: timedelta) -> AsyncIterator[Streams]:
        reader, writer = await self._connected(target, timeout)
        try:
            yield reader, writer
        finally:
            await _hang_up(writer)

    async def _connected(self, target: Target, timeout: timedelta) -> Streams:
        seconds = timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._addresses(target)
                return await self._first(target, addresses, seconds / len(addresses))
        except TimeoutError:
            raise _unreachable(target, f"no connection within {format_duration(timeout)}") from None

    async def _addresses(self, target: Target) -> list[Address]:
        """Those that are called. One that may not be called speaks against the name, whatever the others are."""
        _refuse(target, self.allowed.objection(target))
        addresses = [target.address] if target.address is not None else await self._look_up(target)
        for address in addresses:
            _refuse(target, self.allowed.objection_to(target, address))
        return addresses[:MOST_ADDRESSES]

    async def _look_up(self, target: Target) -> list[Address]:
        try:
            found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise _unreachable(target, "its name is not known")
        return [ip_address(each) for each in dict.fromkeys(found)]

    async def _first(self, target: Target, addresses: Sequence[Address], seconds: float) -> Streams:
        failure = OSError()
        for address in addresses:
            try:
                async with asyncio.timeout(seconds):
                    return await self._dial(str(address), target.port, **self._encryption(target))
            except OSError as mishap:
                failure = mishap
        raise _unreachable(target, told(failure)) from None

    def _encryption(self, target: Target) -> dict[str, object]:
        """The certificate must be for the name in the URL, although its address is called."""
        return {"ssl": self._context, "server_hostname": target.host} if target.scheme == "https" else {}

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = self._trust or ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()  # a polite end would wait for the other side
    with suppress(OSError):
        await writer.wait_closed()


def _refuse(target: Target, objection: str | None) -> None:
    """Which address it was is not told: names of an inner network are nobody's business."""
    if objection is not None:
        detail = f"{target.host} may not be called: {objection} (an operator may allow it by {SETTING})"
        raise CutShort(ErrorClass.EXECUTOR_ERROR, detail, retryable=False)


def _unreachable(target: Target, why: str) -> CutShort:
    return CutShort(ErrorClass.EXECUTOR_ERROR, f"{target.host} cannot be reached: {why}")


def told(failure: OSError) -> str:
    """Not the error's own words, which name the address."""
    match failure:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {failure.verify_message}"
        case ssl.SSLError():
            return f"no encryption that both sides speak ({failure.reason})"
        case TimeoutError():
            return "no answer"
        case _:
            return os.strerror(failure.errno) if failure.errno else "the connection broke"
