"""The home is closed to other users, also one that an older Rota left open."""

import logging
import os
import pwd
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import home as home_directory
from rota.access import key_ring
from rota.daemon import database, only_one
from rota.settings import read_settings
from support.rota_process import ROTA, Rota, clean_environment, furnished, until

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can be somebody else")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(home: Path) -> dict[str, str]:
    """What is in the home and has a permission for anybody but its owner."""
    return {each.name: f"{mode(each):04o}" for each in home.iterdir() if mode(each) & 0o077}


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def home(tmp_path: Path, usual_umask: None) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def test_everything_in_the_home_of_a_rota_at_work_is_its_owners_alone(tmp_path: Path, usual_umask: None) -> None:
    home = furnished(tmp_path / "home")
    home.chmod(0o755)
    rota = Rota(home, "up", "--no-starters", ROTA_LOG_FILE=str(home / "rota.log"))
    try:
        rota.link()
        token = rota.token()
        argv = ["sh", "-c", "echo found > found.txt && rota desk artifact found.txt"]
        rota.post(token, "/agents", {"name": "Leaver", "executor": "command", "config": {"argv": argv}})
        run = rota.post(token, "/agents/leaver/runs", {"prompt": "Leave something."})
        done = until(lambda: (found := rota.get(token, f"/runs/{run['id']}"))["finished_at"] and found)
        assert done["status"] == "succeeded", done
        assert open_to_others(home) == {}, "before another process tightens it"
        turned = [str(ROTA), "keys", "rotate", "--home", str(home)]
        subprocess.run(turned, env=clean_environment(), check=True, capture_output=True)
        assert {"artifacts", "postgres", "postgres.log", "postgres.start.lock", "postgres.users.lock", "rota.log",
                "sessions", "up.lock", "vault.keys", "vault.keys.lock"} <= set(os.listdir(home))  # fmt: skip
        assert open_to_others(home) == {}
        assert mode(home) == (0o710 if ROOT else 0o700)
        assert [mode(each) for each in (home / "artifacts").rglob("*") if each.is_file()] == [0o600]
        if ROOT:
            assert home.stat().st_gid == (home / "postgres").stat().st_gid
    finally:
        rota.stop()


def leave_open(home: Path) -> None:
    home.chmod(0o755)
    for name in ("vault.keys.lock", "up.lock", "rota.log"):
        (home / name).write_text("")
    for name in ("sessions", "artifacts"):
        (home / name).mkdir()


async def test_a_home_that_an_older_rota_left_open_is_closed_at_the_next_start(home: Path, database_url: str) -> None:
    leave_open(home)
    assert len(open_to_others(home)) == 5
    settings = read_settings({"ROTA_HOME": str(home), "ROTA_DATABASE_URL": database_url})
    async with database(settings):
        assert open_to_others(home) == {}
        assert mode(home) == 0o700


async def test_a_home_that_is_not_there_is_no_obstacle_to_who_needs_no_files(home: Path, database_url: str) -> None:
    for missing in (home / "missing", home / "file" / "below"):
        settings = read_settings({"ROTA_HOME": str(missing), "ROTA_DATABASE_URL": database_url})
        async with database(settings):
            assert mode(home) == 0o755


def test_a_new_home_is_private_whoever_makes_it_first(tmp_path: Path, usual_umask: None) -> None:
    with only_one(tmp_path / "up"):
        assert mode(tmp_path / "up") == 0o700
    key_ring.open_ring(tmp_path / "keys")
    assert mode(tmp_path / "keys") == 0o700


def test_a_directory_that_others_share_is_left_alone_and_warned_about(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "vault.keys").write_text("secret")
    home.chmod(0o1777)
    home_directory.tighten(home)
    assert mode(home) == 0o1777
    assert mode(home / "vault.keys") == 0o600
    [warned] = [record for record in caplog.records if record.message == "home.exposed"]
    assert warned.levelno == logging.WARNING
    assert "Mode 1777 lets other users" in warned.error  # type: ignore[attr-defined]


@needs_root
def test_root_does_not_close_a_directory_that_holds_other_things(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "apt").mkdir()
    home_directory.tighten(home)
    home_directory.tighten(home, server_group=os.getgid())
    assert (mode(home), mode(home / "apt")) == (0o755, 0o755)
    assert caplog.messages == ["home.exposed"] * 2


@needs_root
def test_an_ordinary_user_closes_a_home_that_holds_other_things_and_leaves_those_alone(usual_umask: None) -> None:
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "notes").write_text("mine")
        (home / "vault.keys").write_text("secret")
        for each in (home, *home.iterdir()):
            os.chown(each, nobody.pw_uid, nobody.pw_gid)
        home.chmod(0o755)
        os.seteuid(nobody.pw_uid)
        try:
            home_directory.tighten(home)
        finally:
            os.seteuid(0)
        assert (mode(home), mode(home / "vault.keys"), mode(home / "notes")) == (0o700, 0o600, 0o644)


@needs_root
def test_a_home_of_somebody_else_is_warned_about(usual_umask: None, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        home.chmod(0o777)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        try:
            home_directory.tighten(home)
            assert home_directory.describe_exposure(home)
        finally:
            os.seteuid(0)
    assert caplog.messages == ["home.exposed"]


@needs_root
def test_a_volume_that_kubernetes_mounted_is_used_as_it_is(usual_umask: None, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        home = Path(directory, "home")
        home.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=2777", "rota-test", str(home)], check=True)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        try:
            key_ring.open_ring(home)
            home_directory.tighten(home)
        finally:
            os.seteuid(0)
            subprocess.run(["umount", "--lazy", str(home)], check=True)
    assert caplog.messages == []


def test_a_link_in_the_home_is_not_followed(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "artifacts").symlink_to(elsewhere)
    home_directory.tighten(home)
    assert mode(elsewhere) == 0o755


def test_a_home_behind_a_link_is_closed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    home_directory.tighten(tmp_path / "link")
    assert mode(home) == 0o700


@needs_root
def test_the_group_of_a_server_that_runs_as_another_user_may_pass_and_nothing_else(home: Path) -> None:
    group = pwd.getpwnam("nobody").pw_gid
    home_directory.tighten(home, server_group=group)
    assert (mode(home), home.stat().st_gid) == (0o710, group)
    assert home_directory.describe_exposure(home) is None


@needs_root
def test_agents_that_run_as_another_user_keep_their_way_to_their_directories(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "sessions").mkdir(mode=0o711)
    home.chmod(0o711)
    (home / "agents.61184.lock").touch(mode=0o644)
    home_directory.tighten(home)
    assert (mode(home), mode(home / "sessions"), mode(home / "agents.61184.lock")) == (0o701, 0o701, 0o600)
    assert not caplog.records
    (home / "agents.61184.lock").unlink()
    home_directory.tighten(home)
    assert (mode(home), mode(home / "sessions")) == (0o700, 0o700)
