"""Begins attempts: each in a task of its own, but for those that end without waiting for anything."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from rota.worker.attempt import Attempt

HASTE_SECONDS = 1.0


class Beginnings:
    """A task carries out one attempt after the other for as long as none has to wait. As soon as one does, all that has
    not begun gets tasks of its own, so that no agent waits for another. Most are processes, and have one each; those
    that work in this process, and are done at once, share one, which costs about as much as carrying them out."""

    def __init__(self, carry_out: Callable[[Attempt], Awaitable[None]]) -> None:
        self._carry_out = carry_out
        self._waiting: deque[Attempt] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = 0

    def begin(self, attempts: Iterable[Attempt]) -> None:
        """In the next turn of the event loop."""
        self._waiting.extend(attempts)
        self._add_task()
        asyncio.get_running_loop().call_soon(self._next_turn)

    async def ended(self) -> None:
        """Wait until all that was begun has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def cancel(self) -> None:
        """Whatever they wait for, again and again: first an agent is stopped, then what is to be written of it."""
        self._waiting.clear()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=HASTE_SECONDS)

    def _add_task(self) -> None:
        task = asyncio.create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next_turn(self) -> None:
        """Comes right behind the first step of a task: what it left waits, because the task does."""
        self._turn += 1
        for _ in range(len(self._waiting)):
            self._add_task()

    async def _work(self) -> None:
        turn, task = self._turn, asyncio.current_task()
        assert task
        while self._waiting and self._turn == turn:
            attempt = self._waiting.popleft()
            attempt.task = task
            await self._carry_out(attempt)
