"""Accepts connections, and leaves file descriptors to everything else.

When a process has none left, asyncio logs each attempt to accept, thousands of times a second, and runs and database
connections fail for want of them. Here accepting pauses first; clients wait in the queue of the listening socket.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Sized
from contextlib import suppress

from rota.settings import Settings

log = logging.getLogger(__name__)

LEAST_CONNECTIONS = 8  # are accepted however few descriptors there are
OTHER_FILES = 32  # logs, listening sockets, artifacts, messages on their way
FILES_OF_A_PLACE = 8  # pipes and sockets of one run
RECHECK_SECONDS = 0.05
LOG_SECONDS = 1.0
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def first_reserved(settings: Settings) -> int:
    """Connections take no descriptor from this number on. The system gives the lowest that is free, so as many as are
    above it stay for runs and the database."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = OTHER_FILES + settings.pool_size + FILES_OF_A_PLACE * settings.max_concurrent
    return max(soft - reserved, soft // 4)


class Acceptor:
    """Accepts the connections of one listening socket until it is cancelled."""

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], connections: Sized, *, below: int
    ) -> None:
        self._listening, self._protocol, self._connections, self._below = listening, protocol, connections, below
        self._opening: set[asyncio.Task[object]] = set()
        self._logged_at = -LOG_SECONDS

    async def run(self) -> None:
        self._listening.setblocking(False)
        while True:
            if not self._has_room():
                await self._pause("descriptors are reserved for runs and the database")
                continue
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listening)
            except OSError as failure:  # the client has gone already, or the system has no room
                if failure.errno in EXHAUSTED:
                    await self._pause(os.strerror(failure.errno))
                continue
            self._open(connection)

    def _has_room(self) -> bool:
        """Whether the next connection would take a descriptor that connections may have."""
        if len(self._connections) + len(self._opening) < LEAST_CONNECTIONS:
            return True
        try:
            lowest_free = os.dup(self._listening.fileno())
        except OSError:
            return False
        os.close(lowest_free)
        return lowest_free < self._below

    def _open(self, connection: socket.socket) -> None:
        opening = asyncio.create_task(self._connect(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except OSError:
            with suppress(OSError):
                connection.close()

    async def _pause(self, reason: str) -> None:
        if time.monotonic() - self._logged_at >= LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.warning("http.accept_paused", extra={"reason": reason, "connections": len(self._connections)})
        await asyncio.sleep(RECHECK_SECONDS)
