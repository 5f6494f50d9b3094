"""What only programs do: standard input, exit codes, lines of JSON, limits, and attacks on their launcher."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.executors import launcher
from rota.executors.command import CommandExecutor
from rota.model.executor import Assignment, Turn
from rota.model.ids import new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support.stand_ins import RecordingDesk, find_marked_pids, is_alive, read_pids, until

Run = Callable[..., "asyncio.Task[Outcome]"]


@pytest.fixture
def run(assign: Callable[..., Assignment], desk: RecordingDesk, grace: timedelta) -> Run:
    def started(*argv: str, config: dict[str, Any] | None = None, **changes: Any) -> asyncio.Task[Outcome]:
        assigned = assign({"argv": list(argv), **(config or {})}, **changes)
        return asyncio.create_task(CommandExecutor(grace=grace).execute(assigned, desk))

    return started


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


async def test_a_program_reads_the_prompt_from_its_standard_input(run: Run, desk: RecordingDesk) -> None:
    assert await run("cat", prompt="Write a poem about é") == Succeeded()
    assert desk.text == "Write a poem about é"


async def test_a_prompt_of_five_megabytes_arrives_whole(run: Run, desk: RecordingDesk) -> None:
    await run("wc", "-c", prompt="x" * 5_000_000)
    assert desk.text.strip() == "5000000"


async def test_a_program_may_ask_for_the_whole_assignment_as_json(run: Run, desk: RecordingDesk) -> None:
    slot = datetime(2027, 1, 1, 9, tzinfo=UTC)
    changes = {"slot": slot, "input": {"folder": "work"}, "transcript": [Turn("user", "Hello")], "attempt": 2}
    environment = {"TOKEN": "hidden"}
    await run(
        *python("print(input()[:-1] + ', \"type\": 1}')"),
        config={"stdin": "json"},
        environment=environment,
        **changes,
    )
    told = json.loads(desk.text)
    assert datetime.fromisoformat(told["slot"]) == slot
    assert (told["input"], told["attempt"], told["prompt"]) == ({"folder": "work"}, 2, "Write a poem")
    assert told["transcript"] == [{"speaker": "user", "text": "Hello"}]
    assert "hidden" not in desk.text


async def test_a_program_may_have_an_empty_standard_input(run: Run, desk: RecordingDesk) -> None:
    assert await run("cat", config={"stdin": "none"}) == Succeeded()
    assert desk.text == ""


async def test_shell_words_are_split_but_no_shell_reads_them(
    assign: Callable[..., Assignment], desk: RecordingDesk
) -> None:
    await CommandExecutor().execute(assign({"command": "echo 'a  b' $HOME ; ls"}), desk)
    assert desk.text == "a  b $HOME ; ls\n"


async def test_a_failure_has_the_exit_code_and_the_last_line_of_stderr(run: Run, desk: RecordingDesk) -> None:
    outcome = await run("sh", "-c", "echo first >&2; echo out of ink >&2; echo >&2; exit 3")
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "exited with code 3: out of ink")
    assert "out of ink" in desk.text


async def test_its_two_outputs_are_told_apart(run: Run, desk: RecordingDesk) -> None:
    await run("sh", "-c", """echo one; echo two >&2; echo '{"type": "say", "text": "three"}'""")
    assert desk.voices == {"": "one\nthree", "stderr": "two\n"}


async def test_other_exit_codes_may_count_as_success(run: Run) -> None:
    assert await run("sh", "-c", "exit 3", config={"success_exit_codes": [0, 3]}) == Succeeded()


async def test_a_file_that_may_not_be_run_fails_once_and_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "poet").write_text("#!/bin/sh\n")
    outcome = await run(str(tmp_path / "poet"))
    assert outcome == Failed(
        ErrorClass.EXECUTOR_ERROR, f"cannot start '{tmp_path}/poet': Permission denied", retryable=False
    )


async def test_a_program_that_cannot_be_run_just_now_is_tried_again(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "poet"
    shutil.copy("/bin/true", program)
    with program.open("r+b"):  # as while it is installed anew
        outcome = await run(str(program))
    assert outcome == Failed(ErrorClass.EXECUTOR_ERROR, f"cannot start '{program}': Text file busy", retryable=True)
    assert await run(str(program)) == Succeeded()


async def test_a_program_with_too_many_arguments_fails_once(run: Run) -> None:
    outcome = await run("echo", "x" * 300_000)
    assert isinstance(outcome, Failed)
    assert outcome.detail == "cannot start 'echo': Argument list too long"


async def test_an_event_done_gives_the_summary(run: Run) -> None:
    assert await run("echo", '{"type": "done", "summary": "A poem"}') == Succeeded("A poem")


async def test_an_event_done_does_not_hide_a_bad_exit_code(run: Run) -> None:
    outcome = await run("sh", "-c", """echo '{"type": "done"}'; exit 1""")
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "exited with code 1")


@pytest.mark.parametrize("code", ["0", "1"])
async def test_an_event_error_says_why_and_whether_to_try_again(run: Run, code: str) -> None:
    error = '{"type": "error", "detail": "no such folder", "retryable": false}'
    outcome = await run("sh", "-c", f"echo '{error}'; exit {code}")
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "no such folder", retryable=False)


async def test_an_event_after_an_error_may_take_it_back(run: Run) -> None:
    assert await run("printf", r"{\"type\":\"error\",\"detail\":\"x\"}\n{\"type\":\"done\"}") == Succeeded()


async def test_too_much_processor_time_ends_a_program_and_says_so(run: Run) -> None:
    outcome = await run(*python("while True: pass"), config={"limits": {"cpu_seconds": 1}})
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "killed by signal SIGXCPU: over limits.cpu_seconds")


async def test_limits_on_files_hold(run: Run, directory: Path, desk: RecordingDesk) -> None:
    code = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE))"
    await run(*python(code), config={"limits": {"open_files": 50}})
    assert desk.text == "(50, 50) (0, 0)\n"
    outcome = await run("sh", "-c", "yes > big", config={"limits": {"file_size": "100kB"}})
    assert isinstance(outcome, Failed)
    assert (directory / "big").stat().st_size <= 100_000


async def test_a_program_has_the_usual_signals_and_no_terminal(run: Run, desk: RecordingDesk) -> None:
    await run("sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status")
    masks = {name: int(mask, 16) for name, mask in re.findall(r"(Sig\w+):\s*(\w+)", desk.text)}
    # Signals 1 to 31: make starts programs with glibc's own signal 32 ignored, which nobody else can set.
    assert {name: mask & 0x7FFF_FFFF for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}
    assert isinstance(await run("sh", "-c", "exec 3<>/dev/tty"), Failed)


async def test_a_program_has_no_descriptors_but_its_own_three(run: Run, desk: RecordingDesk) -> None:
    await run("ls", "/proc/self/fd")
    assert desk.text.split() == ["0", "1", "2", "3"]  # the fourth is the listing


LEAVE_TWO = "sleep 600 & one=$!; setsid sleep 600 & echo $$ $one $! > pids.new; mv pids.new pids; wait"


async def test_a_killed_launcher_is_a_failure_of_ours_and_takes_the_program_along(run: Run, directory: Path) -> None:
    attempt = run("sh", "-c", LEAVE_TWO)
    pids = await until(lambda: read_pids(directory), "the program runs")
    os.kill(psutil.Process(pids[0]).ppid(), signal.SIGKILL)
    outcome = await attempt
    assert isinstance(outcome, Failed)
    assert outcome.error_class == ErrorClass.EXECUTOR_ERROR
    assert outcome.retryable
    await until(lambda: not any(is_alive(pid) for pid in pids), "the program and its children are gone")


async def test_only_the_worker_tells_a_launcher_when_to_stop(run: Run, directory: Path) -> None:
    attempt = run("sh", "-c", "echo $$ > pids.new; mv pids.new pids; until [ -e go ]; do sleep 0.01; done")
    [pid] = await until(lambda: read_pids(directory), "the program runs")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(psutil.Process(pid).ppid(), number)
    (directory / "go").touch()
    assert await attempt == Succeeded()


async def test_a_program_that_stops_its_launcher_is_cancelled_all_the_same(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = run("sh", "-c", f"kill -STOP $PPID; {LEAVE_TWO}")
    pids = await until(lambda: read_pids(directory), "the program runs")
    monkeypatch.setattr(launcher, "PATIENCE", 0.1)
    asked = 0
    while not attempt.done():  # as a worker asks: again and again, and sooner than anybody gives the launcher up
        attempt.cancel()
        await asyncio.wait({attempt}, timeout=0.05)
        asked += 1
        assert asked < 200
    assert attempt.cancelled()
    await until(lambda: not any(is_alive(pid) for pid in pids), "the program and its children are gone")


async def test_processes_that_fork_and_end_without_pause_are_caught(run: Run) -> None:
    mark = f"mark-{new_id()}"
    chain = f"import os, sys; {mark!r}\nwhile True:\n    os.fork() and os._exit(0)"
    attempt = run("sh", "-c", f'{sys.executable} -c "$0" & wait; sleep 600', chain)
    await until(lambda: find_marked_pids(mark), "the chain runs")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert find_marked_pids(mark) == []


async def test_a_stopped_program_is_asked_to_end_too(run: Run, directory: Path) -> None:
    attempt = run(
        "sh",
        "-c",
        "trap 'echo bye > said; exit' TERM; echo $$ > pids.new; mv pids.new pids; kill -STOP $$; sleep 600",
    )
    [pid] = await until(lambda: read_pids(directory), "the program runs")
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it has stopped itself")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert (directory / "said").read_text() == "bye\n"


async def test_last_words_after_a_cancellation_are_heard(run: Run, directory: Path, desk: RecordingDesk) -> None:
    # What the shell itself may say of its child's death, which it learns before or after its own signal, is dropped.
    script = "exec 2>/dev/null; trap 'echo good bye; exit' TERM; echo $$ > pids.new; mv pids.new pids; sleep 600 & wait"
    attempt = run("sh", "-c", script)
    await until(lambda: read_pids(directory), "the program runs")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert desk.text == "good bye\n"


async def test_a_desk_that_does_not_answer_cannot_hold_up_a_cancellation(
    assign: Callable[..., Assignment], grace: timedelta, directory: Path
) -> None:
    class SilentDesk(RecordingDesk):
        async def say(self, text: str, *, voice: str = "") -> None:
            await asyncio.Event().wait()

    argv = ["sh", "-c", "echo $$ > pids.new; mv pids.new pids; yes"]
    attempt = asyncio.create_task(CommandExecutor(grace=grace).execute(assign({"argv": argv}), SilentDesk()))
    [pid] = await until(lambda: read_pids(directory), "the program runs")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert not is_alive(pid)


async def test_output_that_somebody_else_holds_open_does_not_hold_up_the_end(
    run: Run, desk: RecordingDesk, tmp_path: Path
) -> None:
    code = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('../friend'); socket.send_fds(s, [b'x'], [1])"
    with socket.socket(socket.AF_UNIX) as friend:
        friend.bind(str(tmp_path / "friend"))
        friend.listen()
        attempt = run(*python(code + "; print('the end')"))
        with (await asyncio.to_thread(friend.accept))[0] as line:
            [held] = socket.recv_fds(line, 1, 1)[1]
    assert await attempt == Succeeded()
    os.close(held)
    assert desk.text == "the end\n"


async def test_cancelling_at_any_moment_of_the_start_leaves_nothing_and_needs_no_grace(
    assign: Callable[..., Assignment], desk: RecordingDesk
) -> None:
    mark = f"mark-{new_id()}"
    executor = CommandExecutor(grace=timedelta(hours=1))
    for moment in range(25):
        assigned = assign({"argv": ["sh", "-c", f": {mark}; sleep 600"]})
        attempt = asyncio.create_task(executor.execute(assigned, desk))
        await asyncio.wait({attempt}, timeout=moment / 1000)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert find_marked_pids(mark) == []


def test_a_program_that_is_not_on_this_machine_is_a_warning() -> None:
    assert CommandExecutor().check({"argv": ["sh"]}) == []
    [warning] = CommandExecutor().check({"argv": ["no-such-program-here"]})
    assert "no-such-program-here" in warning


async def test_a_program_starts_within_a_moment(run: Run, desk: RecordingDesk) -> None:
    """Measured at 22 ms. A busy machine takes longer, also to start the same program directly."""
    echo = shutil.which("echo") or "echo"

    async def start_directly() -> None:
        await (await asyncio.create_subprocess_exec(echo, "hello", stdout=asyncio.subprocess.DEVNULL)).wait()

    taken, directly = [], []
    for _ in range(5):
        taken.append(await measure(run(echo, "hello")))
        directly.append(await measure(start_directly()))
    assert min(taken) < max(0.2, 20 * min(directly))


async def measure(work: Awaitable[object]) -> float:
    before = time.monotonic()
    await work
    return time.monotonic() - before
