"""The one loop: a pass, then a pause; a wake is never lost, and a pass that fails never ends the service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rota.errors import Broken
from rota.service import FIRST_RETRY, LAST_RETRY, Loop

FOREVER = 3600.0


class Passes:
    """A service that counts its passes, tells when each began, and does in each what the test says."""

    name = "passes"

    def __init__(self, act: Callable[[int], float] = lambda _: FOREVER) -> None:
        self.act = act
        self.count = 0
        self._began: asyncio.Queue[int] = asyncio.Queue()
        self.hold: asyncio.Event | None = None

    async def once(self) -> float:
        self.count += 1
        self._began.put_nowait(self.count)
        if self.hold:
            await self.hold.wait()
        return self.act(self.count)

    async def began(self) -> int:
        async with asyncio.timeout(10):
            return await self._began.get()


@asynccontextmanager
async def looping(service: Passes, **options: float) -> AsyncIterator[Loop]:
    loop = Loop(service, **options)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        loop.stop()
        async with asyncio.timeout(10):
            await task


async def test_a_pass_comes_at_once_and_the_next_when_its_pause_is_over() -> None:
    service = Passes(lambda number: 0.01 if number == 1 else FOREVER)
    async with looping(service):
        assert await service.began() == 1
        assert await service.began() == 2


async def test_a_wake_ends_the_pause() -> None:
    service = Passes()
    async with looping(service) as loop:
        await service.began()
        loop.wake()
        assert await service.began() == 2


async def test_a_wake_during_a_pass_is_not_lost() -> None:
    service = Passes()
    service.hold = asyncio.Event()
    async with looping(service) as loop:
        await service.began()
        loop.wake()  # what woke us may have come after the pass had looked
        service.hold.set()
        assert await service.began() == 2


async def test_many_wakes_during_one_pass_make_one_more() -> None:
    service = Passes()
    service.hold = asyncio.Event()
    async with looping(service) as loop:
        await service.began()
        for _ in range(100):
            loop.wake()
        service.hold.set()
        await service.began()
    assert service.count == 2


async def test_stopping_ends_the_pause_and_lets_a_pass_finish() -> None:
    service = Passes()
    service.hold = asyncio.Event()
    loop = Loop(service)
    task = asyncio.create_task(loop.run())
    await service.began()
    loop.stop()
    await asyncio.sleep(0)
    assert not task.done()
    service.hold.set()
    async with asyncio.timeout(10):
        await task
    assert service.count == 1


async def test_a_loop_that_is_stopped_before_it_begins_does_nothing() -> None:
    service = Passes()
    loop = Loop(service)
    loop.stop()
    async with asyncio.timeout(10):
        await loop.run()
    assert service.count == 0


async def test_a_pass_that_fails_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    def fail_once(number: int) -> float:
        if number == 1:
            raise Broken("The well is dry.")
        return FOREVER

    service = Passes(fail_once)
    async with looping(service):
        await service.began()
        assert await service.began() == 2
    [told] = caplog.records
    assert (told.message, told.__dict__["service"], told.__dict__["error"]) == (
        "service.failed", "passes", "The well is dry.",
    )  # fmt: skip


async def test_failures_in_a_row_wait_longer_each_time_and_a_good_pass_starts_afresh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def act(number: int) -> float:
        if number == 10:
            return FOREVER
        raise ValueError(number)

    service = Passes(act)
    async with looping(service, first_retry=0.001, last_retry=0.02) as loop:
        while await service.began() < 10:
            pass
        loop.wake()
        while await service.began() < 12:
            pass
    retries = [record.__dict__["retry_in"] for record in caplog.records]
    doubled = [0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02, 0.02]
    assert retries[:10] == [*doubled, 0.001]


async def test_each_retry_waits_as_long_as_it_says() -> None:
    """The retry would come in an hour: only a wake makes it come now."""

    def act(number: int) -> float:
        raise ValueError(number)

    service = Passes(act)
    async with looping(service, first_retry=FOREVER, last_retry=FOREVER) as loop:
        assert await service.began() == 1
        for _ in range(10):
            await asyncio.sleep(0)
        assert service.count == 1
        loop.wake()
        assert await service.began() == 2


def test_the_first_retry_comes_soon_and_the_last_within_seconds() -> None:
    assert 0 < FIRST_RETRY < LAST_RETRY <= 10
