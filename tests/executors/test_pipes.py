"""A pipe of which one end is read and written at the same time."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from rota.executors.pipes import LARGEST_PIPE, Pipe


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_who_waits_to_read_is_not_forgotten_when_a_long_answer_was_written(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    pipe = Pipe(ours.detach())
    reading = asyncio.create_task(pipe.read())
    writing = asyncio.create_task(pipe.write(b"a" * LARGEST_PIPE))
    await asyncio.sleep(0)  # both wait: nothing came yet, and the other side takes nothing

    await asyncio.to_thread(_take, theirs, LARGEST_PIPE)
    await writing
    theirs.sendall(b"heard")

    async with asyncio.timeout(10):
        assert await reading == b"heard"
    pipe.close()


async def test_both_who_read_and_who_write_come_to_their_end(ends: tuple[socket.socket, socket.socket]) -> None:
    pipe = Pipe(ends[0].detach())
    reading = asyncio.create_task(pipe.read())
    writing = asyncio.create_task(pipe.write(b"a" * LARGEST_PIPE))
    await asyncio.sleep(0)

    pipe.finish()

    async with asyncio.timeout(10):
        assert await reading == b""
        await writing
    pipe.close()


def _take(theirs: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(theirs.recv(65536))
