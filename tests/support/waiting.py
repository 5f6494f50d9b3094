"""Waiting for something real with a deadline, never for time to pass."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(check: Callable[[], Awaitable[T | None]], *, within: float = 15.0) -> T:
    """Ask until the answer is true; fail with the last answer when the deadline passes."""
    deadline = time.monotonic() + within
    while not (answer := await check()):
        assert time.monotonic() < deadline, f"still {answer!r} after {within} s"
        await asyncio.sleep(0.02)
    return answer
