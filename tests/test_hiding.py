"""An agent runs as its worker's user: what the worker knows must not be found in /proc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota.settings import secret_variables

SECRET = "postgresql://rota:s3cret-of-the-house@db.example/rota"
BECOME_NOBODY = """
import ctypes, os, pwd
nobody = pwd.getpwnam("nobody")
os.setgroups([]), os.setgid(nobody.pw_gid), os.setuid(nobody.pw_uid)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of user closes the process; an ordinary one is open
"""
HOLDER = """
import os, sys
from rota.hiding import hide
print("before", "ROTA_DATABASE_URL" in os.environ, flush=True)
hide(["ROTA_DATABASE_URL"]) if "hide" in sys.argv else None
print("after", "ROTA_DATABASE_URL" in os.environ, os.environ["KEPT"], flush=True)
sys.stdin.read()
"""
LOOK = "import sys; sys.stdout.buffer.write(open(f'/proc/{sys.argv[1]}/environ', 'rb').read())"

linux = pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has /proc")


def holding(how: str, before: str = "") -> "subprocess.Popen[str]":
    env = {**os.environ, "ROTA_DATABASE_URL": SECRET, "KEPT": "kept"}
    command = [sys.executable, "-c", "import rota.hiding\n" + before + HOLDER, how]
    return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ended(process: "subprocess.Popen[str]") -> None:
    process.communicate("", timeout=20)


@linux
def test_the_environment_that_linux_shows_holds_no_secret_and_all_else() -> None:
    process = holding("hide")
    try:
        assert process.stdout
        assert [process.stdout.readline().split(), process.stdout.readline().split()] == [
            ["before", "True"],
            ["after", "False", "kept"],
        ]
        if os.getuid() == 0:  # root looks into every process; the bytes themselves must be gone
            shown = Path(f"/proc/{process.pid}/environ").read_bytes()
            assert b"s3cret" not in shown
            assert b"KEPT=kept" in shown
    finally:
        ended(process)


@linux
@pytest.mark.skipif(os.getuid() != 0, reason="Only root can start processes as somebody else")
@pytest.mark.parametrize("how", ["hide", "leave"])
def test_another_process_of_the_same_user_cannot_look_into_this_one(how: str) -> None:
    process = holding(how, BECOME_NOBODY)
    try:
        assert process.stdout
        process.stdout.readline()
        process.stdout.readline()
        looked = subprocess.run(
            [sys.executable, "-c", BECOME_NOBODY + LOOK, str(process.pid)], capture_output=True, check=False, timeout=20
        )
        assert (looked.returncode == 0) == (how == "leave")
        assert (b"s3cret" in looked.stdout) == (how == "leave")
    finally:
        ended(process)


def test_every_setting_with_a_secret_is_wiped() -> None:
    assert {"ROTA_DATABASE_URL", "ROTA_LISTEN_URL", "ROTA_VAULT_KEYS"} <= set(secret_variables())
