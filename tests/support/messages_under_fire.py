"""Promise 6 under fire: two APIs, one PostgreSQL, a crowd of processes; everything is killed once, nothing is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psycopg

from rota.db.embedded import EmbeddedPostgres
from support.message_crowd import END
from support.rota_process import ROTA, clean_environment, furnished, request, until

CROWD = Path(__file__).with_name("message_crowd.py")


class Api:
    """`rota serve --only api` on a port of its own, which it takes again after it was killed."""

    def __init__(self, home: Path, database_url: str) -> None:
        self._home, self._database_url = home, database_url
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [str(ROTA), "serve", "--only", "api", "--home", str(self._home), "--port", str(self.port)]
        unlimited = {"ROTA_RATE_LIMIT": "0", "ROTA_WORKSPACE_RATE_LIMIT": "0"}  # the whole crowd has one token
        environment = clean_environment(ROTA_DATABASE_URL=self._database_url, ROTA_LOG_LEVEL="error", **unlimited)
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)

    def kill_and_start(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.start()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class Crowd:
    def __init__(self, token: str, session: str, directory: Path) -> None:
        self._token, self._session, self._directory = token, session, directory
        self.processes: list[subprocess.Popen[bytes]] = []

    def send_out(self, what: str, url: str, *given: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", str(CROWD), what, url, self._token, self._session, *given]
        self.processes.append(subprocess.Popen(command, env=clean_environment()))
        return self.processes[-1]

    def notes(self, name: str) -> str:
        return str(self._directory / name)

    def read(self, name: str) -> list[list[Any]]:
        return [json.loads(line) for line in (self._directory / name).read_text().splitlines()]

    def dismiss(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(30)


def messages_under_fire(directory: Path, count: int, *, within: float) -> None:
    """Publish `count` messages while each API is killed and PostgreSQL is restarted; then compare notes."""
    started = time.monotonic()
    with EmbeddedPostgres(furnished(directory / "home")) as postgres:
        url = postgres.owner_url
        apis = [Api(directory / "home", url) for _ in range(2)]
        crowd = None
        try:
            for api in apis:
                until(lambda api=api: _answers(api.url))
            token, session = _session(directory / "home", url, apis[0].url)
            crowd = Crowd(token, session, directory)
            _fight(crowd, apis, postgres, url, count, within=within)
            _compare(crowd, url, count)
        finally:
            if crowd:
                crowd.dismiss()
            for api in apis:
                api.stop()
    print(f"\n{count} messages under fire in {time.monotonic() - started:.1f} s")


def _answers(url: str) -> bool:
    """It is ready: the port is taken long before."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _session(home: Path, database_url: str, url: str) -> tuple[str, str]:
    command = [str(ROTA), "tokens", "create", "fire", "--home", str(home)]
    environment = clean_environment(ROTA_DATABASE_URL=database_url)
    token = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    root = f"{url}/api/v1/workspaces/default"
    request("POST", f"{root}/agents", token, {"name": "Idle", "executor": "command", "config": {"argv": ["true"]}})
    run = request("POST", f"{root}/agents/idle/runs", token, {"prompt": "Meet."})
    return token, run["session_id"]


def _fight(crowd: Crowd, apis: list[Api], postgres: EmbeddedPostgres, url: str, count: int, *, within: float) -> None:
    one, two = (api.url for api in apis)
    readers = [
        crowd.send_out("follow", one, crowd.notes("follower 1")),
        crowd.send_out("follow", two, crowd.notes("follower 2")),
        crowd.send_out("work", two, crowd.notes("worker")),
    ]
    publishers = [crowd.send_out("publish", api, f"publisher-{n}", str(count // 2)) for n, api in enumerate((one, two))]

    def written(wanted: int) -> None:
        until(lambda: _count(url) >= wanted, within=within)

    written(count // 5)
    apis[0].kill_and_start()
    written(2 * count // 5)
    postgres.stop()
    postgres.start()
    written(3 * count // 5)
    apis[1].kill_and_start()
    for process in publishers:
        assert process.wait(within) == 0
    end = {"body": END, "to": "agent"}
    until(lambda: _answers(one))
    request("POST", f"{one}/api/v1/workspaces/default/sessions/{crowd._session}/messages", crowd._token, end)
    for process in readers:
        assert process.wait(within) == 0


def _count(url: str) -> int:
    try:
        with psycopg.connect(url, connect_timeout=2) as conn:
            row = conn.execute("SELECT count(*) FROM events WHERE kind = 'message'").fetchone()
            return row[0] if row else 0
    except psycopg.OperationalError:
        return 0


def _compare(crowd: Crowd, url: str, count: int) -> None:
    """What each subscriber saw is the table: everything, in order, and nothing after it was acknowledged."""
    with psycopg.connect(url) as conn:
        table = conn.execute(
            "SELECT e.seq, e.data ->> 'body' FROM events e WHERE e.kind = 'message' ORDER BY e.seq"
        ).fetchall()
        unacked = conn.execute("SELECT count(*) FROM deliveries WHERE acked_at IS NULL").fetchone()
    bodies = [body for _, body in table]
    sent = {f"publisher-{n} {number}" for n in range(2) for number in range(count // 2)}
    assert len(bodies) == len(set(bodies)), "a repeat became a second message"
    assert set(bodies) == sent | {END}
    for name in ("follower 1", "follower 2"):
        assert [(seq, body) for _, seq, body in crowd.read(name)] == table, name
    seen: dict[int, None] = {}
    acked: set[int] = set()
    for what, seq, _ in crowd.read("worker"):
        if what == "acked":
            acked.add(seq)
        else:
            assert seq not in acked, f"message {seq} came again after it was acknowledged"
            seen[seq] = None
    assert list(seen) == [seq for seq, _ in table], "in the order of the sequence"
    assert (acked, unacked) == (set(seen), (0,))
