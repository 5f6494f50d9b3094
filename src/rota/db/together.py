"""Many questions in one: what is asked while an earlier question is out goes into the next."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Together(Generic[K, V]):
    """Under load fewer and larger queries are sent, so that they never fall behind; alone, a question waits for none.

    `ask` gets questions of one group only: those that one statement can answer.
    """

    def __init__(self, ask: Callable[[Sequence[K]], Awaitable[Sequence[V]]], group: Callable[[K], Hashable]) -> None:
        self._ask = ask
        self._group = group
        self._waiting: list[tuple[K, asyncio.Future[V]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, question: K) -> V:
        answer: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            groups: dict[Hashable, list[tuple[K, asyncio.Future[V]]]] = defaultdict(list)
            for question, answer in asked:
                groups[self._group(question)].append((question, answer))
            for group in groups.values():
                await self._answer(group)

    async def _answer(self, asked: Sequence[tuple[K, "asyncio.Future[V]"]]) -> None:
        try:
            answers = await self._ask([question for question, _ in asked])
        except Exception as failure:  # told to everyone who waits for it
            for _, waiting in asked:
                if not waiting.done():
                    waiting.set_exception(failure)
            return
        for (_, waiting), answer in zip(asked, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)
