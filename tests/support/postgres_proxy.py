"""A TCP proxy before PostgreSQL that can lose answers and fall silent."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

COMMIT = b"COMMIT\0"
PROCESS = re.compile(
    rb"(?<=K\x00\x00\x00.)....(?=.{4,}Z\x00\x00\x00\x05)", re.DOTALL
)  # before it is first ready for a query
Way = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Passes everything on until it is told otherwise."""

    def __init__(self, target: str) -> None:
        parts = conninfo_to_dict(target)
        self._host, self._port = str(parts.get("host") or "localhost"), int(str(parts.get("port") or 5432))
        self._silent = False
        self._losing = 0
        self._every = 1
        self._commits = 0
        self._cut_at: bytes | None = None
        self.hides_the_server = False  # as a pooler: who connects is told another number of the server's process
        self.lost = 0
        self._links: set[asyncio.Task[None]] = set()

    def fall_silent(self) -> None:
        """A black hole: what is sent is swallowed, who connects hears nothing, and nobody is told."""
        self._silent = True

    def speak_again(self) -> None:
        """For new connections. The old ones stay dead without a word, as behind a firewall that forgot them."""
        self._silent = False

    def lose_answers_to_commits(self, *, every: int = 1, most: int = 1_000_000) -> None:
        """Let the server commit, and end the connection instead of saying so."""
        self._every, self._losing = every, most

    def cut_off_at(self, text: bytes) -> None:
        """End the connection of who next says this, instead of passing it on."""
        self._cut_at = text

    @asynccontextmanager
    async def open(self, target: str, *, at: socket.socket | None = None) -> AsyncIterator[str]:
        """Listen at a socket that is bound, or at any port."""
        where: dict[str, Any] = {"sock": at} if at else {"host": "127.0.0.1", "port": 0}
        server = await asyncio.start_server(self._accept, **where)
        port = server.sockets[0].getsockname()[1]
        try:
            yield make_conninfo(target, host="127.0.0.1", port=port)
        finally:
            server.close()
            for link in tuple(self._links):
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.create_task(self._link(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                there, back = await self._dial()
                try:
                    await self._pass_on(Link(self), (reader, back), (there, writer))
                finally:
                    back.transport.abort()
        finally:
            writer.transport.abort()

    async def _pass_on(self, link: "Link", to: Way, fro: Way) -> None:
        ways = [asyncio.create_task(link.forward(*to)), asyncio.create_task(link.answer(*fro))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    @property
    def silent(self) -> bool:
        return self._silent

    def cuts(self, data: bytes) -> bool:
        if self._cut_at is None or self._cut_at not in data:
            return False
        self._cut_at = None
        self.lost += 1
        return True

    def loses(self, data: bytes) -> bool:
        if COMMIT not in data or not self._losing:
            return False
        self._commits += 1
        if self._commits % self._every:
            return False
        self._losing -= 1
        self.lost += 1
        return True


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._dead = False
        self._loses_next = False

    async def forward(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self._dead = self._dead or self._proxy.silent
            if self._proxy.cuts(data):
                return
            if not self._dead:
                self._loses_next = self._loses_next or self._proxy.loses(data)
                to.write(data)
                await to.drain()

    async def answer(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self._dead = self._dead or self._proxy.silent
            if self._loses_next:
                return  # the server has committed; nobody hears of it
            if self._proxy.hides_the_server:
                data = PROCESS.sub(b"9999", data, count=1)
            if not self._dead:
                to.write(data)
                await to.drain()
        if self._dead:
            await asyncio.Event().wait()  # not even the end is told
