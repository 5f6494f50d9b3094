"""The desk of a Python agent, in its process: every verb through the pipe to the tables."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from psycopg import OperationalError

from rota.db import messages as message_rows
from rota.db.listener import Wakes
from rota.db.pool import Connection, Database
from rota.errors import Broken, Conflict, Invalid, Lost
from rota.executors.python import PythonExecutor
from rota.model.budget import MOST_UNITS
from rota.model.executor import Assignment, Desk
from rota.model.memory import Remembered
from rota.model.message import NewMessage
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from rota.model.redaction import Redactor
from rota.model.task import TaskForm
from rota.sessions import messages
from rota.sessions.artifacts import LARGEST, Depot
from rota.sessions.desk import Office
from rota.sessions.messages import Post
from rota.trace.record import Recorder
from support.house import House
from support.run_state import PRESENT, Run, from_now
from support.waiting import until

SOON = timedelta(seconds=0.01)
WORK = """
    from rota.agent import Context

    async def work(context: Context) -> str:
        context.tool("grep", id="call-7", hits=2)
        sent = await context.message({"plan": 1}, to="user")
        assert sent["from"] == "agent", sent
        assert await context.message({"plan": 1}, to="user", key="k") == await context.message({"plan": 1}, to="user", key="k")
        [read] = await context.inbox(wait=30)
        assert read["body"] == "Go on.", read
        await context.ack(read["id"])
        assert await context.inbox() == []
        assert await context.recall("last") is None
        await context.remember("last", [1, 2], ttl="1h", confidence=0.5)
        assert await context.recall("last") == {"value": [1, 2]}
        await context.remember("scrap", 1)
        await context.forget("scrap")
        kept = await context.artifact("report.md", "# Report")
        assert kept["size"] == 8, kept
        with open("large.bin", "wb") as file:
            file.write(b"x" * 3_000_000)
        assert (await context.artifact(path="large.bin"))["name"] == "large.bin"
        await context.artifact(uri="https://example.org/pull/7", name="The pull request")
        assert await context.event("nobody.waits", {"n": 1}) == {"runs": []}
        refusals = []
        for request in (
            lambda: context.message("x", to="nobody"),
            lambda: context.message("x", key="k" * 201),
            lambda: context.artifact("passwd", path="../../../../etc/passwd"),
            lambda: context.artifact("../x", "x"),
            lambda: context.remember("no key!", 1),
            lambda: context.event("no name!"),
            lambda: context.event("x", key="k" * 201),
            lambda: context.task({"role": "me", "prompt": "x", "depends_on": ["nothing"]}),
            lambda: context.task({"role": "me", "prompt": 5}),
            lambda: context.task({"role": "me", "prompt": "x", "depends_on": "nothing"}),
            lambda: context.task({"role": "me", "prompt": "x", "max_attempts": 0}),
            lambda: context.task({"role": "me", "prompt": "x", "max_attempts": 101}),
            lambda: context.task({"role": "me", "prompt": "x", "after": ["nothing"]}),
            lambda: context.task({"prompt": "x"}),
            lambda: context.inbox(after=2**63),
            lambda: context.ack(1.5),
        ):
            try:
                await request()
            except RuntimeError as refused:
                refusals.append(str(refused))
        assert len(refusals) == 16, refusals
        return "All done."
"""


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], Any]:
    def script(source: str) -> Any:
        (tmp_path / "agent_code.py").write_text(dedent(source))
        config = {"function": "agent_code:work", "path": str(tmp_path)}

        async def execute(assignment: Assignment, desk: Desk) -> Outcome:
            return await PythonExecutor().execute(replace(assignment, config=config), desk)

        return execute

    return script


async def test_a_python_agent_does_all_of_it(house: House, shift: Any, run_now: Any, python: Any) -> None:
    automation = await house.automation()
    async with shift(python(WORK)):
        run_id = await run_now(automation)
        session_id = (await house.run(run_id))["session_id"]
        await until(lambda: house.value("SELECT count(*) FROM deliveries WHERE role = 'user'"))
        async with house.db.transaction() as conn:
            await messages.publish(conn, [NewMessage(house.caller.workspace_id, session_id, "Go on.", "agent")])
        await until(lambda: house.ended(run_id), within=60)
    run = await house.run(run_id)
    assert (run["status"], run["error_detail"]) == ("succeeded", None)
    assert await house.value("SELECT data FROM events WHERE kind = 'tool'") == {
        "name": "grep",
        "id": "call-7",
        "hits": 2,
    }
    assert await house.value("SELECT count(*) FROM deliveries WHERE role = 'agent' AND acked_at IS NOT NULL") == 1
    assert set(await house.value("SELECT array_agg(name) FROM artifacts")) == {
        "The pull request",
        "large.bin",
        "report.md",
    }
    assert await house.value("SELECT array_agg(key) FROM memory WHERE run_id = %s", run_id) == ["last"]
    assert await house.value("SELECT count(*) FROM events WHERE kind = 'message'") == 3


async def test_an_agent_is_told_where_its_artifact_cannot_be_kept(
    house: House, shift: Any, run_now: Any, python: Any, tmp_path: Path
) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "incoming").write_text("Here is no folder.")
    execute = python("""
        def work(context):
            context.artifact("report.md", "# Report").result()
    """)
    told = (
        "failed: RuntimeError: The content cannot be kept where artifacts are (File exists); the log has the details."
    )
    assert await _status_of(house, shift, run_now, execute) == told
    said = await house.value("SELECT string_agg(data ->> 'text', '' ORDER BY seq) FROM events WHERE kind = 'output'")
    assert 'agent_code.py", line 3, in work' in said


@pytest.mark.parametrize(
    ("said", "summary"), [(["Watered.\n"], "Watered."), (["All is ", "well."], "All is well."), ([], None)]
)
async def test_what_rota_notes_of_units_sums_up_no_run(
    house: House, shift: Any, run_now: Any, said: list[str], summary: str | None
) -> None:
    async def counts(_: Assignment, desk: Desk) -> Outcome:
        for place in range(2):
            for piece in said[place : place + 1]:
                await desk.say(piece)
            for number in range(MOST_UNITS + 1):
                await desk.usage(f"unit-{number}", 1)
        return Succeeded()

    assert await _status_of(house, shift, run_now, counts) == "succeeded"
    assert await house.value("SELECT data ->> 'text' FROM events WHERE data ->> 'text' LIKE '%%[Usage of more%%'")
    assert (await house.run())["summary"] == summary


async def test_a_file_that_cannot_be_read_is_no_failure_of_the_desk(
    house: House, shift: Any, run_now: Any, tmp_path: Path
) -> None:
    async def keeps(_: Assignment, desk: Desk) -> Outcome:
        with pytest.raises(Invalid, match=r"The file .gone\.txt. cannot be read: No such file or directory") as refused:
            await desk.artifact("gone", tmp_path / "gone.txt")
        assert (refused.value.code, refused.value.field) == ("invalid", "path")
        return Succeeded()

    assert await _status_of(house, shift, run_now, keeps) == "succeeded"


async def test_an_inbox_is_read_on_when_the_database_was_away(
    house: House, shift: Any, run_now: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, failures = message_rows.pages, [OperationalError("away")]

    async def away_once(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return await pages(*given, **more)

    monkeypatch.setattr(message_rows, "pages", away_once)

    async def reads(_: Assignment, desk: Desk) -> Outcome:
        assert await desk.inbox() == []
        return Succeeded()

    assert await _status_of(house, partial(shift, retry=SOON), run_now, reads) == "succeeded"
    assert not failures


async def test_a_secret_is_no_name_under_which_an_attempt_keeps_something(
    house: House, shift: Any, run_now: Any
) -> None:
    async def names(_: Assignment, desk: Any) -> Outcome:
        desk.hide(Redactor(["swordfish-and-herring"]))
        with pytest.raises(Invalid):
            await desk.remember(Remembered("swordfish-and-herring", 1))
        with pytest.raises(Invalid):
            await desk.task([TaskForm("me", "swordfish-and-herring", prompt="Fish.")])
        with pytest.raises(Invalid):
            await desk.task([TaskForm("swordfish-and-herring", "fish", prompt="Fish.")])
        with pytest.raises(Invalid):
            await desk.artifact("fish", b"", media_type="text/swordfish-and-herring")
        await desk.message("Fish.", key="swordfish-and-herring")
        await desk.usage("swordfish-and-herring", 1)
        return Succeeded()

    assert await _status_of(house, shift, run_now, names) == "succeeded"
    assert await house.value("SELECT array_agg(unit) FROM usage") == ["[redacted]"]
    assert await house.value("SELECT array_agg(key) FROM write_keys") == ["[redacted]"]


async def test_a_secret_is_nowhere_in_what_an_attempt_leaves_behind(house: House, shift: Any, run_now: Any) -> None:
    await house.automation({"event": "ping"})
    told = "the key is swordfish-and-herring"

    async def leaves(assignment: Assignment, desk: Any) -> Outcome:
        if assignment.source == "event":
            return Succeeded()
        desk.hide(Redactor(["swordfish-and-herring"]))
        await desk.say(told)
        await desk.tool("grep", {"for": told})
        await desk.message({"body": told}, to="user")
        await desk.event("ping", {"data": told})
        with pytest.raises(Invalid):
            await desk.event("swordfish-and-herring")
        await desk.artifact(f"{told}.md", b"A report.")
        await desk.link("https://example.org/?key=swordfish-and-herring", name=told)
        await desk.remember(Remembered("key", {"value": told}))
        await desk.park(told, detail={"why": told})
        return Succeeded()

    assert await _status_of(house, shift, run_now, leaves) == "succeeded"
    async with house.db.connection() as conn:
        tables = await (
            await conn.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 2200")
        ).fetchall()
        for (table,) in tables:
            found = await conn.execute(f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%swordfish%'".encode())
            assert await found.fetchone() == (0,), table
    assert len(tables) > 30


async def test_an_attempt_that_lost_its_run_leaves_nothing_more_at_its_desk(
    house: House, shift: Any, run_now: Any
) -> None:
    refused: list[str] = []
    verbs: list[str] = []
    gone = asyncio.Event()

    async def goes_on(assignment: Assignment, desk: Any) -> Outcome:
        await desk.recall("something")  # it has its seat
        await house.set_run(attempt=2)
        named: dict[str, Callable[[], Awaitable[object]]] = {
            "message": lambda: desk.message("Hello.", to="user"),
            "ack": lambda: desk.ack([]),
            "task": lambda: desk.task([TaskForm("me", prompt="Look.")]),
            "event": lambda: desk.event("ping"),
            "artifact": lambda: desk.artifact("report.md", b"A report."),
            "link": lambda: desk.link("https://example.org/pull/7"),
            "remember": lambda: desk.remember(Remembered("key", 1)),
            "forget": lambda: desk.forget("key"),
            "checkpoint": lambda: desk.checkpoint(b"here"),
            "park": lambda: desk.park("May I?"),
        }
        verbs.extend(named)
        for name, verb in named.items():
            try:
                await verb()
            except Lost:
                refused.append(name)
        gone.set()
        return Succeeded()

    await run_now(await house.automation())
    async with shift(goes_on):
        await gone.wait()
    assert refused == verbs


async def test_the_key_of_an_event_is_its_runs_own(house: House, shift: Any, run_now: Any) -> None:
    await house.automation({"event": "ping"}, overlap="allow")

    async def posts(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.source != "event":
            assert await desk.event("ping", key="k") == await desk.event("ping", key="k")
        return Succeeded()

    for _ in range(2):
        assert await _status_of(house, shift, run_now, posts) == "succeeded"
    assert await house.has_runs(2, source="event")


async def test_an_artifact_that_cannot_be_kept_fails_its_run_and_does_not_hold_it(
    house: House, shift: Any, run_now: Any, tmp_path: Path
) -> None:
    codes: list[str] = []

    async def leaves(_: Assignment, desk: Desk) -> Outcome:
        (tmp_path / "artifacts").mkdir()
        (tmp_path / "artifacts" / str(house.caller.workspace_id)).write_text("in the way")
        with pytest.raises(Broken) as refused:
            await desk.artifact("report.md", b"A report.")
        codes.append(refused.value.code)
        raise refused.value

    run = await _run_of(house, shift, run_now, leaves)
    assert (run["status"], run["error_class"], codes) == ("failed", "executor_error", ["content_unkept"])


async def test_a_secret_does_not_leave_an_attempt_in_the_input_of_a_task(
    house: House, shift: Any, run_now: Any
) -> None:
    async def delegates(assignment: Assignment, desk: Any) -> Outcome:
        desk.hide(Redactor(["swordfish-and-herring"]))
        key = "the key is swordfish-and-herring"
        if assignment.source != "task":
            await desk.task([TaskForm("me", "look", prompt=key, input={"key": key})])
        return Succeeded()

    await _status_of(house, shift, run_now, delegates)
    told = await house.value("SELECT jsonb_build_array(prompt, input) FROM tasks")
    assert told == ["the key is [redacted]", {"key": "the key is [redacted]"}]


async def test_what_was_committed_when_the_connection_broke_is_not_written_twice(
    house: House, wakes: Wakes, shift: Any, run_now: Any, tmp_path: Path
) -> None:
    db = BrokenAfterCommit(house.db)
    depot = Depot(house.db, tmp_path, "", largest=LARGEST)
    office = Office(db, wakes, Recorder(house.db, wakes), Post(house.db, wakes), depot, retry=SOON)  # type: ignore[arg-type]

    async def writes(assignment: Assignment, agents_own: Any) -> Outcome:
        if assignment.source == "task":
            return Succeeded()
        desk = office.desk(agents_own.run)
        write: Callable[[], Awaitable[object]]
        for write in (
            lambda: desk.task([TaskForm("me", prompt="Look.")]),
            lambda: desk.artifact("report.md", b"A report."),
            lambda: desk.link("https://example.org/pull/7"),
        ):
            await desk.recall("something")  # it has a seat, so that what follows is the write
            db.breaks = True
            assert await write()
            assert not db.breaks
        return Succeeded()

    assert await _status_of(house, shift, run_now, writes) == "succeeded"
    assert await house.value("SELECT count(*) FROM tasks") == 1
    assert await house.value("SELECT count(*) FROM artifacts") == 2
    assert await house.value("SELECT count(*) FROM events WHERE kind = 'artifact'") == 2


class BrokenAfterCommit:
    """A database that, if `breaks` is set, commits its next transaction without anybody hearing of it."""

    def __init__(self, db: Database) -> None:
        self._db, self.breaks, self.connection = db, False, db.connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._db.transaction() as conn:
            yield conn
        if self.breaks:
            self.breaks = False
            raise OperationalError("the connection is lost")


async def test_of_a_long_failure_as_much_is_kept_as_a_page_shows(house: House, shift: Any, run_now: Any) -> None:
    async def complains(_: Assignment, desk: Desk) -> Outcome:
        return Failed(ErrorClass.AGENT_ERROR, "é" * 1_000_000, retryable=False)

    await _status_of(house, shift, run_now, complains)
    assert (await house.run())["error_detail"] == "é" * 1999 + "…"
    assert await house.value("SELECT max(length(data::text)) FROM events") < 3000


async def _status_of(house: House, shift: Any, run_now: Any, execute: Any) -> Any:
    run = await _run_of(house, shift, run_now, execute)
    return run["status"] + (f": {run['error_detail']}" if run["error_detail"] else "")


async def _run_of(house: House, shift: Any, run_now: Any, execute: Any) -> Run:
    automation = await house.automation()
    async with shift(execute):
        run_id = await run_now(automation)
        await until(lambda: house.ended(run_id), within=60)
    return await house.run(run_id)


RECURSES = """
    async def work(context):
        for number in range(3):
            try:
                await context.task({"role": "me", "prompt": "Once more."})
                return "Added one."
            except RuntimeError as refused:
                context.say(str(refused))
        return "Refused three times."
"""


async def test_an_agent_that_adds_a_task_for_itself_comes_to_an_end(
    house: House, shift: Any, run_now: Any, python: Any
) -> None:
    """Eight deep by default. The run that is refused has it in its history, once, with how many tasks it was."""
    async with shift(python(RECURSES)):
        await run_now(await house.automation())
        await until(lambda: house.value("SELECT status = 'done' FROM sessions"), within=120)
    assert await house.value("SELECT array_agg(depth ORDER BY id) FROM tasks") == list(range(1, 9))
    assert await house.has_runs(9, status="succeeded")
    deepest = await house.run(refused_tasks=PRESENT)
    assert deepest["refused_tasks"] == {"task_depth": 3}
    assert deepest["id"] == await house.value("SELECT run_id FROM tasks WHERE depth = 8")
    [refused] = await house.value("SELECT array_agg(data) FROM events WHERE data ? 'tasks_refused'")
    assert refused["tasks_refused"] == "task_depth"
    assert re.findall(r"\d+", refused["reason"]) == ["9", "8"], "the depth that they would have, and the limit"
    said = "SELECT string_agg(data ->> 'text', '') FROM events WHERE kind = 'output'"
    assert (await house.value(said)).count(refused["reason"]) == 3


@pytest.mark.parametrize(("policies", "count"), [({"max_task_depth": 2}, 2), ({"max_tasks": 0}, 0)])
async def test_an_automation_says_how_far_its_tasks_go(
    house: House, shift: Any, run_now: Any, python: Any, policies: Any, count: int
) -> None:
    """Also for runs of tasks, which belong to its session and not to it."""
    async with shift(python(RECURSES)):
        await run_now(await house.automation(**policies))
        await until(lambda: house.value("SELECT status = 'done' FROM sessions"), within=60)
    assert await house.value("SELECT count(*) FROM tasks") == count


async def test_one_run_adds_as_many_tasks_as_it_may_in_all_its_attempts(house: House, shift: Any, run_now: Any) -> None:
    refusals: list[Conflict] = []

    async def plan(assignment: Assignment, desk: Desk) -> Outcome:
        if assignment.source == "task":
            return Succeeded()
        form = TaskForm("me", prompt="Help.")
        for forms in ([form, form], [form, form], [form]):
            try:
                await desk.task(forms)
            except Conflict as refusal:
                refusals.append(refusal)
        if assignment.attempt == 1:
            return Failed(ErrorClass.AGENT_ERROR, "Again.")
        return Succeeded()

    run_id = await run_now(await house.automation(max_tasks=3, max_attempts=2))
    async with shift(plan):
        await until(lambda: house.runs(id=run_id, status="queued", tries=1))
        assert await house.value("SELECT count(*) FROM tasks WHERE added_by_run = %s", run_id) == 3
        [refusal] = refusals
        assert (refusal.code, refusal.field) == ("too_many_tasks_of_run", "tasks")
        assert refusal.facts == {"limit": 3, "refused": 2}
        await house.set_run(run_id, ready_at=from_now())
        await until(lambda: house.ended(run_id))
    assert await house.value("SELECT count(*) FROM tasks") == 3
    assert (await house.run(run_id))["refused_tasks"] == {"too_many_tasks_of_run": 7}
    assert await house.value("SELECT count(*) FROM events WHERE data ? 'tasks_refused'") == 1
