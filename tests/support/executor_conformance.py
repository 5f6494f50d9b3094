"""What every kind of executor promises: a file for each kind imports all of it, so that they are tested side by side.

A new kind joins by describing its behaviours in `kinds.py`. What is marked `process` is shown for each kind by `make soak`,
and by `make test` once for kinds whose processes are started, heard and stopped by the same code.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.errors import Lost
from rota.executors.python import PythonExecutor
from rota.model.executor import Assignment, Executor, LostAttempt
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support import clusters, stand_ins
from support.executor_kinds import Kind, describe_tool_use, events
from support.stand_ins import RecordingDesk, is_alive, read_pids, until

MB = 1_000_000

Run = Callable[..., "asyncio.Task[Outcome]"]
Assign = Callable[..., Assignment]


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    """The one that the file names."""
    named: Kind = request.module.KIND
    return named


@pytest.fixture
def executor(kind: Kind, grace: timedelta) -> Executor:
    return kind.executor(grace)


@pytest.fixture
def behave(kind: Kind, tmp_path: Path) -> Callable[..., Mapping[str, Any]]:
    return lambda how, **config: kind.behave(how, tmp_path / "code", **config)


@pytest.fixture(autouse=True)
async def _libraries_are_loaded(executor: Executor, behave: Callable[..., Mapping[str, Any]], assign: Assign) -> None:
    """A Python agent is forked by a process that has them, once it has: so it is here, each time."""
    if isinstance(executor, PythonExecutor):
        await stand_ins.wait_for_nursery(executor.child(assign(behave("completes"))).libraries)


@pytest.fixture
def run(executor: Executor, behave: Callable[..., Mapping[str, Any]], assign: Assign, desk: RecordingDesk) -> Run:
    """Start an attempt of an agent that behaves in the given way."""

    def started(how: str, config: Mapping[str, Any] | None = None, **changes: Any) -> asyncio.Task[Outcome]:
        assigned = assign(behave(how, **(config or {})), **changes)
        return asyncio.create_task(executor.execute(assigned, desk))

    return started


async def test_an_agent_that_ends_well_has_succeeded_and_its_words_are_kept(run: Run, desk: RecordingDesk) -> None:
    assert isinstance(await run("completes"), Succeeded)
    assert desk.text == "A poem."


async def test_words_are_heard_while_the_agent_still_works(run: Run, desk: RecordingDesk, directory: Path) -> None:
    make_pipe(directory)
    attempt = run("streams")
    await until(lambda: desk.text == "first", "the first word was heard")
    assert not attempt.done()
    await let_go(directory)
    assert isinstance(await attempt, Succeeded)
    assert desk.text == "first last"


async def test_an_agent_that_fails_says_why_and_may_be_tried_again(run: Run) -> None:
    outcome = await run("fails")
    assert isinstance(outcome, Failed)
    assert outcome.error_class == ErrorClass.AGENT_ERROR
    assert outcome.detail.endswith("ValueError: no ink")
    assert outcome.retryable


@pytest.mark.process
async def test_what_failed_is_in_the_transcript(run: Run, desk: RecordingDesk) -> None:
    await run("fails")
    assert "Traceback" in desk.text


@pytest.mark.process
async def test_an_agent_that_hangs_is_gone_when_the_cancellation_arrives(kind: Kind, run: Run, directory: Path) -> None:
    """One that lives elsewhere is left."""
    attempt, elsewhere = run("hangs"), kind.name == "http"
    pids = await until((directory / "asked").exists if elsewhere else lambda: read_pids(directory), "the agent hangs")
    await cancel(attempt)
    if elsewhere:
        await until((directory / "left").exists, "the connection has ended")
    else:
        assert [pid for pid in pids if is_alive(pid)] == []


async def test_all_descendants_go_with_a_cancelled_agent_also_those_that_left_its_group(
    run: Run, directory: Path
) -> None:
    attempt = run("forks")
    pids = await until(lambda: read_pids(directory), "the agent has forked")
    assert len(pids) == 5
    assert all(is_alive(pid) for pid in pids)
    await cancel(attempt)
    assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.process
async def test_what_an_agent_leaves_behind_goes_when_it_ends(run: Run, directory: Path) -> None:
    assert await run("leaves a child") == Succeeded()
    assert [pid for pid in read_pids(directory) or [] if is_alive(pid)] == []


@pytest.mark.process
async def test_an_agent_that_ignores_the_request_is_killed_after_the_grace(
    run: Run, directory: Path, grace: timedelta
) -> None:
    attempt = run("ignores TERM")
    [pid] = await until(lambda: read_pids(directory), "the agent ignores TERM")
    before = time.monotonic()
    await cancel(attempt)
    assert not is_alive(pid)
    assert grace.total_seconds() <= time.monotonic() - before < 5


@pytest.mark.process
async def test_a_second_cancellation_does_not_wait_for_the_grace(
    kind: Kind, behave: Callable[..., Mapping[str, Any]], assign: Assign, desk: RecordingDesk, directory: Path
) -> None:
    executor = kind.executor(timedelta(minutes=10))
    attempt = asyncio.create_task(executor.execute(assign(behave("ignores TERM")), desk))
    [pid] = await until(lambda: read_pids(directory), "the agent ignores TERM")
    attempt.cancel()
    await asyncio.wait({attempt}, timeout=0.05)
    assert is_alive(pid)
    await cancel(attempt)
    assert not is_alive(pid)


@pytest.mark.process
async def test_an_agent_that_dies_by_a_signal_has_failed_with_its_name(run: Run) -> None:
    assert await run("dies") == Failed(ErrorClass.AGENT_ERROR, "killed by signal SIGSEGV")


@pytest.mark.process
async def test_a_flood_grows_neither_the_transcript_nor_the_worker(kind: Kind, run: Run, desk: RecordingDesk) -> None:
    attempt = run("floods", {"output_limit": "2MB"})
    process = psutil.Process()
    before = most = process.memory_info().rss
    while not attempt.done():
        await asyncio.wait({attempt}, timeout=0.01)
        most = max(most, process.memory_info().rss)
    assert await attempt == Succeeded()
    assert desk.text.endswith("the rest is not kept.]\n")
    assert 2 * MB <= len(desk.text) <= 2 * MB + 100
    assert most - before < 40 * MB
    assert events(kind, desk) == [("usage", "tokens", 7)]  # what was used is charged all the same


@pytest.mark.process
async def test_the_loop_goes_on_turning_during_a_flood(run: Run) -> None:
    attempt, longest = run("floods a little", {"output_limit": "2MB"}), 0.0
    while not attempt.done():
        before = time.monotonic()
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - before)
    await attempt
    assert longest < 0.5


@pytest.mark.process
@pytest.mark.parametrize("how", ["forks", "ignores TERM"])
async def test_an_agent_and_its_descendants_die_with_a_killed_worker(
    kind: Kind, how: str, behave: Callable[..., Mapping[str, Any]], directory: Path
) -> None:
    if kind.name == "kubernetes":
        pytest.skip("Its agent is adopted: see test_kubernetes.py")
    words = [sys.executable, stand_ins.__file__, kind.name, json.dumps(behave(how)), str(directory)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    worker = subprocess.Popen(words, env=env)
    try:
        pids = await until(lambda: read_pids(directory), "the agent runs")
        assert all(is_alive(pid) for pid in pids)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    await until(lambda: not any(is_alive(pid) for pid in pids), "the agent and all its descendants are gone")


async def test_an_agent_that_does_not_exist_fails_once_and_is_named(
    kind: Kind, executor: Executor, assign: Assign, desk: RecordingDesk
) -> None:
    config, name = kind.missing()
    outcome = await executor.execute(assign(config), desk)
    assert isinstance(outcome, Failed)
    assert outcome.error_class == ErrorClass.EXECUTOR_ERROR
    assert name in outcome.detail
    assert not outcome.retryable


@pytest.mark.process
async def test_a_second_attempt_sees_the_same_idempotency_key(run: Run, desk: RecordingDesk) -> None:
    await run("shows its key", idempotency_key="slot-9")
    await run("shows its key", idempotency_key="slot-9", attempt=2)
    assert desk.text == "slot-9 1slot-9 2"


@pytest.mark.process
async def test_nothing_of_the_workers_environment_reaches_the_agent_but_what_is_allowed(
    run: Run, desk: RecordingDesk, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", "postgresql://canary")
    monkeypatch.setenv("CANARY", "sings")
    monkeypatch.setenv("TZ", "Europe/Vienna")
    await run("shows its environment", {"env": {"COLOUR": "blue"}}, environment={"TRACEPARENT": "00-1"})
    seen = json.loads(desk.text)
    assert "canary" not in desk.text
    assert "CANARY" not in seen
    assert {seen["TZ"], seen["COLOUR"], seen["TRACEPARENT"]} == {"Europe/Vienna", "blue", "00-1"}
    assert seen["HOME"] == str(directory)


@pytest.mark.process
async def test_an_agent_works_in_its_sessions_own_directory(run: Run, desk: RecordingDesk, directory: Path) -> None:
    await run("shows its directory")
    assert desk.text == f"{directory}0o700"


@pytest.mark.process
async def test_a_long_prompt_that_nobody_reads_does_not_hold_up_the_agent(
    kind: Kind, run: Run, desk: RecordingDesk
) -> None:
    prompt = "Write! " * (getattr(kind, "longest_prompt", 5_600_000) // 7 // 2)
    assert isinstance(await run("completes", prompt=prompt), Succeeded)
    assert desk.text == "A poem."


@pytest.mark.process
async def test_an_agent_may_close_its_output_and_go_on(run: Run) -> None:
    assert await run("closes stdout") == Succeeded()


@pytest.mark.process
async def test_garbage_becomes_text_that_can_be_stored(run: Run, desk: RecordingDesk) -> None:
    assert await run("writes garbage") == Succeeded()
    assert "\0" not in desk.text
    assert "0123456789" in desk.text
    assert desk.text.rstrip("\n").endswith("\ufffd")
    desk.text.encode()


@pytest.mark.process
async def test_a_letter_that_arrives_in_two_halves_is_whole(run: Run, desk: RecordingDesk, directory: Path) -> None:
    make_pipe(directory)
    attempt = run("writes in halves")
    await until(lambda: desk.text == "half of ", "the first half was heard")
    await let_go(directory)
    await attempt
    assert desk.text == "half of é"


async def test_tools_and_usage_reach_the_desk_in_order(kind: Kind, run: Run, desk: RecordingDesk) -> None:
    assert await run("reports") == Succeeded()
    assert desk.text.strip() == "Looking …"
    assert events(kind, desk) == [describe_tool_use(kind, "search", {"query": "rhymes"}), ("usage", "tokens", 12)]


@pytest.mark.process
async def test_an_agent_cannot_use_more_memory_than_it_may(run: Run) -> None:
    outcome = await run("uses too much memory", {"limits": {"memory": "500MB"}})
    assert isinstance(outcome, Failed)
    assert outcome.detail.endswith("MemoryError")


async def test_losing_the_attempt_stops_the_agent_and_is_told_as_it_is(
    kind: Kind, executor: Executor, behave: Callable[..., Mapping[str, Any]], assign: Assign, directory: Path
) -> None:
    class LostDesk(RecordingDesk):
        async def say(self, text: str, *, voice: str = "") -> None:
            raise Lost("the attempt belongs to somebody else")

    body = 'open("pids", "w").write(str(os.getpid())); say("Hello"); signal.pause()'
    with pytest.raises(Lost):
        await executor.execute(assigned := assign(behave(body)), LostDesk())
    if kind.name == "kubernetes":  # it is the next attempt's, or goes with the run
        lost = LostAttempt(
            kind.name, assigned.workspace_id, assigned.run_id, assigned.session_id, 1, assigned.config, ended=True
        )
        await executor.abandon(lost)
        await until(lambda: not clusters.shared().objects(assigned.run_id), "the cluster has deleted it")
    assert [pid for pid in read_pids(directory) or [os.getpid()] if is_alive(pid)] == []


async def test_a_configuration_that_went_wrong_fails_without_another_try(
    executor: Executor, assign: Assign, desk: RecordingDesk
) -> None:
    outcome = await executor.execute(assign({"colour": "blue"}), desk)
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith("config.colour: ")
    assert not outcome.retryable


@pytest.mark.process
async def test_a_machine_without_room_for_the_directory_is_tried_again(
    executor: Executor,
    behave: Callable[..., Mapping[str, Any]],
    assign: Assign,
    tmp_path: Path,
    desk: RecordingDesk,
) -> None:
    (tmp_path / "file").touch()
    outcome = await executor.execute(assign(behave("shows its directory"), directory=tmp_path / "file" / "x"), desk)
    assert isinstance(outcome, Failed)
    assert outcome.error_class == ErrorClass.EXECUTOR_ERROR
    assert outcome.retryable


@pytest.mark.process
async def test_many_agents_work_at_once(kind: Kind, run: Run, desk: RecordingDesk) -> None:
    outcomes = await asyncio.gather(*(run("completes") for _ in range(kind.crowd)))
    assert [type(each) for each in outcomes] == [Succeeded] * kind.crowd
    assert desk.text == "A poem." * kind.crowd


def make_pipe(directory: Path) -> None:
    directory.mkdir()
    os.mkfifo(directory / "go")


async def let_go(directory: Path) -> None:
    """Open and close the pipe at which the agent waits, once it is there."""

    def opened() -> int | None:
        with suppress(OSError):
            return os.open(directory / "go", os.O_WRONLY | os.O_NONBLOCK)
        return None

    os.close(await until(opened, "the agent waits at the pipe"))


async def cancel(attempt: "asyncio.Task[Outcome]") -> None:
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
