"""Homes with an embedded PostgreSQL, and the processes that use them."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
import pytest

from rota.errors import CannotStart

T = TypeVar("T")
SCRIPT = Path(__file__).with_name("embedded_user.py")
ROOT = os.geteuid() == 0
LINUX = sys.platform == "linux"

needs_root = pytest.mark.skipif(not ROOT, reason="only root can become somebody else or mount a file system")
needs_proc = pytest.mark.skipif(not LINUX, reason="reads /proc")


class User:
    """Another process that uses the server."""

    def __init__(self, home: Path, *, account: str = "", prefix: tuple[str, ...] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(SCRIPT), str(home), account],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        self.answer()

    def send(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise CannotStart(answer["message"], code=answer["error"])
        return answer["value"]

    def do(self, word: str) -> Any:
        self.send(word)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(30)


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """In memory if there is room: dozens of clusters would keep the disk busy, and no test pulls the plug."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    with tempfile.TemporaryDirectory(prefix="rota-test-", dir=memory if roomy else None) as directory:
        yield Path(directory)


def copy(made: Path, home: Path) -> Path:
    home.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(made), str(home)], check=True)
    return home


def processes_of(directory: Path) -> list[psutil.Process]:
    """Everything of PostgreSQL that lives on data below this directory."""
    return [process for process in psutil.process_iter() if belongs(process, str(directory))]


def belongs(process: psutil.Process, directory: str) -> bool:
    with suppress(psutil.Error):
        if process.name() in {"postgres", "initdb"}:
            return process.cwd().startswith(directory) or any(directory in part for part in process.cmdline())
    return False


def assert_no_process_left(directory: Path) -> None:
    left = processes_of(directory)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    assert not left


def postmasters(home: Path) -> list[int]:
    """Those with the command line of one, except the children that a postmaster has just forked."""
    parents = {process.pid: find_parent(process, home) for process in psutil.process_iter()}
    return [pid for pid, parent in parents.items() if parent is not None and parents.get(parent) is None]


def find_parent(process: psutil.Process, home: Path) -> int | None:
    """The parent, if this process looks like the home's postmaster."""
    with suppress(psutil.Error):
        if process.name() == "postgres" and process.cmdline()[1:3] == ["-D", str(home / "postgres")]:
            return process.ppid()
    return None


def postmaster(home: Path) -> int:
    [pid] = postmasters(home)
    return pid


def eventually(look: Callable[[], T]) -> T:
    deadline = time.monotonic() + 20
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
    return found


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode()).fetchall()


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def is_locked(lock: Path) -> bool:
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
