"""Python agents are forked by a process that has their libraries loaded, and find themselves as in a new Python."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from rota.executors import launcher, warm
from rota.executors.briefing import ALLOWED, of_machine
from rota.executors.langgraph import LanggraphExecutor
from rota.executors.llm import LlmExecutor
from rota.executors.nursery import THE_NURSERY
from rota.executors.python import PythonExecutor
from rota.model.executor import Assignment
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support.stand_ins import RecordingDesk, is_alive, read_pids, until, wait_for_nursery

Run = Callable[..., "asyncio.Task[Outcome]"]

MACHINE = of_machine(ALLOWED)

SHOWS_ITSELF = """
    import ctypes, gc, json, os, resource, signal, sys, threading

    def poet(context):
        handled = {number.name: str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()
                   if isinstance(number, signal.Signals)}
        limits = [resource.getrlimit(getattr(resource, each)) for each in sorted(dir(resource)) if each.startswith("RLIMIT_")]
        files = sorted(fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}"))
        return json.dumps({
            "argv": sys.argv[:1], "environ": dict(os.environ), "directory": os.getcwd(), "signals": handled,
            "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "limits": limits, "files": len(files),
            "threads": threading.active_count(), "path": sys.path, "flags": str(sys.flags), "umask": os.umask(0o22),
            "wakeup": signal.set_wakeup_fd(-1), "collected": gc.isenabled(), "encoding": sys.stdout.encoding,
            "leads": os.getpgrp() == os.getpid(), "subreaper": _subreaper(), "main": os.path.basename(sys.argv[0]),
        })

    def _subreaper():
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0)
        return found.value
"""


@pytest.fixture
def run(assign: Callable[..., Assignment], desk: RecordingDesk, grace: timedelta, code: Path) -> Run:
    """Run the function `poet` of the given source."""

    def started(source: str, **changes: Any) -> asyncio.Task[Outcome]:
        (code / "poems.py").write_text(dedent(source))
        config = {"function": "poems:poet", "path": str(code), **changes.pop("config", {})}
        return asyncio.create_task(PythonExecutor(grace=grace).execute(assign(config, **changes), desk))

    return started


@pytest.fixture(autouse=True)
def _new_ones_for_each_test() -> Iterator[None]:
    warm.end_all()
    yield
    warm.end_all()


async def ready(libraries: warm.Libraries = (), env: Mapping[str, str] = MACHINE) -> psutil.Process:
    """Wait for the nursery with these libraries; the process that it is."""
    await wait_for_nursery(libraries, env)
    [process] = [each for each in psutil.Process().children() if _has(each, libraries)]
    return process


def _has(process: psutil.Process, libraries: warm.Libraries) -> bool:
    try:
        command = process.cmdline()
        return warm.SCRIPT in command and tuple(command[command.index(warm.SCRIPT) + 4 :]) == libraries
    except psutil.Error:  # somebody else's child that has just ended
        return False


WAITS = """
    import os, signal
    def poet(context):
        open("pids.new", "w").write(f"{os.getpid()} {os.getppid()}")
        os.rename("pids.new", "pids")
        signal.pause()
"""


async def grandparent(directory: Path) -> int:
    """Of the program that waits: the nursery of its launcher."""
    _, launched = await until(lambda: read_pids(directory), "the agent waits")
    return psutil.Process(launched).ppid()


async def ended(attempt: "asyncio.Task[Outcome]") -> None:
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt


async def test_the_first_agent_begins_in_a_new_python_and_the_next_is_forked(run: Run, directory: Path) -> None:
    first = run(WAITS)
    assert await grandparent(directory) != (await ready()).pid
    await ended(first)
    (directory / "pids").unlink()
    second = run(WAITS)
    assert await grandparent(directory) == (await ready()).pid
    await ended(second)


AS_ASYNCIO_FORKS = """
    import os, runpy, signal
    from rota.executors import python_nursery
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    runpy.run_path(python_nursery.__file__, run_name="__main__")
"""


@pytest.mark.parametrize("later", [False, True], ids=["this Python", "asyncio since 3.12"])
async def test_it_finds_itself_as_in_a_new_python(
    run: Run, assign: Callable[..., Assignment], later: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if later:
        (tmp_path / "nursery.py").write_text(dedent(AS_ASYNCIO_FORKS))
        monkeypatch.setattr(warm, "SCRIPT", str(tmp_path / "nursery.py"))
    same = {"run_id": assign({}).run_id, "session_id": assign({}).session_id, "environment": {"KEY": "secret"}}
    anew = await run(SHOWS_ITSELF, **same)
    await ready()
    forked = await run(SHOWS_ITSELF, **same)
    assert isinstance(anew, Succeeded)
    assert isinstance(forked, Succeeded)
    assert json.loads(forked.summary or "") == json.loads(anew.summary or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"env": {"OWN": "1"}}},
        {"environment": {"PYTHONPATH": "/"}},
        {"environment": {"PATH": "/usr/bin:/bin"}},
    ],
    ids=["variables of its own", "what Python reads as it starts", "another machine's"],
)
async def test_who_has_variables_that_a_new_python_reads_has_a_new_python(
    run: Run, directory: Path, changes: dict[str, Any]
) -> None:
    nursery = await ready()
    attempt = run(WAITS, **changes)
    assert await grandparent(directory) not in (nursery.pid, None)
    await ended(attempt)


async def test_all_that_it_forks_bears_its_marks_and_is_killed_when_its_launcher_is(run: Run, directory: Path) -> None:
    await ready()
    attempt = run("""
        import os, signal
        def poet(context):
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(writer, str(os.getpid()).encode())
                    while True:
                        signal.pause()
                os._exit(0)
            open("pids.new", "w").write(f"{os.getppid()} {os.getpid()} {os.read(reader, 20).decode()}")
            os.rename("pids.new", "pids")
            while True:
                signal.pause()
    """)
    launched, *programs = await until(lambda: read_pids(directory), "the agent has forked")
    os.kill(launched, signal.SIGKILL)
    assert isinstance(await attempt, Failed)
    await until(lambda: not any(map(is_alive, programs)), "nothing is left")


async def test_agents_do_not_share_their_random_numbers(run: Run) -> None:
    await ready()
    source = "import random, uuid\ndef poet(context): return f'{random.random()} {uuid.uuid4()}'"
    first, second = [await run(source) for _ in range(2)]
    assert isinstance(first, Succeeded)
    assert isinstance(second, Succeeded)
    assert not set(str(first.summary).split()) & set(str(second.summary).split())


async def test_the_code_of_an_agent_is_read_anew_each_time(run: Run) -> None:
    await ready()
    for words in ("first", "second"):
        assert await run(f"def poet(context): return {words!r}") == Succeeded(words)


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage loads these modules into every new Python")
@pytest.mark.parametrize("name", ["copy", "platform", "contextlib"])
async def test_an_agents_own_module_comes_before_one_of_its_name_that_is_loaded(
    run: Run, code: Path, name: str
) -> None:
    """Which only the nursery has loaded: the first agent, in a new Python, would find its own."""
    (code / f"{name}.py").write_text("WORDS = 'my own'")
    await ready()
    assert await run(f"import {name}\ndef poet(context): return {name}.WORDS") == Succeeded("my own")


async def test_modules_that_a_new_python_has_stay_and_a_folder_or_a_link_changes_nothing(run: Run, code: Path) -> None:
    for name in ("copy", "json"):
        (code / name).mkdir()
    (code / "json" / "__init__.py").touch()
    (code / "uuid.py").symlink_to(str(uuid.__file__))
    source = """
        import copy, json, uuid
        from rota.model import ids
        def poet(context): return f"{copy.deepcopy([])} {json.dumps([])} {ids.UUID is uuid.UUID}"
    """
    for _ in range(2):
        assert await run(source) == Succeeded("[] [] True")
        await ready()


async def test_it_knows_what_a_new_python_would_not_have_loaded(run: Run) -> None:
    source = """
        import sys
        ahead = getattr(sys.modules.get("rota.executors.python_child"), "loaded_ahead", ())
        others = " ".join(sorted(set(sys.modules) - set(ahead) - set(sys.builtin_module_names)))
        def poet(context): return others
    """
    anew = await run(source)
    await ready()
    assert await run(source) == anew


ENDINGS = {
    "what it registered, and its threads": (
        """
        import atexit, sys, threading, time
        def poet(context):
            atexit.register(print, "registered")
            threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
            sys.stdout.write("unfinished ")
        """,
        Succeeded(None),
        "unfinished thread\nregistered\n",
    ),
    "its word of farewell": (
        "import sys\ndef poet(context): sys.exit('farewell')",
        ErrorClass.AGENT_ERROR,
        "farewell\n",
    ),
    "an exit with a number": ("import sys\ndef poet(context): sys.exit(259)", ErrorClass.AGENT_ERROR, ""),
    "an interruption": ("def poet(context): raise KeyboardInterrupt", ErrorClass.AGENT_ERROR, "KeyboardInterrupt"),
}


@pytest.mark.parametrize("how", ENDINGS)
async def test_it_ends_as_a_new_python_does(run: Run, desk: RecordingDesk, how: str) -> None:
    source, expected, words = ENDINGS[how]
    for forked in (False, True):
        if forked:
            await ready()
        desk.calls.clear()
        outcome = await run(source)
        assert (outcome.error_class if isinstance(outcome, Failed) else outcome) == expected
        assert words in desk.text


@pytest.mark.parametrize(
    ("executor", "config"),
    [
        (LlmExecutor(), {"model": "openai:gpt-5"}),
        (LlmExecutor(), {"model": "function:poems:poet"}),
        (LanggraphExecutor(), {"graph": "poems:poet"}),
    ],
    ids=["a model", "a function", "a graph"],
)
async def test_the_libraries_of_our_kinds_can_be_forked(
    executor: PythonExecutor, config: dict[str, Any], assign: Callable[..., Assignment]
) -> None:
    libraries = executor.child(assign(config)).libraries
    process = await ready(libraries)
    assert process.memory_info().rss > 40_000_000  # they are loaded


async def test_libraries_that_cannot_be_loaded_or_begin_a_thread_leave_agents_to_a_new_python(
    run: Run, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[9], daemon=True).start()"
    )
    env = {**MACHINE, "PYTHONPATH": str(code)}
    for libraries in (("no_such_module_here",), ("threaded",)):
        warm.nursery_with(libraries, env)
        [nursery] = warm._warm.values()
        await until(lambda: not nursery.is_ready() and nursery.fileno() == -1, "it has given up")  # noqa: B023
        assert warm.nursery_with(libraries, env) is THE_NURSERY
        assert nursery.fileno() == -1, "it is not tried again and again"
        warm.end_all()


async def test_what_is_installed_later_is_found_because_another_nursery_follows(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    first = await ready()
    (packages / "installed.py").touch()
    assert warm.nursery_with((), MACHINE) is THE_NURSERY
    assert (await ready()).pid != first.pid
    assert not is_alive(first.pid)


async def test_when_it_is_killed_the_next_agent_has_a_new_python_and_the_one_after_it_another_nursery(run: Run) -> None:
    first = await ready()
    first.kill()
    first.wait()
    assert await run("def poet(context): return 'A poem.'") == Succeeded("A poem.")
    assert (await ready()).pid != first.pid


async def test_who_waits_for_a_stopped_one_fails_soon_and_the_next_is_served(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await ready()
    monkeypatch.setattr(launcher, "PATIENCE", 0.2)
    first.suspend()
    outcome = await run("def poet(context): return 'A poem.'")
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, True)
    assert not is_alive(first.pid)
    monkeypatch.undo()
    assert await run("def poet(context): return 'A poem.'") == Succeeded("A poem.")


async def test_one_that_was_killed_over_a_request_is_followed_by_another(run: Run) -> None:
    first = await ready()
    first.suspend()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        warm.nursery_with((), MACHINE).launch([theirs.fileno()] * 3, theirs, [])
    first.kill()
    first.wait()
    assert await run("def poet(context): return 'A poem.'") == Succeeded("A poem.")
    assert (await ready()).pid != first.pid


async def test_where_none_can_be_started_agents_begin_in_a_new_python(run: Run) -> None:
    await run("def poet(context): pass")  # the common one is there
    warm.end_all()
    before = threading.stack_size(2**47)  # more than there are addresses: no thread can be started
    try:
        assert await run("def poet(context): return 'A poem.'") == Succeeded("A poem.")
        assert await run("def poet(context): return 'Another.'") == Succeeded("Another.")
    finally:
        threading.stack_size(before)
    assert not [each for each in psutil.Process().children() if _has(each, ())]


async def test_one_that_nobody_asks_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "PATIENCE_SECONDS", 0.3)
    process = await ready()
    await until(lambda: not psutil.pid_exists(process.pid), "it has ended, and nobody has to ask how")
    assert (await ready()).pid != process.pid


def test_whoever_asks_one_that_is_leaving_is_refused_and_not_forgotten() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(0.01)
        assert launcher.receive(theirs) is None
        with pytest.raises(BrokenPipeError):
            ours.send(b"a launcher, please")


async def test_of_many_the_one_that_was_asked_longest_ago_ends() -> None:
    kinds = [(each,) for each in ("json", "csv", "html", "glob", "uuid")]
    assert len(kinds) == warm.MOST + 1
    processes = [await ready(libraries) for libraries in kinds]
    assert [is_alive(each.pid) for each in processes] == [False, True, True, True, True]


async def test_it_ends_with_its_worker(tmp_path: Path) -> None:
    script = (
        "import time\nfrom rota.executors import warm\nwarm.nursery_with((), {})\nprint(flush=True)\ntime.sleep(600)"
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout
    await worker.stdout.readline()
    [nursery] = psutil.Process(worker.pid).children()
    worker.kill()
    await worker.wait()
    await until(lambda: not is_alive(nursery.pid), "nothing is left")
