"""Rota as a real process: started from its command, asked over HTTP, ended by a signal."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROTA = Path(sys.executable).with_name("rota")
START_SECONDS = 120


class Process:
    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self._log = pid, log

    def wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(pattern, self._log.read_text())):
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.1)
        return found[1]

    @property
    def port(self) -> int:
        return int(self.wait_for(r'"rota.started".*"url": "[^"]+:(\d+)"'))


@contextmanager
def started(*arguments: str, home: Path, **environment: str) -> Iterator[Process]:
    """`rota` with these arguments, until it has started; it ends with the block."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        command = [str(ROTA), *arguments, "--home", str(home), "--port", "0"]
        running = subprocess.Popen(
            command, env=clean(**environment), stderr=log, stdout=log, start_new_session=True
        )  # fmt: skip
        try:
            process = Process(running.pid, Path(log.name))
            process.wait_for('("rota.started")')
            yield process
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


def clean(**more: str) -> dict[str, str]:
    """The environment without what is set for a Rota of this machine."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")} | more


class Client:
    """One connection that is kept, as a script or a browser keeps it."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of the answer, once all of it is there."""
        data = None if body is None else json.dumps(body)
        self._connection.request(method, f"/api/v1/workspaces/default{path}", data, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()
