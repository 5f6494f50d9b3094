"""What only Python agents do: return, raise, be found, and speak through a line of their own."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rota.agent import Context, GiveUp, Refuse, agent
from rota.errors import Invalid
from rota.executors.python import PythonExecutor
from rota.executors.requests import open_inside
from rota.model.executor import Assignment, Turn
from rota.model.ids import RunId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support.stand_ins import RecordingDesk, is_alive, read_pids, until

Run = Callable[..., "asyncio.Task[Outcome]"]


@pytest.fixture
def run(assign: Callable[..., Assignment], desk: RecordingDesk, grace: timedelta, code: Path) -> Run:
    """Run the function `poet` of the given source."""

    def started(source: str, config: dict[str, Any] | None = None, **changes: Any) -> asyncio.Task[Outcome]:
        (code / "poems.py").write_text(dedent(source))
        assigned = assign(config or {"function": "poems:poet", "path": str(code)}, **changes)
        return asyncio.create_task(PythonExecutor(grace=grace).execute(assigned, desk))

    return started


async def test_the_returned_text_is_the_last_message_and_the_summary(run: Run, desk: RecordingDesk) -> None:
    outcome = await run("""
        from rota.agent import Context, agent

        @agent
        async def poet(context: Context) -> str:
            await context.say("Thinking. ")
            return f"A poem for {context.prompt}"
    """)
    assert outcome == Succeeded("A poem for Write a poem")
    assert desk.text == "Thinking. A poem for Write a poem"


async def test_a_plain_function_is_an_agent_too(run: Run, desk: RecordingDesk) -> None:
    assert await run("def poet(context): context.say('rhymes')") == Succeeded()
    assert desk.text == "rhymes"


async def test_any_other_value_is_said_as_json(run: Run, desk: RecordingDesk) -> None:
    assert await run("def poet(context): return {'lines': 4}") == Succeeded('{"lines": 4}')


CIRCLE = "def poet(context): found = []; found.append(found); return found"
NO_TEXT = """
class Ink:
    def __str__(self): raise LookupError("no ink")

async def poet(context): return [Ink()]
"""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def poet(context): return {(1, 2): 3}", "keys must be str, int, float, bool or None, not tuple"),
        (CIRCLE, "Circular reference detected"),
        (NO_TEXT, "LookupError: no ink"),
    ],
)
async def test_a_value_that_json_does_not_know_is_told_with_the_function_that_returned_it(
    run: Run, desk: RecordingDesk, source: str, told: str
) -> None:
    outcome = await run(source)
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.AGENT_ERROR, False)
    assert outcome.detail.startswith("'poems:poet' returned a ")
    assert told in outcome.detail
    assert outcome.detail.endswith("Return None, text, or what json.dumps() takes.")
    assert "Traceback" not in desk.text


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def poet(context): yield 'a line'", "generator"),
        ("async def poet(context): yield 'a line'", "async_generator"),
        ("def poet(context): return map(context.say, ['a line'])", "map"),
    ],
)
async def test_an_agent_of_which_nothing_would_run_does_not_succeed(
    run: Run, desk: RecordingDesk, source: str, kind: str
) -> None:
    outcome = await run(source)
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.AGENT_ERROR, False)
    assert outcome.detail.startswith(f"'poems:poet' returned a {kind}, of which nothing is done ")
    assert desk.text == ""


async def test_an_agent_sees_everything_about_its_assignment(run: Run) -> None:
    slot, run_id = datetime(2027, 1, 1, 9, tzinfo=UTC), RunId(new_id())
    outcome = await run(
        """
        def poet(c):
            given = (c.slot.isoformat(), c.missed, c.payload, c.input, c.attempt, c.run_id)
            return repr((*given, c.transcript[0].text, c.instructions))
        """,
        slot=slot,
        missed={"count": 2},
        payload={"a": 1},
        input=[1],
        attempt=3,
        run_id=run_id,
        transcript=[Turn("user", "Hello")],
        instructions="Rhyme",
    )
    seen = (slot.isoformat(), {"count": 2}, {"a": 1}, [1], 3, str(run_id), "Hello", "Rhyme")
    assert outcome == Succeeded(repr(seen))


async def test_printing_is_transcript_and_never_an_event(run: Run, desk: RecordingDesk) -> None:
    await run("""def poet(context): print('{"type": "usage", "unit": "tokens", "amount": 1}', end="")""")
    assert desk.calls == [("say", '{"type": "usage", "unit": "tokens", "amount": 1}')]


async def test_its_words_and_its_outputs_are_told_apart(run: Run, desk: RecordingDesk) -> None:
    await run("""
        import sys
        def poet(context):
            print("one")
            print("two", file=sys.stderr)
            context.say("three")
    """)
    assert desk.voices == {"stdout": "one\n", "stderr": "two\n", "": "three"}


@pytest.mark.parametrize("name", ["Refuse", "GiveUp"])
async def test_an_agent_that_declines_is_not_tried_again(run: Run, name: str) -> None:
    outcome = await run(f"""
        from rota.agent import {name}
        def poet(context): raise {name}("I do not write limericks")
    """)
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "I do not write limericks", retryable=False)


async def test_an_exception_is_told_with_its_type_and_tried_again(run: Run, desk: RecordingDesk) -> None:
    outcome = await run("async def poet(context): raise ValueError('no ink')")
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "ValueError: no ink")
    first, where, *_ = desk.text.splitlines()
    assert (first, where.endswith(", in poet")) == ("Traceback (most recent call last):", True), desk.text


async def test_ending_the_process_is_not_completing(run: Run) -> None:
    outcome = await run("import os\ndef poet(context): os._exit(0)")
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "the agent ended without saying it was done")


async def test_an_exit_code_is_told(run: Run) -> None:
    outcome = await run("import sys\nasync def poet(context): sys.exit('no paper')")
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "exited with code 1: no paper")


async def test_a_module_that_breaks_while_it_is_imported_is_named(run: Run, desk: RecordingDesk) -> None:
    outcome = await run("import no_such_thing")
    assert desk.text.splitlines()[1].endswith('poems.py", line 1, in <module>')
    detail = "the module 'poems' cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"
    assert outcome == Failed(ErrorClass.EXECUTOR_ERROR, detail, retryable=False)


@pytest.mark.parametrize(("source", "detail"), [("", "there is no 'poet' in 'poems'"), ("poet = 1", "not a function")])
async def test_a_module_without_such_a_function_is_named(run: Run, source: str, detail: str) -> None:
    outcome = await run(source)
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
    assert detail in outcome.detail


async def test_an_agent_is_found_by_its_entry_point(run: Run, code: Path) -> None:
    package = code / "poetry_club-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: poetry-club\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[rota.agents]\nbard = poems:Club.poet\n")
    source = "class Club:\n    @staticmethod\n    def poet(context): return 'ode'"
    assert await run(source, {"entry_point": "bard", "path": str(code)}) == Succeeded("ode")
    outcome = await run(source, {"entry_point": "bart", "path": str(code)})
    assert isinstance(outcome, Failed)
    assert "known are bard" in outcome.detail


async def test_the_sessions_directory_is_not_searched_for_modules(run: Run) -> None:
    trap = "open('json.py', 'w').write('raise SystemExit(1)')"
    assert await run(f"def poet(context): {trap}") == Succeeded()
    assert await run("import json\ndef poet(context): return 'ode'") == Succeeded("ode")


async def test_the_worker_never_imports_the_agents_code(run: Run) -> None:
    await run("def poet(context): pass")
    assert "poems" not in sys.modules


async def test_an_agent_that_said_it_was_done_but_does_not_end_has_succeeded(run: Run, directory: Path) -> None:
    outcome = await run("""
        import os, threading
        def poet(context):
            open("pids", "w").write(str(os.getpid()))
            threading.Thread(target=threading.Event().wait).start()
            return "ode"
    """)
    assert outcome == Succeeded("ode")
    assert [pid for pid in read_pids(directory) or [] if is_alive(pid)] == []


@pytest.mark.parametrize("pause", ["await asyncio.sleep(600)", "time.sleep(600)"])
async def test_a_cancelled_agent_may_tidy_up(
    assign: Callable[..., Assignment], desk: RecordingDesk, code: Path, directory: Path, pause: str
) -> None:
    (code / "poems.py").write_text(f"""
import asyncio, os, time
async def poet(context):
    try:
        os.close(os.open("started", os.O_CREAT))
        {pause}
    finally:
        open("tidy", "w").close()
""")
    executor = PythonExecutor(grace=timedelta(seconds=30))
    attempt = asyncio.create_task(executor.execute(assign({"function": "poems:poet", "path": str(code)}), desk))
    await until((directory / "started").exists, "the agent works")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert (directory / "tidy").exists()


async def test_requests_are_answered_whether_awaited_or_not(run: Run) -> None:
    outcome = await run("""
        import asyncio
        async def poet(context):
            ask = context._line.request
            pieces = [ask({"type": "say", "text": "x"}) for _ in range(3)]
            assert await asyncio.gather(*pieces) == [None] * 3
            assert ask({"type": "usage", "unit": "tokens", "amount": 1}).result(timeout=10) is None
            try:
                await ask({"type": "dance"})
            except RuntimeError as refusal:
                return str(refusal)
    """)
    assert outcome == Succeeded("the desk does not understand 'dance'")


async def test_messages_from_many_threads_stay_whole(run: Run, desk: RecordingDesk) -> None:
    outcome = await run("""
        from concurrent.futures import ThreadPoolExecutor
        def poet(context):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda n: context.tool("count", n=n, padding="x" * 50_000), range(100)))
    """)
    assert outcome == Succeeded()
    assert sorted(data["n"] for _, _, data in desk.events) == list(range(100))


async def test_a_long_message_is_said_in_pieces_and_a_long_record_refused(run: Run, desk: RecordingDesk) -> None:
    outcome = await run("""
        def poet(context):
            context.say("é" * 5_000_000)
            context.tool("copy", text="x" * 5_000_000)
    """)
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith("ValueError: a message of 5,000,")
    assert "é" * 4_000_000 in desk.text


@pytest.mark.parametrize("send", ["context.tool('copy', data=deep)", "context.remember('copy', deep)"])
async def test_what_is_nested_too_deep_is_refused_to_the_agent_which_goes_on(
    run: Run, desk: RecordingDesk, send: str
) -> None:
    outcome = await run(f"""
        def nested(depth):
            return [nested(depth - 1)] if depth else []
        def poet(context):
            context.tool("copy", data=nested(62))
            deep = nested(63)
            try:
                {send}
            except ValueError as refusal:
                return str(refusal)
    """)
    assert outcome == Succeeded("nested too deep: 64 levels are the most")
    assert len(desk.events) == 1


@pytest.mark.parametrize("path", ["'x' * 300", "'loop'", "'loop/file'", "'.'", "'../code/poems.py'"])
async def test_a_path_that_leads_to_no_file_is_refused_to_the_agent_which_goes_on(run: Run, path: str) -> None:
    outcome = await run(f"""
        import os
        def poet(context):
            os.symlink("loop", "loop")
            try:
                context.artifact("poem", path={path}).result()
            except RuntimeError as refusal:
                return str(refusal)
    """)
    assert isinstance(outcome, Succeeded)
    assert str(outcome.summary).startswith("There is no file ")


async def test_a_file_is_kept_under_its_own_name_however_its_path_is_given(
    run: Run, desk: RecordingDesk, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, bytes]] = []

    async def keep(name: str, content: Path, media_type: str | None = None) -> dict[str, str]:
        kept.append((name, content.read_bytes()))  # noqa: ASYNC240
        return {}

    monkeypatch.setattr(desk, "artifact", keep, raising=False)
    outcome = await run("""
        from pathlib import Path
        def poet(context):
            Path("lines").mkdir()
            Path("lines/poem.md").write_text("A poem.")
            for path in ("lines/poem.md", Path("lines/poem.md")):
                context.artifact(path=path).result()
    """)
    assert outcome == Succeeded()
    assert kept == 2 * [("poem.md", b"A poem.")]


@pytest.mark.parametrize("nonsense", ["b'x' * 5_000_000", "b'hello\\\\n'"])
async def test_nonsense_on_the_line_ends_the_attempt(run: Run, nonsense: str) -> None:
    outcome = await run(f"""
        import os, sys, time
        def poet(context):
            data = {nonsense.encode().decode("unicode_escape")!s}
            while data:
                data = data[os.write(int(sys.argv[1]), data):]
            time.sleep(600)
    """)
    assert isinstance(outcome, Failed)
    assert outcome.error_class == ErrorClass.EXECUTOR_ERROR


async def test_text_that_cannot_be_stored_is_mended(run: Run, desk: RecordingDesk) -> None:
    await run(r"""
        def poet(context):
            context.say("a\0b\ud800c")
            context.tool("look", where={"x\0": ["\udfff"]})
    """)
    assert desk.calls == [("say", "a\ufffdb\ufffdc"), ("tool", "look", {"where": {"x\ufffd": ["\ufffd"]}})]


def test_an_agent_can_be_tried_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    @agent
    def poet(context: Context) -> None:
        context.say("On ")
        context.say(context.prompt or "")
        context.tool("rhyme", word="rain")
        context.say("Pain\n")
        context.usage("words", 1)

    poet(Context(prompt="rain"))
    assert capsys.readouterr().out.splitlines() == [
        "On rain",
        '{"word": "rain", "type": "tool", "name": "rhyme"}',
        "Pain",
        '{"type": "usage", "unit": "words", "amount": 1}',
    ]


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf")])
def test_usage_is_never_negative_or_endless(amount: float) -> None:
    with pytest.raises(ValueError, match="amount"):
        Context().usage("tokens", amount)


def test_refusing_is_a_way_of_giving_up() -> None:
    assert issubclass(Refuse, GiveUp)


def test_importing_what_agents_import_is_light() -> None:
    source = str(Path(__file__).parents[2] / "src")
    program = f"import sys; sys.path.insert(0, {source!r}); import rota.agent; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert {"typing", "dataclasses", "asyncio", "inspect"} & set(loaded.stdout.split()) == set()


def test_a_file_that_becomes_a_link_while_it_is_opened_leads_nowhere(tmp_path: Path) -> None:
    """The worker opens the file and sees more than the agent does; the agent swaps file and link as fast as it can."""
    secret, directory = tmp_path / "secret", tmp_path / "session"
    secret.write_text("secret")
    directory.mkdir()
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (directory / "new").write_text("own")
            (directory / "new").replace(directory / "report")
            (directory / "new").symlink_to(secret)
            (directory / "new").replace(directory / "report")

    swapping = threading.Thread(target=swap)
    swapping.start()
    read = set()
    try:
        for _ in range(3000):
            with suppress(Invalid), open_inside(directory, "report") as file:
                read.add(file.read())
    finally:
        over.set()
        swapping.join()
    assert b"secret" not in read
