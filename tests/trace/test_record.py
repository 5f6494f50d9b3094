"""Writing what agents say: together, in order, fenced by the lease, and never lost while the database is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from psycopg import DataError, OperationalError

from rota.db.listener import Wakes, session_channel
from rota.db.pool import Connection, Database
from rota.errors import Lost
from rota.model.budget import MOST_UNITS
from rota.model.ids import AutomationId
from rota.model.redaction import Redactor
from rota.model.run import Claimed
from rota.roster import running
from rota.trace import record
from rota.trace.record import LONGEST_TEXT, TOO_MANY_UNITS, Recorder, RecordingDesk
from support import run_state
from support.house import House
from support.run_state import from_now
from support.waiting import until


@pytest.fixture
async def run(house: House) -> Claimed:
    """A run at work, its lease held."""
    automation_id = AutomationId(await house.automation())
    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, automation_id)
    run = await house.set_run(**run_state.running())
    return claimed(run["workspace_id"], run["id"], run["session_id"])


def claimed(workspace_id: Any, run_id: Any, session_id: Any, attempt: int = 1) -> Claimed:
    """As much of a claim as a desk looks at."""
    known: dict[str, Any] = dict.fromkeys(Claimed._fields)
    return Claimed(**known | {"workspace_id": workspace_id, "id": run_id, "session_id": session_id, "attempt": attempt})


class Failing:
    """A database whose next transactions fail, each as this says; `None` is one that does not."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.failures: list[Exception | None] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        if self.failures and (failure := self.failures.pop(0)):
            raise failure
        async with self._db.transaction() as conn:
            yield conn


@pytest.fixture
def failing(db: Database) -> Failing:
    return Failing(db)


@pytest.fixture
def recorder(failing: Failing, wakes: Wakes) -> Recorder:
    return Recorder(failing, wakes, retry=timedelta(seconds=0.01))  # type: ignore[arg-type]


@pytest.fixture
def desk(recorder: Recorder, run: Claimed) -> RecordingDesk:
    return recorder.desk(run)


async def written(house: House) -> list[tuple[str, Any]]:
    async with house.db.connection() as conn:
        rows = await conn.execute(
            "SELECT kind, coalesce(data ->> 'text', data ->> 'name') FROM events ORDER BY seq OFFSET 1"
        )
        return [(kind, told) for kind, told in await rows.fetchall()]


async def test_text_that_comes_together_is_stored_together_and_tools_keep_their_place(
    house: House, recorder: Recorder, desk: RecordingDesk
) -> None:
    for piece in ("Wa", "ter", "ing.\n"):
        await desk.say(piece)
    await desk.say("")
    await desk.tool("tap", {"open": True})
    await desk.say("Done.")
    assert await written(house) == []
    await recorder.flush()
    assert await written(house) == [("output", "Watering.\n"), ("tool", "tap"), ("output", "Done.")]


async def test_finishing_waits_until_everything_is_stored(house: House, desk: RecordingDesk) -> None:
    await desk.say("Last words.")
    await desk.usage("tokens", 10)
    await desk.usage("tokens", 5)
    await desk.finish()
    assert await written(house) == [("output", "Last words.")]
    assert await house.value("SELECT amount FROM usage WHERE unit = 'tokens'") == 15


async def test_a_number_that_no_column_takes_does_not_cost_the_words_around_it(
    house: House, desk: RecordingDesk
) -> None:
    await desk.say("Before.")
    await desk.tool("count", {"stars": 10**24})
    await desk.usage("tokens", 3)
    await desk.finish()

    assert await written(house) == [("output", "Before."), ("tool", "count")]
    assert await house.value("SELECT data ->> 'stars' FROM events WHERE kind = 'tool'") == str(10**24)
    assert await house.value("SELECT amount FROM usage") == 3


async def test_what_may_have_begun_a_secret_is_not_lost_when_the_attempt_ends(
    house: House, desk: RecordingDesk
) -> None:
    desk.hide(Redactor(["swordfish-and-herring"]))
    await desk.say("We had swordfish-and-h")
    await desk.finish()
    assert await written(house) == [("output", "We had ")]
    await desk.end()
    assert await written(house) == [("output", "We had "), ("output", "[redacted]")]


async def test_what_one_voice_says_does_not_save_the_secret_of_another(house: House, desk: RecordingDesk) -> None:
    """As when a program streams words to its standard output, and turns a wheel on its standard error."""
    desk.hide(Redactor(["swordfish-and-herring"]))
    for piece in ("It is sword", "fish", "-and-", "herring", "."):
        await desk.say(piece)
        await desk.say("|", "stderr")
    await desk.say(" swo", "stderr")
    await desk.end()

    told = "".join(text for _, text in await written(house))
    assert told.replace("|", "") == "It is [redacted]. swo"


async def test_only_what_was_spent_since_is_charged_again(desk: RecordingDesk) -> None:
    for unit in ("tokens", "pages", "tokens"):
        await desk.usage(unit, 1)
    told, charges = desk.take()
    assert [(each.unit, each.amount) for each in charges] == [("pages", Decimal(1)), ("tokens", Decimal(2))]

    desk.give_back(told, charges)
    await desk.usage("words", 3)
    assert [each.unit for each in desk.take()[1]] == ["pages", "tokens", "words"]

    await desk.usage("pages", 1)
    assert [(each.unit, each.amount) for each in desk.take()[1]] == [("pages", Decimal(2))]


async def test_an_attempt_may_report_only_so_many_units_and_those_of_budgets_always(desk: RecordingDesk) -> None:
    await desk.say("Counting.")
    for unit in (*(f"unit-{number}" for number in range(MOST_UNITS + 3)), "unit-0", "tokens"):
        await desk.usage(unit, 1)
    told, charges = desk.take()
    amounts = {each.unit: each.amount for each in charges}
    assert (len(amounts), amounts["unit-0"], amounts["tokens"]) == (MOST_UNITS + 1, Decimal(2), Decimal(1))
    assert [event.data["text"] for event in told] == [f"Counting.{TOO_MANY_UNITS}"]
    assert desk.last_line == "Counting."


async def test_who_finishes_while_others_do_shares_their_transactions(
    house: House, recorder: Recorder, run: Claimed
) -> None:
    """One after the other goes on as soon as its words are stored: nobody stays to write for who comes after."""

    async def several_runs() -> None:
        for _ in range(5):
            desk = recorder.desk(run)
            await desk.say("Last words.")
            await desk.finish()

    await asyncio.gather(*(several_runs() for _ in range(20)))
    assert await house.value("SELECT count(*) FROM events WHERE kind = 'output'") == 100
    assert await house.value("SELECT count(DISTINCT xmin::text) FROM events WHERE kind = 'output'") <= 25


async def test_readers_are_woken_after_the_commit_and_not_before(
    house: House, desk: RecordingDesk, wakes: Wakes, run: Claimed
) -> None:
    seen: list[Any] = []
    asking: list[asyncio.Task[Any]] = []

    async def look() -> None:
        seen.append(await house.value("SELECT count(*) FROM events"))

    async def listening() -> bool:
        return bool(asking)

    wakes.listener.on(session_channel(run.session_id), lambda _: asking.append(asyncio.create_task(look())))
    await until(listening)  # it is told to read once when it begins to listen
    asking.clear()
    await desk.say("Hello.")
    await desk.finish()
    await asyncio.gather(*asking)
    assert seen[1:]
    assert set(seen[1:]) == {2}


async def test_a_long_text_is_cut_into_pieces_and_loses_nothing(house: House, desk: RecordingDesk) -> None:
    text = "0123456789" * (LONGEST_TEXT // 4)
    await desk.say(text)
    await desk.finish()
    pieces = [told for _, told in await written(house)]
    assert len(pieces) == 3
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    "loss",
    [{"attempt": 2}, {"lease_until": from_now(seconds=-1)}, {"status": "queued", "lease_until": None}],
)
async def test_nothing_of_an_attempt_that_lost_its_lease_is_written(
    house: House, recorder: Recorder, desk: RecordingDesk, loss: dict[str, Any]
) -> None:
    await desk.say("Kept.")
    await recorder.flush()
    await house.set_run(**loss)
    await desk.say("A ghost.")
    await desk.usage("tokens", 10)
    await desk.finish()
    assert await written(house) == [("output", "Kept.")]
    assert await house.value("SELECT count(*) FROM usage") == 0
    with pytest.raises(Lost):
        await desk.say("Still here?")


async def test_a_lost_attempt_does_not_hold_up_those_beside_it(
    house: House, recorder: Recorder, desk: RecordingDesk, run: Claimed
) -> None:
    lost = recorder.desk(claimed(run.workspace_id, run.id, run.session_id, attempt=7))
    await lost.say("A ghost.")
    await desk.say("Alive.")
    await recorder.flush()
    assert await written(house) == [("output", "Alive.")]


async def test_words_are_kept_in_order_while_the_database_is_away(
    house: House, recorder: Recorder, desk: RecordingDesk, failing: Failing
) -> None:
    for word in ("one", "two"):
        await desk.say(word)
        await desk.usage("tokens", 1)
        failing.failures = [OperationalError("away")]
        with pytest.raises(OperationalError):
            await recorder.flush()
    await desk.say("three")
    await desk.finish()
    assert "".join(told for _, told in await written(house)) == "onetwothree"
    assert await house.value("SELECT amount FROM usage") == 2


async def test_what_was_written_before_the_database_went_away_is_not_written_again(
    house: House, recorder: Recorder, desk: RecordingDesk, run: Claimed, failing: Failing
) -> None:
    """Where somebody's words cannot be stored, those of the others are written one by one."""
    beside = [desk, *(recorder.desk(run) for _ in range(3))]
    for number, each in enumerate(beside):
        await each.say(str(number))
    failing.failures = [DataError("somebody's words"), None, None, OperationalError("away")]
    with pytest.raises(OperationalError):
        await recorder.flush()
    assert failing.failures == []
    assert [told for _, told in await written(house)] == ["0", "1"]
    for each in beside:
        await each.finish()
    assert [told for _, told in await written(house)] == ["0", "1", "2", "3"]


async def test_the_writer_goes_on_after_a_failure(
    house: House, recorder: Recorder, desk: RecordingDesk, failing: Failing
) -> None:
    failing.failures = [OperationalError("away")]
    writing = asyncio.create_task(recorder.run())
    await desk.say("Hello.")
    await until(lambda: written(house))
    assert failing.failures == []
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_an_agent_that_says_more_than_can_be_stored_waits(
    house: House, recorder: Recorder, desk: RecordingDesk
) -> None:
    recorder.full_bytes = 10
    speaking = asyncio.create_task(desk.say("More than ten characters."))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not speaking.done()
    await recorder.flush()
    async with asyncio.timeout(10):
        await speaking
    assert await written(house) == [("output", "More than ten characters.")]


async def test_an_agent_that_records_more_than_can_be_stored_waits(recorder: Recorder, desk: RecordingDesk) -> None:
    recorder.full_bytes = 1000
    recording = asyncio.create_task(desk.tool("copy", {"text": 1000 * "x"}))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not recording.done()
    await recorder.flush()
    async with asyncio.timeout(10):
        await recording


async def test_all_who_wait_for_room_go_on_when_there_is_some(
    house: House, recorder: Recorder, desk: RecordingDesk
) -> None:
    recorder.full_bytes = 10
    speaking = [asyncio.create_task(desk.say(f"More than ten characters {n}.")) for n in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(each.done() for each in speaking)
    await recorder.flush()
    async with asyncio.timeout(10):
        await asyncio.gather(*speaking)


@pytest.mark.parametrize(
    ("pieces", "last"),
    [
        (["First.\nSecond.\n"], "Second."),
        (["First.\nSec", "ond."], "Second."),
        (["First.\n", "\n  \n"], "First."),
        (["  indented  \n"], "indented"),
        (["The diff:\n```\n+ one more\n```\n", "\n* * *\n"], "+ one more"),
        (["| Sum |\n", "|--", "-:|\n"], "| Sum |"),
        ([], ""),
    ],
)
async def test_the_last_line_that_says_something_is_remembered(pieces: list[str], last: str) -> None:
    desk = Recorder(None, None).desk(claimed(None, None, None))  # type: ignore[arg-type]
    for piece in pieces:
        await desk.say(piece)
    assert desk.last_line == last


async def test_standard_error_is_told_apart_and_its_last_line_is_not_remembered(
    house: House, recorder: Recorder, desk: RecordingDesk
) -> None:
    for voice, text in (("stdout", "Sto"), ("stderr", "npm warn config deprecated\n"), ("stdout", "red.\n")):
        await desk.say(text, voice)
    await desk.say("npm notice\n", "stderr")
    await desk.finish()
    said = await house.value("SELECT json_agg(data ORDER BY seq) FROM events WHERE kind = 'output'")
    assert said == [
        {"text": "Sto"},
        {"text": "npm warn config deprecated\n", "stream": "stderr"},
        {"text": "red.\n"},
        {"text": "npm notice\n", "stream": "stderr"},
    ]
    assert desk.last_line == "Stored."


async def test_what_is_held_back_of_a_secret_stays_in_its_stream(
    house: House, recorder: Recorder, desk: RecordingDesk
) -> None:
    desk.hide(Redactor(["sesame-street"]))
    await desk.say("Open sesa", "stdout")
    await desk.say("warning: sesa", "stderr")
    await desk.end()
    said = await house.value("SELECT json_agg(data ORDER BY seq) FROM events WHERE kind = 'output'")
    texts = {
        stream: "".join(each["text"] for each in said if each.get("stream") == stream) for stream in (None, "stderr")
    }
    assert texts == {None: "Open sesa", "stderr": "warning: sesa"}
    assert desk.last_line == "Open sesa"


async def test_a_hundred_thousand_pieces_become_few_rows(house: House, recorder: Recorder, desk: RecordingDesk) -> None:
    writing = asyncio.create_task(recorder.run())
    for _ in range(100_000):
        await desk.say("tok ")
    await desk.finish()
    writing.cancel()
    assert sum(len(text) for _, text in await written(house)) == 400_000
    assert len(await written(house)) < 200


def test_words_that_stream_on_are_gathered_ever_longer_and_the_first_ones_are_not() -> None:
    window, now, waits = record.Window(), 0.0, []
    for _ in range(6):
        window.open(now)
        begun = now
        while not window.over(now):
            now += 0.01
        window.close(now)
        waits.append(round(now - begun, 2))
        now += 0.01
    assert waits == [0.0, 0.08, 0.16, 0.32, 0.32, 0.32]
    window.open(now + 10)
    assert window.over(now + 10)
