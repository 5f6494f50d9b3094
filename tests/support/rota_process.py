"""Rota as a real process: started, asked, signalled and killed."""

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from rota.db.embedded import EmbeddedPostgres
from rota.db.migrate import migrate

ROTA = Path(sys.executable).with_name("rota")


MADE_HOMES = "ROTA_TEST_MADE_HOMES"  # names the directory that the test workers of one run share


@cache
def _made() -> Path:
    """A home with a database that is up to date and empty, made once in each test run."""
    directory = Path(os.environ[MADE_HOMES])
    home, unfinished = directory / "home", directory / "unfinished"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            with EmbeddedPostgres(unfinished) as postgres, ThreadPoolExecutor(1) as aside:
                aside.submit(asyncio.run, migrate(postgres.owner_url)).result()  # aside, since a loop may run here
            unfinished.rename(home)
    return home


def furnished(home: Path) -> Path:
    """A new home for who does not look at how a first start makes its database: that takes longer than all else."""
    subprocess.run(["cp", "-a", str(_made()), str(home)], check=True)
    for lock in home.glob("*.lock"):
        lock.unlink()
    return home


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    return {**kept, **more}


class Rota:
    """`rota up` or `rota serve` in a process group of its own."""

    def __init__(self, home: Path, *arguments: str, prefix: Sequence[str] = (), **environment: str) -> None:
        self.home = home
        self.said: list[str] = []
        command = [*prefix, str(ROTA), *(arguments or ("up",)), "--home", str(home), "--port", "0"]
        self.process = subprocess.Popen(
            command, env=clean_environment(**environment), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line)

    @property
    def output(self) -> str:
        return "".join(self.said)

    def wait_for(self, pattern: str, *, within: float = 60) -> str:
        """The first match of a pattern in what it says."""
        deadline = time.monotonic() + within
        while not (match := re.search(pattern, self.output)):
            assert self.process.poll() is None or re.search(pattern, self.output), self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return match[1] if match.groups() else match[0]

    def url(self) -> str:
        return self.wait_for(r'"rota.started".*"url": "([^"]+)"')

    def link(self) -> str:
        return self.wait_for(r"(http\S+/sign-in\?token=\S+)")

    def token(self) -> str:
        command = [str(ROTA), "tokens", "create", "test", "--home", str(self.home)]
        return subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    def get(self, token: str, path: str) -> Any:
        return request("GET", f"{self.url()}/api/v1/workspaces/default{path}", token)

    def post(self, token: str, path: str, body: Any = None) -> Any:
        return request("POST", f"{self.url()}/api/v1/workspaces/default{path}", token, body)

    def patch(self, token: str, path: str, body: Any) -> Any:
        return request("PATCH", f"{self.url()}/api/v1/workspaces/default{path}", token, body)

    def stop(self, *, within: float = 30) -> int:
        """Ctrl-C, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.ended(within=within)

    def kill_group(self) -> None:
        """SIGKILL for the whole process group, as a power cut for everything Rota started in it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.ended()

    def ended(self, *, within: float = 30) -> int:
        code = self.process.wait(within)
        self._reader.join(10)
        if self.process.stderr:
            self.process.stderr.close()
        return code


def request(method: str, url: str, token: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=20) as answer:
        return json.load(answer)


def until(check: Any, *, within: float = 60) -> Any:
    deadline = time.monotonic() + within
    while not (answer := check()):
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return answer
