"""Launchers are forked by one process that is always ready; programs neither need it nor notice its end."""

import asyncio
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from rota import open_files
from rota.executors import launcher
from rota.executors.command import CommandExecutor
from rota.executors.nursery import THE_NURSERY
from rota.model.executor import Assignment
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support.stand_ins import RecordingDesk, is_alive, read_pids, until

Run = Callable[..., "asyncio.Task[Outcome]"]

WAIT = "echo $$ > pids.new; mv pids.new pids; until [ -e go ]; do sleep 0.01; done"


@pytest.fixture
def run(assign: Callable[..., Assignment], desk: RecordingDesk, grace: timedelta) -> Run:
    def started(*argv: str, **changes: object) -> asyncio.Task[Outcome]:
        return asyncio.create_task(CommandExecutor(grace=grace).execute(assign({"argv": list(argv)}, **changes), desk))

    return started


@pytest.fixture
async def nursery(run: Run) -> psutil.Process:
    """The one that serves this process."""
    assert await run("true") == Succeeded()
    return _the_nursery()


def _the_nursery() -> psutil.Process:
    [found] = [each for each in psutil.Process().children() if _is_nursery(each)]
    return found


def _is_nursery(process: psutil.Process) -> bool:
    try:
        return launcher.__file__ in process.cmdline()
    except psutil.Error:  # somebody else's child that has just ended
        return False


@pytest.fixture(autouse=True)
def _a_new_one_for_each_test() -> Iterator[None]:
    yield
    THE_NURSERY.end()


async def test_all_launchers_are_forks_of_one_process(run: Run, nursery: psutil.Process, directory: Path) -> None:
    attempt = run("sh", "-c", WAIT)
    [pid] = await until(lambda: read_pids(directory), "the program runs")
    launcher = psutil.Process(pid).parent()
    assert launcher
    assert launcher.parent() == nursery
    (directory / "go").touch()
    assert await attempt == Succeeded()


async def test_what_runs_goes_on_when_the_nursery_is_killed_and_the_next_program_has_another(
    run: Run, nursery: psutil.Process, directory: Path
) -> None:
    attempt = run("sh", "-c", WAIT)
    await until(lambda: read_pids(directory), "the program runs")
    nursery.kill()
    nursery.wait()
    assert await run("true", directory=directory.with_name("another")) == Succeeded()
    (directory / "go").touch()
    assert await attempt == Succeeded()


async def test_who_waits_for_a_stopped_nursery_fails_soon_and_the_next_is_served_by_another(
    run: Run, nursery: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "PATIENCE", 0.2)
    nursery.suspend()
    outcome = await run("true")
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, True)
    assert not is_alive(nursery.pid)
    assert await run("true") == Succeeded()


async def test_a_busy_nursery_is_not_taken_for_a_stopped_one(
    run: Run, nursery: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "PATIENCE", 0.6)
    nursery.suspend()
    attempt = run("true")
    for _ in range(60):  # others are being launched, for twice as long
        THE_NURSERY.answered()
        await asyncio.sleep(0.02)
    nursery.resume()
    assert await attempt == Succeeded()


async def test_a_nursery_that_may_open_too_little_fails_the_run_and_serves_the_next(
    run: Run, nursery: psutil.Process
) -> None:
    few, many = 6, nursery.rlimit(psutil.RLIMIT_NOFILE)
    nursery.rlimit(psutil.RLIMIT_NOFILE, (few, many[1]))
    assert isinstance(await run("true"), Failed)
    nursery.rlimit(psutil.RLIMIT_NOFILE, many)
    assert await run("true") == Succeeded()


async def test_a_worker_may_open_many_files_and_its_agents_as_many_as_it_was_started_with(
    run: Run, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    THE_NURSERY.end()
    monkeypatch.setattr(open_files, "_before", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, before[1]))
    try:
        open_files.open_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(before[1], open_files.MOST_FILES), before[1])
        assert await run("sh", "-c", "ulimit -Sn; ulimit -Hn") == Succeeded()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert desk.text.split() == ["900", str(before[1])]


async def test_it_knows_nothing_of_the_environment_and_hears_no_signal_that_stops_a_service(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    THE_NURSERY.end()
    monkeypatch.setenv("ROTA_TEST_SECRET", "hidden")
    assert await run("true") == Succeeded()
    found = _the_nursery()
    assert set(found.environ()) <= {"LD_LIBRARY_PATH", "LC_CTYPE"}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        found.send_signal(number)
    assert await run("true") == Succeeded()
    assert is_alive(found.pid)


SHARES = """
import os, socket, sys
ours, theirs = socket.socketpair()
number = int(sys.argv[2])
os.dup2(theirs.fileno(), 250)
os.dup2(ours.fileno(), 251)
ours.close(), theirs.close()
os.dup2(250, number), os.close(250)
ours, theirs = socket.socket(fileno=251), socket.socket(fileno=number)

import asyncio
from datetime import timedelta
from pathlib import Path
from rota.executors.process import Exited, Spec, attend, start
from rota.model.agent_config import Limits

async def main():
    argv = [sys.executable, "-c", f"import os; os.write({number}, b'here')"]
    program = start(Spec(argv, {}, Path(sys.argv[1]), Limits(), timedelta(seconds=1)), [theirs])
    assert await attend(program, asyncio.sleep(0)) == Exited(0)
    assert ours.recv(10) == b"here"

asyncio.run(main())
"""


@pytest.mark.parametrize("number", ["3", "5", "8", "12", "13", "200"])
def test_a_shared_socket_has_the_same_number_whatever_the_nursery_has_open(number: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SHARES, str(tmp_path), number], check=True, timeout=60)


WORKER = """
import asyncio, sys
from datetime import timedelta
from pathlib import Path
from rota.executors.process import Spec, attend, start
from rota.model.agent_config import Limits

async def main():
    spec = Spec(["sh", "-c", "echo $$ $PPID > pids.new; mv pids.new pids; sleep 600"], {"PATH": "/usr/bin:/bin"},
                Path(sys.argv[1]), Limits(), timedelta(seconds=0.1))
    await attend(start(spec), asyncio.sleep(0))

asyncio.run(main())
"""


async def test_nursery_launcher_and_program_end_with_a_killed_worker(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)]) as worker:
        program, launched = await until(lambda: read_pids(tmp_path), "the program runs")
        nursery = psutil.Process(launched).ppid()
        assert psutil.Process(nursery).ppid() == worker.pid
        worker.kill()
    await until(lambda: not any(map(is_alive, (program, launched, nursery))), "nothing is left")


def test_a_worker_that_dies_over_a_request_leaves_no_nursery() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        argv = [sys.executable, "-I", "-S", launcher.__file__, str(theirs.fileno())]
        process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
    ours.sendall(b"half")
    ours.close()
    assert process.wait(20) == 0
