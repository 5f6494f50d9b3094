"""What a newcomer does, with real processes: start, look, stop, kill, start again."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from rota.db.embedded import EmbeddedPostgres
from support.rota_process import ROTA, Rota, clean_environment, furnished, until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Rota] = []

    def up(*arguments: str, home: Path = tmp_path / "home", **environment: str) -> Rota:
        if arguments and not home.exists():  # who starts without a word looks at the first start
            furnished(home)
        started.append(Rota(home, *arguments, **environment))
        return started[-1]

    yield up
    for each in started:
        each.stop()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rota]:
    """One for those who only look."""
    rota = Rota(furnished(tmp_path_factory.mktemp("empty") / "home"), "up", "--no-starters")
    rota.link()
    yield rota
    rota.stop()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROTA), *arguments],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_takes_less_than_half_a_second_of_a_processor() -> None:
    """Not of the clock, which says how busy the machine is."""
    process = subprocess.Popen([str(ROTA), "--help"], env=clean_environment(), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_utime + used.ru_stime < 0.5


def test_the_first_start_has_something_to_look_at_and_stops_without_leaving_a_process(start: Any) -> None:
    rota = start()
    token = (rota.link(), rota.token())[1]
    first = until(lambda: [run for run in rota.get(token, "/runs")["items"] if run["status"] == "succeeded"])
    assert len(rota.get(token, "/automations")["items"]) == 6
    assert first
    ready = urllib.request.urlopen(f"{rota.url()}/readyz", timeout=10)
    assert json.load(ready) == {"ready": True, "missing_migrations": []}
    metrics = urllib.request.urlopen(f"{rota.url()}/metrics", timeout=10).read().decode()
    assert re.search(r'rota_runs_claimed_total\{executor="command"\} [1-9]', metrics)
    children = psutil.Process(rota.process.pid).children(recursive=True)
    assert rota.stop() == 0
    assert _gone(children)
    assert _no_postmaster(rota.home)


def _gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


def _no_postmaster(home: Path) -> bool:
    return not list(home.rglob("postmaster.pid"))


def test_no_starters_leaves_them_out(empty: Rota) -> None:
    assert empty.get(empty.token(), "/automations")["items"] == []


def test_a_second_rota_on_the_same_home_says_that_one_runs_and_where(empty: Rota) -> None:
    second = run("up", "--home", str(empty.home), "--port", "0")
    assert second.returncode == 2
    assert empty.url() in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run("up", "--home", str(tmp_path / "home"), "--port", str(port))
    assert refused.returncode == 2
    assert f"Port {port} on 127.0.0.1 is in use" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert _no_postmaster(tmp_path)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"ROTA_DATABSE_URL": "x"}, "Did you mean ROTA_DATABASE_URL?"),
        ({"ROTA_PORT": "eighty"}, "ROTA_PORT is 'eighty'; it must be a whole number from 0 to 65535."),
        ({"ROTA_DATABASE_URL": "mysql://me:s3cret@127.0.0.1/nothing"}, "not a PostgreSQL URL"),
        ({"ROTA_LISTEN_URL": "mysql://me:s3cret@127.0.0.1/nothing"}, "ROTA_LISTEN_URL is not a URL like postgresql://"),
        (
            {"ROTA_NOTIFY_ALLOW": "10.0.0.0/33"},
            "ROTA_NOTIFY_ALLOW: '10.0.0.0/33' is not a host, an address or a network",
        ),
    ],
)
def test_a_wrong_setting_stops_the_start_with_what_would_be_right(
    tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    refused = run("up", "--home", str(tmp_path / "home"), "--port", "0", **environment)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "s3cret" not in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_database_that_stays_away_ends_the_start_with_the_code_after_which_systemd_tries_again(
    tmp_path: Path,
) -> None:
    away = {"ROTA_DATABASE_URL": "postgresql://me:s3cret@127.0.0.1:1/nothing", "ROTA_DATABASE_WAIT_SECONDS": "0.001"}
    refused = run("up", "--home", str(tmp_path / "home"), "--port", "0", **away)
    assert refused.returncode == 1
    assert "me@127.0.0.1:1/nothing" in refused.stderr
    assert "s3cret" not in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_home_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run("up", "--home", str(tmp_path / "file"), "--port", "0")
    assert refused.returncode == 2
    assert str(tmp_path / "file") in refused.stderr
    assert "Traceback" not in refused.stderr


def test_killed_with_everything_in_its_group_it_starts_again_with_every_slot_once_and_nothing_stuck(start: Any) -> None:
    """SIGKILL of the whole process group while runs are going."""
    quick = {"ROTA_LEASE_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_RESCUE_SECONDS": "1"}
    rota = start("up", "--no-starters", **quick)
    rota.link()
    token = rota.token()
    script = "echo started; sleep 1.5; echo done"
    agent = {"name": "Slow", "executor": "command", "config": {"argv": ["sh", "-c", script]}}
    rota.post(token, "/agents", agent)
    body = {"agent": "slow", "prompt": "go", "schedule": {"every": "1s"}, "overlap": "skip"}
    for number in range(3):
        rota.post(token, "/automations", {**body, "name": f"Every second {number}"})
    until(lambda: len([run for run in rota.get(token, "/runs")["items"] if run["status"] == "running"]) == 3)
    rota.kill_group()

    again = start("up", **quick)
    again.link()
    died = [run for run in again.get(token, "/runs?limit=100")["items"] if run["rescues"] or run["status"] == "running"]
    assert died
    rescued = until(lambda: _settled(again, token, died), within=40)
    assert all(run["status"] == "succeeded" and run["rescues"] == 1 for run in rescued), rescued
    for number in range(3):
        assert_every_slot_once(again, token, f"every-second-{number}")


def _settled(rota: Rota, token: str, died: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    found = [rota.get(token, f"/runs/{run['id']}") for run in died]
    return found if all(run["finished_at"] for run in found) else None


def assert_every_slot_once(rota: Rota, token: str, automation: str) -> None:
    """Slots of an every-second schedule, runs and misses together, without a hole or a repeat."""
    runs: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next_cursor": ""}
    while page["next_cursor"] is not None:
        page = rota.get(token, f"/automations/{automation}/runs?limit=100" + _cursor(page["next_cursor"]))
        runs += page["items"]
    slots = [_second(run["slot"]) for run in reversed(runs)]
    missed = [run["missed"]["count"] if run["missed"] else 0 for run in reversed(runs)]
    assert len(slots) == len(set(slots))
    steps = [later - earlier for earlier, later in pairwise(slots)]
    assert steps == [1 + count for count in missed[1:]]


def _cursor(cursor: str) -> str:
    return f"&cursor={cursor}" if cursor else ""


def _second(slot: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(slot).timestamp())


def test_parts_can_run_in_processes_of_their_own_on_one_database(start: Any, tmp_path: Path) -> None:
    api = start("serve", "--only", "api")
    api.url()
    scheduler = start("serve", "--only", "scheduler,watch")
    worker = start("serve", "--only", "worker", ROTA_MAX_CONCURRENT="2")
    for each in (scheduler, worker):
        each.wait_for("rota.started")
    token = api.token()
    api.post(token, "/agents", {"name": "Echo", "executor": "command", "config": {"argv": ["cat"]}})
    api.post(token, "/automations", {"name": "E", "agent": "echo", "prompt": "hello", "schedule": {"every": "1s"}})
    done = until(lambda: [run for run in api.get(token, "/runs")["items"] if run["status"] == "succeeded"])
    assert done[0]["summary"] == "hello"
    [alive] = api.get(token, "/workers")["items"]
    assert (alive["places"], alive["kinds"]) == (
        2,
        ["command", "python", "http", "acp", "llm", "langgraph", "kubernetes"],
    )
    assert worker.stop() == 0
    assert scheduler.stop() == 0
    assert api.get(token, "/workers")["items"] == []


def test_it_works_as_a_role_that_is_no_superuser(start: Any) -> None:
    """Scheduler, worker, watch and API; the superuser only migrates."""
    rota = start("up", "--no-starters")
    rota.link()
    token = rota.token()
    rota.post(token, "/agents", {"name": "Echo", "executor": "command", "config": {"argv": ["cat"]}})
    rota.post(token, "/automations", {"name": "E", "agent": "echo", "prompt": "hello", "schedule": {"every": "1s"}})
    until(lambda: [run for run in rota.get(token, "/runs")["items"] if run["status"] == "succeeded"])
    connected = "SELECT DISTINCT usename::text FROM pg_stat_activity WHERE application_name LIKE 'rota%'"
    with EmbeddedPostgres(rota.home) as postgres, psycopg.connect(postgres.owner_url) as conn:
        assert conn.execute(connected).fetchall() == [("rota_app",)]
    assert "permission denied" not in rota.output + (rota.home / "postgres.log").read_text()


def test_ctrl_c_hands_back_what_runs_longer_than_the_grace(start: Any) -> None:
    rota = start("up", "--no-starters", ROTA_GRACE_SECONDS="0.2")
    rota.link()
    token = rota.token()
    rota.post(token, "/agents", {"name": "Long", "executor": "command", "config": {"argv": ["sleep", "600"]}})
    run_id = rota.post(token, "/agents/long/runs", {"prompt": "x"})["id"]
    sleeping = until(lambda: _sleeping(rota))
    assert rota.stop(within=15) == 0
    assert _gone(sleeping)
    again = start("up", "--no-starters", ROTA_GRACE_SECONDS="0.2")
    again.link()
    handed = until(lambda: (run := again.get(token, f"/runs/{run_id}"))["attempt"] == 2 and run)
    assert (handed["status"], handed["tries"], handed["rescues"]) == ("running", 0, 0)
    again.post(token, f"/runs/{run_id}/cancel")
    until(lambda: again.get(token, f"/runs/{run_id}")["status"] == "cancelled")


BREAKS = """
import pathlib, uvicorn
run, at = uvicorn.Server.{method}, pathlib.Path({at!r})
async def broken(self, *given, **named):
    if at.exists():
        raise OSError("no more of this")
    return await run(self, *given, **named)
uvicorn.Server.{method} = broken
"""


def breaking(directory: Path, method: str) -> tuple[Path, dict[str, str]]:
    """What makes the HTTP server of a process break, and the environment of one that does so from then on."""
    at = directory / "break"
    (directory / "sitecustomize.py").write_text(BREAKS.format(method=method, at=str(at)))
    return at, {"PYTHONPATH": str(directory)}


def test_without_its_http_server_it_stops_everything_in_order_and_says_so(start: Any, tmp_path: Path) -> None:
    """With a code at which systemd starts it again."""
    at, environment = breaking(tmp_path, "on_tick")
    rota = start("up", "--no-starters", ROTA_GRACE_SECONDS="0.2", **environment)
    rota.link()
    token = rota.token()
    rota.post(token, "/agents", {"name": "Long", "executor": "command", "config": {"argv": ["sleep", "600"]}})
    rota.post(token, "/agents/long/runs", {"prompt": "x"})
    sleeping = until(lambda: _sleeping(rota))
    at.touch()
    assert rota.ended() == 1
    assert "rota: The HTTP server ended by itself with OSError: no more of this." in rota.output
    assert re.search(r'"rota.gave_up".*"rota.stopping".*"handed_back".*"rota.stopped"', rota.output, re.DOTALL)
    assert "Traceback" not in rota.output
    assert _gone(sleeping)
    assert _no_postmaster(rota.home)


def test_an_http_server_that_does_not_even_begin_stops_the_start(start: Any, tmp_path: Path) -> None:
    at, environment = breaking(tmp_path, "startup")
    at.touch()
    rota = start("serve", "--only", "api", **environment)
    assert rota.ended() == 1
    assert "rota: The HTTP server ended by itself with OSError: no more of this." in rota.output
    assert "rota.started" not in rota.output
    assert "Traceback" not in rota.output
    assert _no_postmaster(rota.home)


@pytest.fixture
def terminal() -> Iterator[None]:
    """Hang-ups are heard, also where the suite itself was told to ignore them."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("terminal")
def test_a_closed_terminal_stops_it_in_order(start: Any) -> None:
    rota = start("up", "--no-starters")
    rota.link()
    rota.process.send_signal(signal.SIGHUP)
    assert rota.ended() == 0
    assert _no_postmaster(rota.home)


def _sleeping(rota: Rota) -> list[psutil.Process]:
    return [each for each in psutil.Process(rota.process.pid).children(recursive=True) if each.name() == "sleep"]


def test_a_token_that_nobody_made_is_refused(empty: Rota) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        empty.get("rota_nonsense", "/runs")
    assert refused.value.code == 401
    refused.value.close()


def test_doctor_says_what_is_wrong(start: Any, tmp_path: Path) -> None:
    examined = run("doctor", "--home", str(tmp_path / "home"))
    assert examined.returncode == 1
    assert "database: there is none yet" in examined.stdout
    assert not (tmp_path / "home").exists()  # it only looks
    rota = start("up", "--no-starters")
    rota.link()
    until(lambda: run("doctor", "--home", str(rota.home)).returncode == 0)
