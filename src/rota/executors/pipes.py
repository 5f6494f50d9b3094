"""One end of a pipe or socket that the event loop waits for: the kernel's buffer is the only buffer."""

import asyncio
import os

CHUNK = 65536
LARGEST_PIPE = 1 << 20


class Pipe:
    """Once `finish` was called, reading goes on only to the end of what is already there."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._waiters: set[asyncio.Future[None]] = set()  # one may read while another writes
        self._left: int | None = None

    async def read(self) -> bytes:
        """The next piece, or nothing at the end."""
        while True:
            await self._ready(reading=True)  # also when there is something: a flood must not starve the loop
            try:
                piece = os.read(self._fd, CHUNK)
            except BlockingIOError:
                if self._left is not None:
                    return b""
            except ConnectionResetError:
                return b""
            else:
                return piece if self._counted(len(piece)) else b""

    async def write(self, data: bytes) -> None:
        """All of it, or as much as anybody wants to read."""
        rest = memoryview(data)
        while rest and self._left is None:
            try:
                rest = rest[os.write(self._fd, rest[:LARGEST_PIPE]) :]
            except BlockingIOError:
                await self._ready(reading=False)
            except (BrokenPipeError, ConnectionResetError):
                return

    def finish(self) -> None:
        self._left = LARGEST_PIPE
        for waiter in self._waiters:
            _resolve(waiter)

    def close(self) -> None:
        if self._fd >= 0:
            self._forget()
            os.close(self._fd)
        self._fd = -1

    def _counted(self, size: int) -> bool:
        """Whether a piece still counts: somebody outside may hold the other end and never stop writing."""
        if self._left is None:
            return True
        self._left -= size
        return self._left >= 0

    async def _ready(self, *, reading: bool) -> None:
        if self._left is not None:
            return
        loop = asyncio.get_running_loop()
        add, remove = (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)
        waiter = loop.create_future()
        self._waiters.add(waiter)
        add(self._fd, _resolve, waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if self._fd >= 0:
                remove(self._fd)

    def _forget(self) -> None:
        """Before the number can mean another file."""
        asyncio.get_running_loop().remove_reader(self._fd)
        asyncio.get_running_loop().remove_writer(self._fd)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
