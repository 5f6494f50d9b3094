"""Waiting for something real with a deadline, never for time to pass."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def under_load(seconds: float) -> float:
    """The time that something may take which an idle machine does in so many seconds: longer in proportion to the processes that
    compete for each core."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def until(check: Callable[[], Awaitable[T | None]], *, within: float = 60.0) -> T:
    """Ask until the answer is true; fail with the last answer when the deadline passes."""
    deadline = time.monotonic() + within
    while not (answer := await check()):
        assert time.monotonic() < deadline, f"still {answer!r} after {within} s"
        await asyncio.sleep(0.02)
    return answer
