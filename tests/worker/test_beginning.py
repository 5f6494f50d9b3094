"""Attempts that end at once share a task; no attempt ever waits for another."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from rota.worker.attempt import Attempt
from rota.worker.beginning import Beginnings


class Stub:
    """All that beginning an attempt touches of it."""

    task: asyncio.Task[None]


Script = Callable[[Stub], Awaitable[None]]


def beginnings(script: Script) -> Beginnings:
    return Beginnings(cast("Callable[[Attempt], Awaitable[None]]", script))


def attempts(count: int) -> list[Attempt]:
    return [cast("Attempt", Stub()) for _ in range(count)]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_attempts_that_end_at_once_share_one_task() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def end_at_once(attempt: Stub) -> None:
        tasks.append(attempt.task)

    begun = beginnings(end_at_once)
    begun.begin(attempts(50))
    await begun.ended()
    assert len(tasks) == 50
    assert len(set(tasks)) == 1


async def test_attempts_that_wait_are_all_at_work_within_two_turns_of_the_loop() -> None:
    at_work, done = 0, asyncio.Event()

    async def wait(attempt: Stub) -> None:
        nonlocal at_work
        at_work += 1
        await done.wait()

    begun = beginnings(wait)
    begun.begin(attempts(50))
    await turns(3)
    assert at_work == 50
    done.set()
    await begun.ended()


async def test_one_that_waits_among_others_holds_up_none_of_them() -> None:
    patient, ended, done = attempts(1)[0], 0, asyncio.Event()

    async def carry_out(attempt: Stub) -> None:
        nonlocal ended
        if attempt is cast("Stub", patient):
            await done.wait()
        ended += 1

    begun = beginnings(carry_out)
    begun.begin([*attempts(10), patient, *attempts(10)])
    await turns(3)
    assert ended == 20
    done.set()
    await begun.ended()
    assert ended == 21


async def test_to_cancel_the_task_of_one_attempt_ends_no_other() -> None:
    given, done = attempts(5), asyncio.Event()
    cancelled: list[object] = []

    async def wait(attempt: Stub) -> None:
        try:
            await done.wait()
        except asyncio.CancelledError:
            cancelled.append(attempt)

    begun = beginnings(wait)
    begun.begin(given)
    await turns(3)
    given[2].task.cancel()
    await turns(2)
    assert cancelled == [given[2]]
    done.set()
    await begun.ended()
    assert cancelled == [given[2]]


async def test_one_that_breaks_its_task_leaves_the_others_to_be_begun() -> None:
    given = attempts(9)
    ended: list[object] = []

    async def carry_out(attempt: Stub) -> None:
        if attempt is cast("Stub", given[4]):
            raise KeyError("no such kind")
        ended.append(attempt)

    begun = beginnings(carry_out)
    loop = asyncio.get_running_loop()
    told: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    begun.begin(given)
    await begun.ended()
    assert ended == [each for each in given if each is not given[4]]


async def test_what_begins_while_others_wait_for_their_turn_begins_too() -> None:
    ended = 0

    async def carry_out(attempt: Stub) -> None:
        nonlocal ended
        await asyncio.sleep(0)
        ended += 1

    begun = beginnings(carry_out)
    begun.begin(attempts(3))
    begun.begin(attempts(4))
    await begun.ended()
    assert ended == 7


async def test_the_task_of_one_that_waited_carries_out_no_other() -> None:
    first, second = attempts(2)
    done = asyncio.Event()

    async def carry_out(attempt: Stub) -> None:
        if attempt is cast("Stub", first):
            await done.wait()

    begun = beginnings(carry_out)
    begun.begin([first])
    await turns(3)
    done.set()
    begun.begin([second])
    await begun.ended()
    assert second.task is not first.task
