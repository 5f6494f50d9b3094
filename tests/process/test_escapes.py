"""A hostile agent gains nothing of Rota: as root and as an ordinary user, as a program and as a forked Python agent."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

import rota as rota_package
from rota.access import key_ring
from support import as_user, hostile_agent
from support.rota_process import ROTA, Rota, clean_environment, furnished, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Rota has no sandbox on this system"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
AS_USER = str(as_user.__file__)
SUPPORT = Path(hostile_agent.__file__).parent


class House:
    """A running Rota, with one session of another run whose directory holds a file."""

    def __init__(self, rota: Rota, home: Path, prefix: list[str]) -> None:
        self.rota, self.home, self.prefix = rota, home, prefix
        command = [*prefix, str(ROTA), "tokens", "create", "test", "--home", str(home)]
        made = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True, timeout=60)
        self.token = made.stdout.strip()
        self.rota.post(self.token, "/agents", _agent("other", "command", {"argv": ["sh", "-c", "echo mine > secret"]}))
        self.other = self.directory(self.run("other"))
        assert (self.other / "secret").read_text() == "mine\n"

    def run(self, agent: str, **more: Any) -> Any:
        """Run an agent to its end."""
        run_id = self.rota.post(self.token, f"/agents/{agent}/runs", {"prompt": "go", **more})["id"]
        ended = ("succeeded", "failed", "cancelled", "skipped")
        return until(lambda: (run := self.rota.get(self.token, f"/runs/{run_id}"))["status"] in ended and run)

    def directory(self, run: dict[str, Any]) -> Path:
        return next((self.home / "sessions").glob(f"*/{run['session_id']}"))

    def facts(self) -> dict[str, Any]:
        [server_socket] = [
            each for each in psutil.net_connections("unix") if str(each.laddr).endswith(".s.PGSQL.5432") and
            str(each.laddr).startswith(str(self.home)) and each.status == "NONE"
        ][:1]  # fmt: skip
        return {
            "home": str(self.home),
            "key": str(self.home / key_ring.FILE),
            "database_socket": str(server_socket.laddr),
            "other_session": str(self.other),
            "server": _server(self.rota).pid,
            "uid": _server(self.rota).uids().real,
            "rota": str(ROTA),
            "installation": [str(Path(rota_package.__file__).parent), sys.prefix, sys.base_prefix, str(ROTA.parent)],
            "marker": f"stays-{uuid4()}",
        }


def _agent(slug: str, executor: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": slug, "slug": slug, "executor": executor, "config": config}


def _server(rota: Rota) -> psutil.Process:
    """The process that holds the keys: the worker's own."""
    return psutil.Process(rota.process.pid)


@pytest.fixture(scope="module", params=["root", "user"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    root = os.geteuid() == 0
    if request.param == "root" and not root:
        pytest.skip("only root can test what root's agents reach")
    directory = Path(tempfile.mkdtemp(prefix="rota-escape-", dir="/var/tmp"))
    directory.chmod(0o711)
    prefix: list[str] = []
    home = furnished(directory / "home")
    if request.param == "user" and root:
        uid = pwd.getpwnam("nobody").pw_uid
        prefix = [sys.executable, AS_USER, str(uid)]
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(home)], check=True)
    rota = Rota(home, "up", "--no-starters", prefix=prefix, ROTA_SANDBOX_REQUIRED="on")
    try:
        rota.url()
        yield House(rota, home, prefix)
    finally:
        rota.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("kind", ["command", "python"])
def test_a_hostile_agent_gains_nothing(house: House, kind: str) -> None:
    facts, slug = house.facts(), f"attacker-{kind}"
    if kind == "command":
        argv = [sys.executable, "-I", hostile_agent.__file__, json.dumps(facts)]
        house.rota.post(house.token, "/agents", _agent(slug, kind, {"argv": argv}))
        run = house.run(slug)
    else:
        config = {"function": "hostile_agent:agent", "path": str(SUPPORT)}
        house.rota.post(house.token, "/agents", _agent(slug, kind, config))
        run = [house.run(slug, input={**facts, "marker": facts["marker"]}) for _ in range(2)][
            -1
        ]  # the second is forked
    assert run["status"] == "succeeded", run
    assert json.loads((house.directory(run) / "gained.json").read_text()) == {}
    assert [each["sandbox"] for each in run["attempts"]] == ["guard"]
    assert not _alive(facts["marker"]), "a process outlived its agent"
    assert house.rota.process.poll() is None


def test_a_fork_bomb_stays_within_its_run(house: House) -> None:
    if os.geteuid() == 0 and not house.prefix:
        pytest.skip("the kernel does not count root's processes")
    argv = ["sh", "-c", "for n in 1 2 3 4 5 6 7 8 9; do sleep 600 & done"]
    house.rota.post(house.token, "/agents", _agent("bomb", "command", {"argv": argv, "limits": {"processes": 5}}))
    run = house.run("bomb")
    assert (run["status"], run["error_class"]) == ("failed", "agent_error"), run


def _alive(marker: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if marker in (each.info["cmdline"] or ())]


def test_the_same_attacks_succeed_without_a_sandbox(tmp_path: Path) -> None:
    """So that an attack that has become toothless is noticed."""
    tmp_path.chmod(0o711)
    home = furnished(tmp_path / "home")
    rota = Rota(home, "up", "--no-starters", ROTA_SANDBOX="off")
    try:
        rota.url()
        house = House(rota, home, [])
        facts = house.facts()
        expected = (
            hostile_agent.read_key_by_relative_path, hostile_agent.read_key_by_absolute_path, hostile_agent.find_files_in_home,
            hostile_agent.write_into_home, hostile_agent.read_other_session, hostile_agent.connect_to_database,
            hostile_agent.see_other_processes, hostile_agent.print_sign_in_link, hostile_agent.create_admin_token,
            hostile_agent.change_installation,
        )  # fmt: skip
        argv = [
            sys.executable,
            "-I",
            hostile_agent.__file__,
            json.dumps({**facts, "only": [each.__name__ for each in expected]}),
        ]
        rota.post(house.token, "/agents", _agent("free", "command", {"argv": argv}))
        run = house.run("free")
        assert [each["sandbox"] for each in run["attempts"]] == ["off"]
        gained = json.loads((house.directory(run) / "gained.json").read_text())
        assert set(gained) == {each.__name__ for each in expected}
    finally:
        rota.stop()
        for planted in [home / "planted", *(Path(each) / "planted.py" for each in facts["installation"])]:
            planted.unlink(missing_ok=True)
