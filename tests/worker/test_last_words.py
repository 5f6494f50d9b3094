"""A run is never settled before its own words are stored."""

import asyncio
from typing import Any

import pytest

from rota.db.pool import Database
from rota.model.executor import Assignment, Desk
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded, TimedOut
from rota.sessions.desk import AttemptDesk
from support.house import House
from support.waiting import until

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_a_run_is_not_settled_while_its_words_are_still_being_written(
    house: House, db: Database, shift: Any, run_now: Any
) -> None:
    """Provoked: the session is locked while the agent's words are on their way, and the agent ends meanwhile."""
    may_end = asyncio.Event()
    desks: list[AttemptDesk] = []

    async def speak(assignment: Assignment, desk: AttemptDesk) -> Outcome:
        desks.append(desk)
        await desk.say("My last words.")
        await may_end.wait()
        return Succeeded()

    async with db.connection() as other:
        await run_now(await house.automation())
        async with shift(speak):
            await until(lambda: house.runs(status="running"))
            await until(lambda: _words_written(house))
            await other.execute("BEGIN")
            await other.execute("SELECT FROM sessions FOR UPDATE")
            [desk] = desks
            await desk.say(" And a few more.")
            await until(lambda: house.value(WAITS))
            may_end.set()
            finishing = asyncio.create_task(desk.finish())
            assert await house.value(WAITS)
            assert (await house.run())["status"] == "running"
            assert not finishing.done()
            await other.execute("ROLLBACK")
            await finishing
            await until(lambda: house.runs(status="succeeded"))
    async with db.connection() as conn:
        rows = await conn.execute("SELECT coalesce(data ->> 'text', data ->> 'status') FROM events ORDER BY seq")
        told = [each for (each,) in await rows.fetchall()]
    assert told == ["queued", "running", "My last words.", " And a few more.", "succeeded"]


@pytest.mark.parametrize("outcome", [Failed(ErrorClass.AGENT_ERROR, "no ink"), TimedOut("too long")], ids=repr)
async def test_what_an_agent_said_last_is_the_summary_also_when_it_failed(
    house: House, shift: Any, run_now: Any, outcome: Outcome
) -> None:
    async def speak(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.source == "after":
            return Succeeded("Heard.")
        await desk.say("I look for ink.\nThere is none.\n")
        return outcome

    first = await house.automation(name="First")
    after = {"after": await house.value("SELECT slug FROM automations WHERE id = %s", first), "on": ["failed"]}
    await house.automation(after, name="Second")
    run_id = await run_now(first)
    async with shift(speak):
        await until(lambda: house.runs(summary="Heard."))
    run = await house.run(run_id)
    assert (run["status"], run["summary"]) == ("failed", "There is none.")
    assert (await house.run(source="after"))["payload"]["summary"] == "There is none."


async def test_a_cancelled_run_keeps_its_last_words(house: House, shift: Any, run_now: Any) -> None:
    async def speak(assignment: Assignment, desk: Desk) -> Outcome:
        await desk.say("I look for ink.\n")
        await asyncio.Event().wait()
        raise AssertionError

    run_id = await run_now(await house.automation())
    async with shift(speak) as at_work:
        await until(lambda: _words_written(house))
        at_work.worker.cancel(str(run_id))
        await until(lambda: house.runs(status="cancelled"))
    assert (await house.run())["summary"] == "I look for ink."


async def test_a_run_is_summed_up_by_words_and_not_by_the_fence_they_end_with(
    house: House, shift: Any, run_now: Any
) -> None:
    async def speak(_: Assignment, desk: Desk) -> Outcome:
        await desk.say("The diff:\n```\n+ one more line\n```\n")
        return Succeeded()

    await run_now(await house.automation())
    async with shift(speak):
        await until(lambda: house.runs(status="succeeded"))
    assert (await house.run())["summary"] == "+ one more line"


@pytest.mark.parametrize("outcome", [Succeeded(), Failed(ErrorClass.AGENT_ERROR, "no ink")], ids=repr)
@pytest.mark.parametrize("words", ["Three letters answered.\n", ""], ids=["words", "silence"])
async def test_a_warning_on_standard_error_is_never_the_summary(
    house: House, shift: Any, run_now: Any, outcome: Outcome, words: str
) -> None:
    async def speak(_: Assignment, desk: Desk) -> Outcome:
        await desk.say(words, voice="stdout")
        await desk.say("npm warn config deprecated\n", voice="stderr")
        return outcome

    await run_now(await house.automation())
    async with shift(speak):
        await until(lambda: house.value("SELECT finished_at IS NOT NULL FROM runs"))
    assert (await house.value("SELECT summary FROM runs") or "") == words.strip()


async def _words_written(house: House) -> bool:
    return bool(await house.value("SELECT count(*) FROM events WHERE kind = 'output'"))
