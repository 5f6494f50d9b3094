"""What an agent says cannot be stored: its own run fails for it, and nobody else waits."""

import asyncio
from typing import Any

import pytest
from house import House
from waiting import until

from rota.model.executor import Assignment, Desk
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded

POISON = ["a\0b", "a\ud800b"]


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("where", ["say", "tool", "name", "summary", "detail"])
async def test_words_that_cannot_be_stored_stop_nobody(
    house: House, shift: Any, run_now: Any, poison: str, where: str
) -> None:
    together = asyncio.Barrier(2)

    async def speak(assignment: Assignment, desk: Desk) -> Outcome:
        await together.wait()
        if assignment.prompt != "Poison.":
            await desk.say("Fine.\n")
            return Succeeded("Fine.")
        match where:
            case "say":
                await desk.say(poison)
            case "tool":
                await desk.tool("search", {"query": [{"deep": poison}]})
            case "name":
                await desk.tool(poison, {})
            case "summary":
                return Succeeded(poison)
            case "detail":
                return Failed(ErrorClass.AGENT_ERROR, poison, retryable=False)
        return Succeeded("Said.")

    bad = await run_now(await house.automation(prompt="Poison."))
    good = await run_now(await house.automation(prompt="Say it."))
    async with shift(speak):
        assert await until(_ended(house, good)) == "succeeded"
        assert await until(_ended(house, bad)) == ("failed" if where == "detail" else "succeeded")
    assert await house.value("SELECT summary FROM runs WHERE id = %s", good) == "Fine."


async def test_an_outcome_that_cannot_be_written_fails_its_run_and_no_other(
    house: House, shift: Any, run_now: Any
) -> None:
    together = asyncio.Barrier(2)

    async def answer(assignment: Assignment, desk: Desk) -> Outcome:
        await together.wait()
        return Succeeded("Fine.") if assignment.prompt != "Poison." else Failed("no_such_class", "?")  # type: ignore[arg-type]

    bad = await run_now(await house.automation(prompt="Poison."))
    good = await run_now(await house.automation())
    async with shift(answer):
        assert await until(_ended(house, good)) == "succeeded"
        assert await until(_ended(house, bad)) == "failed"
    detail = await house.value("SELECT error_detail FROM runs WHERE id = %s", bad)
    assert detail.startswith("Its outcome could not be written: CheckViolation")


async def test_words_that_are_refused_for_what_they_are_are_left_out_and_the_run_goes_on(
    house: House, shift: Any, run_now: Any
) -> None:
    async def speak(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.tool("search", {"query": object()})
        return Succeeded("Fine.")

    run_id = await run_now(await house.automation())
    async with shift(speak):
        assert await until(_ended(house, run_id)) == "succeeded"


async def test_a_run_whose_specification_cannot_be_read_fails_at_once_and_stops_nobody(
    house: House, shift: Any, run_now: Any
) -> None:
    async def succeed(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded("Fine.")

    broken, whole = await house.automation(), await house.automation()
    bad, good = await run_now(broken), await run_now(whole)
    await house.execute("UPDATE revisions SET spec = '[]' WHERE subject_id = %s", broken)
    async with shift(succeed):
        assert await until(_ended(house, good)) == "succeeded"
        assert await until(_ended(house, bad)) == "failed"
    told = await house.value("SELECT error_class || ': ' || error_detail FROM runs WHERE id = %s", bad)
    assert told.startswith("executor_error: It could not be carried out: AttributeError")


def _ended(house: House, run_id: Any) -> Any:
    return lambda: house.value("SELECT status FROM runs WHERE id = %s AND finished_at IS NOT NULL", run_id)


@pytest.mark.parametrize("poison", POISON)
async def test_a_failure_in_words_that_cannot_be_stored_is_tried_again(
    house: House, shift: Any, run_now: Any, poison: str
) -> None:
    async def fail(assignment: Assignment, desk: Desk) -> Outcome:
        return Failed(ErrorClass.AGENT_ERROR, poison)

    async def settled() -> Any:
        return await house.value("SELECT status FROM runs WHERE id = %s AND tries = 1", run_id)

    run_id = await run_now(await house.automation(max_attempts=2))
    async with shift(fail):
        assert await until(settled) == "queued"
