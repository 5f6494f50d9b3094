"""Questions that come while one is out are asked together; each gets its own answer, and a failure reaches all."""

import asyncio
from collections.abc import Sequence

import pytest

from rota.db.together import Together


class Library:
    """Answers a question with its length, once it is let."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.open = asyncio.Event()

    async def ask(self, questions: Sequence[str]) -> list[int]:
        self.asked.append(list(questions))
        await self.open.wait()
        if "fire" in questions:
            raise ConnectionError
        return [len(each) for each in questions]


@pytest.fixture
def library() -> Library:
    return Library()


async def test_what_comes_while_a_question_is_out_is_asked_together_by_group(library: Library) -> None:
    ask = Together(library.ask, lambda question: question[0])
    first = asyncio.create_task(ask("alone"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(ask(each)) for each in ("a", "bb", "ab", "bcd")]
    await asyncio.sleep(0)
    library.open.set()
    assert await asyncio.gather(first, *others) == [5, 1, 2, 2, 3]
    assert library.asked == [["alone"], ["a", "ab"], ["bb", "bcd"]]


async def test_a_failure_reaches_all_who_asked_and_nobody_after(library: Library) -> None:
    library.open.set()
    ask = Together(library.ask, lambda _: None)
    told = await asyncio.gather(ask("fire"), ask("x"), return_exceptions=True)
    assert [type(each) for each in told] == [ConnectionError, ConnectionError]
    assert await ask("water") == 5


async def test_who_left_disturbs_nobody(library: Library) -> None:
    ask = Together(library.ask, lambda _: None)
    leaving, staying = asyncio.create_task(ask("gone")), asyncio.create_task(ask("here"))
    await asyncio.sleep(0)
    leaving.cancel()
    library.open.set()
    assert await staying == 4
