"""What an agent says cannot be stored: its own run fails for it, and nobody else waits."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from rota.db.listener import Wakes
from rota.db.pool import Database
from rota.logs import JsonLines
from rota.model.executor import Assignment, Desk
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from rota.model.redaction import MASK
from rota.sessions.desk import AttemptDesk
from rota.watch.rescue import Rescue
from support import run_state
from support.house import House
from support.run_state import from_now
from support.waiting import until

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
    assert (await house.run(good))["summary"] == "Fine."


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
    assert (await house.run(bad))["error_detail"].startswith("Its outcome could not be written: CheckViolation")


async def test_an_outcome_that_others_are_ahead_of_every_time_fails_its_run(
    house: House, shift: Any, run_now: Any
) -> None:
    async def answer(assignment: Assignment, desk: Desk) -> Outcome:
        return Succeeded("Poison.")

    await house.execute(
        "CREATE FUNCTION taken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE unique_violation; END'"
    )
    async with house.db.connection() as conn:
        await run_state.add_trigger(conn, "taken", summary="Poison.")
    run_id = await run_now(await house.automation())
    async with shift(answer, retry=timedelta(0)):
        assert await until(_ended(house, run_id)) == "failed"
    run = await house.run(run_id)
    assert run["error_class"] == "executor_error"
    assert "UniqueViolation" in run["error_detail"]


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
    run = await house.run(bad)
    assert run["error_class"] == "executor_error"
    assert "AttributeError" in run["error_detail"]


async def test_what_broke_around_an_executor_is_told_without_the_secrets_of_its_attempt(
    house: House, shift: Any, run_now: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(self.format(record))

    async def last_words(desk: Desk) -> str:
        raise RuntimeError("no words after swordfish-and-herring")

    async def succeed(assignment: Assignment, desk: Desk) -> Outcome:
        at_work.worker.attempts[assignment.run_id].hide(["swordfish-and-herring"], "rota_run_token")
        return Succeeded()

    log = Log()
    log.setFormatter(JsonLines())
    monkeypatch.setattr(AttemptDesk, "last_words", last_words)
    run_id = await run_now(await house.automation())
    logging.getLogger("rota.worker.worker").addHandler(log)
    try:
        async with shift(succeed) as at_work:
            assert await until(_ended(house, run_id)) == "failed"
    finally:
        logging.getLogger("rota.worker.worker").removeHandler(log)
    assert [line for line in logged if f"no words after {MASK}" in line]
    assert "swordfish" not in "".join(logged)
    assert (await house.run(run_id))[
        "error_detail"
    ] == f"It could not be carried out: RuntimeError: no words after {MASK}"


def _ended(house: House, run_id: Any) -> Any:
    async def check() -> str | None:
        run = await house.ended(run_id)
        return run["status"] if run else None

    return check


@pytest.mark.parametrize("poison", POISON)
async def test_a_failure_in_words_that_cannot_be_stored_is_tried_again(
    house: House, shift: Any, run_now: Any, poison: str
) -> None:
    async def fail(assignment: Assignment, desk: Desk) -> Outcome:
        return Failed(ErrorClass.AGENT_ERROR, poison)

    run_id = await run_now(await house.automation(max_attempts=2))
    async with shift(fail):
        [run] = await until(lambda: house.runs(id=run_id, tries=1))
    assert run["status"] == "queued"


async def test_a_lost_run_whose_end_cannot_be_written_keeps_nobody_else_from_being_rescued(
    house: House, db: Database, wakes: Wakes, run_now: Any
) -> None:
    """Nor does a stuck one keep the steps behind it from theirs. What waits for its end cannot be read."""
    bad = await run_now(await house.automation(name="First", max_rescues=0))
    await house.automation({"after": "first", "on": ["failed"]}, name="Second")
    await house.execute("UPDATE triggers SET starts_at = 'infinity' WHERE kind = 'after'")
    good, waiting = await run_now(await house.automation()), await run_now(await house.automation())
    await house.set_runs({"id": [bad, good]}, **run_state.lost())
    await Rescue(db, wakes).once()
    assert await _statuses(house, bad, good) == ["running", "queued"]
    await house.set_run(bad, status="queued", worker_id=None, lease_until=None, ready_at=from_now(days=-1))
    await house.set_run(waiting, ready_at=None)
    with pytest.raises(psycopg.DataError):
        await Rescue(db, wakes).once()
    assert (await house.run(waiting))["ready_at"]


async def _statuses(house: House, *ids: Any) -> list[str]:
    return [(await house.run(run_id))["status"] for run_id in ids]
