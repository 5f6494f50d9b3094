"""Which sandbox is chosen, what it lets an agent see, and what happens where bubblewrap does not work.

`tests/process/test_escapes.py` has the attacks of a hostile agent on a whole Rota.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.errors import CannotStart
from rota.executors.nursery import nursery_in
from rota.executors.process import Ending, Exited, Killed, Spec, Vanished, attend, start
from rota.executors.sandbox import UNCONFINED, Sandbox, choose, find_bubblewraps
from rota.model.agent_config import Limits

ROOT = os.geteuid() == 0
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="Rota has no sandbox on this system")
as_root = pytest.mark.skipif(not ROOT, reason="only root can give up being root")


def _everybody_runs(python: str) -> bool:
    path = Path(os.path.realpath(python))
    return path.exists() and all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


@pytest.fixture
def python_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's own Python may lie where nobody else can run it; then the system's takes its place."""
    found = next((each for each in (sys.executable, "/usr/bin/python3") if _everybody_runs(each)), None)
    if found is None:
        pytest.skip("no Python here can be run by every user")
    monkeypatch.setattr(sys, "executable", found)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "vault.keys").write_text("key")
    (home / "vault.keys").chmod(0o600)
    for parent in (tmp_path, *tmp_path.parents):  # the fallback's user must get this far
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
    return home


def guard(home: Path, **options: Any) -> Sandbox:
    return choose("guard", required=True, home=home, **options)


def choose_without_bubblewrap(home: Path) -> Sandbox:
    return choose("guard", required=False, home=home, bubblewraps=())


async def run(found: Sandbox, home: Path, script: str, *, session: str = "own", limits: Limits | None = None,
              when_started: Callable[[psutil.Process], None] | None = None) -> tuple[Ending, str]:  # fmt: skip
    """Run a shell script as an agent of a session would be."""
    directory = home / "sessions" / "workspace" / session
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    found.prepare(directory)
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "ROTA_RUN_ID": session, "ROTA_ATTEMPT": "1"}
    spec = Spec(["sh", "-c", script], env, directory, found.with_limits(limits or Limits()), timedelta(seconds=1))
    program = start(spec, nursery=nursery_in(found))
    said = bytearray()

    async def hear() -> None:
        while piece := await program.stdout.read():
            said.extend(piece)
            if when_started:
                when_started(launcher_of(found))

    async def ignore() -> None:
        while await program.stderr.read():
            pass

    program.stdin.close()
    try:
        return await attend(program, hear(), ignore()), said.decode()
    finally:
        nursery_in(found).end()


def launcher_of(found: Sandbox) -> psutil.Process:
    """The only process of this one that is process 1 of its namespace and runs the launcher."""
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # one that has just ended
            if found.confinement in each.cmdline() and _number_inside(each.pid) == 1:
                return each
    raise AssertionError("no launcher is at work")


def _number_inside(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("NSpid:")).split()[-1])


@linux_only
async def test_an_agent_has_its_directory_and_the_machine_and_nothing_of_rota(home: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "file-of-the-user"
    theirs.write_text("the user's own")
    (home / "sessions" / "workspace" / "other").mkdir(parents=True)
    script = f"echo mine > kept; ls {home} {home}/sessions/workspace; cat {theirs} {home}/vault.keys; echo; id -u; echo x >> {theirs}"
    ending, said = await run(guard(home), home, script)
    assert (home / "sessions" / "workspace" / "own" / "kept").read_text() == "mine\n"
    assert theirs.read_text() == "the user's ownx\n", "the machine is as its user sees it"
    assert f"\n{os.geteuid()}\n" in said, "the agent is still the user"
    assert "the user's own" in said
    assert "vault.keys" not in said
    assert "other" not in said
    assert ending == Exited(0)


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_how_an_agent_ended_is_known_exactly(home: Path, number: int) -> None:
    found = guard(home)
    assert (await run(found, home, f"kill -{number} $$"))[0] == Killed(number)
    assert (await run(found, home, f"exit {128 + number}"))[0] == Exited(128 + number)


@linux_only
async def test_what_an_agent_leaves_behind_dies_with_its_launcher(home: Path) -> None:
    """Even if the launcher is killed, and nobody knows which processes it had."""
    mark = f"left-behind-{os.getpid()}"

    def kill(launcher: psutil.Process) -> None:
        launcher.kill()

    script = f"setsid sh -c 'sleep 600; : {mark}' & echo started; sleep 600"
    ending, _ = await run(guard(home), home, script, when_started=kill)
    assert ending == Vanished()
    assert not [each for each in psutil.process_iter(["cmdline"]) if mark in " ".join(each.info["cmdline"] or ())]


@linux_only
async def test_limits_apply_by_default_and_an_agent_may_set_its_own(home: Path) -> None:
    found = guard(home)
    _, said = await run(found, home, "ulimit -d; ulimit -f; ulimit -c")
    assert said.split() == [str(found.limits.memory // 1024), str(found.limits.file_size // 512), "0"]  # type: ignore[operator]
    own = Limits(memory=64 << 20, processes=7)
    _, said = await run(found, home, "ulimit -d; cat /proc/self/limits", limits=own)
    assert said.split()[0] == str(64 << 10)
    assert [line.split()[2] for line in said.splitlines() if line.startswith("Max processes")] == ["7"]


@linux_only
@pytest.mark.skipif(ROOT, reason="the kernel does not count root's processes")
async def test_a_run_has_a_limit_of_processes_of_its_own(home: Path) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9; do sleep 5 & done 2>/dev/null; echo forked"
    assert (await run(guard(home), home, script, limits=Limits(processes=3)))[0] != Exited(0)


@linux_only
@pytest.mark.parametrize("bwrap", list(find_bubblewraps()))
def test_every_bubblewrap_that_is_installed_works(home: Path, bwrap: str) -> None:
    found = guard(home, bubblewraps=[bwrap])
    assert (found.name, found.prefix[0]) == ("guard", bwrap)


@linux_only
@pytest.mark.usefixtures("python_for_all")
def test_a_bubblewrap_that_fails_is_not_used(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    found = choose("guard", required=False, home=home, bubblewraps=[str(broken)])
    assert found.name == ("user" if ROOT else "none")
    assert "setting up uid map: Permission denied" in found.describe()
    with pytest.raises(CannotStart, match="Permission denied") as refused:
        guard(home, bubblewraps=[str(broken)])
    assert (refused.value.code, refused.value.field) == ("no_sandbox", "ROTA_SANDBOX_REQUIRED")


@linux_only
@as_root
@pytest.mark.usefixtures("python_for_all")
async def test_without_bubblewrap_root_has_its_agents_run_as_somebody_else(home: Path, tmp_path: Path) -> None:
    found = choose_without_bubblewrap(home)
    assert (found.name, "is not installed" in found.detail) == ("user", True)
    uid = json.loads(found.confinement)["uid"]
    planted = tmp_path / "of-root"
    planted.write_text("x")
    planted.chmod(0o600)
    (home / "sessions" / "workspace" / "own").mkdir(parents=True)
    (home / "sessions" / "workspace" / "own" / "link").symlink_to(planted)
    script = f"id -u; id -G; echo mine > kept; cat {home}/vault.keys; ls {home}; kill -0 {os.getpid()} && echo signalled; grep -E 'Cap(Eff|Prm|Bnd)|NoNew' /proc/self/status"
    ending, said = await run(found, home, script)
    assert said.split()[:2] == [str(uid), str(uid)]
    assert "key" not in said
    assert "signalled" not in said
    assert [line.split()[1] for line in said.splitlines()[2:]] == 3 * ["0000000000000000"] + ["1"]
    assert (home / "sessions" / "workspace" / "own" / "kept").stat().st_uid == uid
    assert planted.stat().st_uid == 0, "what a link leads to is not given away"
    assert isinstance(ending, Exited)


@linux_only
@as_root
@pytest.mark.usefixtures("python_for_all")
def test_each_worker_has_a_user_of_its_own(home: Path) -> None:
    first, second = (choose_without_bubblewrap(home) for _ in range(2))
    assert json.loads(first.confinement)["uid"] != json.loads(second.confinement)["uid"]
    assert second.lock is not None
    os.close(second.lock)
    third = choose_without_bubblewrap(home)
    assert json.loads(third.confinement)["uid"] == json.loads(second.confinement)["uid"], "the first that is free"
    for each in (first, third):
        assert each.lock is not None
        os.close(each.lock)


def test_an_ordinary_user_without_bubblewrap_has_no_sandbox_and_is_told_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = choose_without_bubblewrap(home)
    assert (found.name, found.prefix, found.confinement) == ("none", (), "")
    assert "bubblewrap" in found.describe()


@linux_only
@as_root
def test_no_other_user_is_used_that_could_not_run_python(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(private / "python"))
    assert choose_without_bubblewrap(home).name == "none"


def test_macos_is_told_that_there_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert choose_without_bubblewrap(home).describe() == "none: Rota has no sandbox for macOS"


def test_it_can_be_turned_off(home: Path) -> None:
    assert choose("off", required=False, home=home) == UNCONFINED
    assert UNCONFINED.with_limits(Limits(memory=1)) == Limits(memory=1)


def test_a_process_that_starts_an_agent_has_at_least_its_limits() -> None:
    found = replace(UNCONFINED, limits=Limits(memory=100, file_size=10))
    assert found.at_least(Limits(memory=500, open_files=3)) == Limits(memory=500, file_size=10)
    assert found.at_least(Limits(memory=50)) == Limits(memory=100, file_size=10)
