"""`rota desk` in a real run: a shell script that uses every verb, against a real process; and outside of one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.rota_process import ROTA, Rota, clean_environment, furnished, until

SCRIPT = """
set -eu
desk="rota desk"
$desk say "Hello from the shell."
echo "Said by pipe." | $desk say -
$desk tool grep '{"hits": 2}'
$desk usage tokens 12.5
$desk message "What now?" --to user > sent
$desk inbox --wait 60s > inbox
test "$(cut -f2 inbox)" = user
$desk ack "$(cut -f1 inbox)"
if $desk inbox; then echo "an acknowledged message came again"; exit 9; fi
$desk task helper "Help me." --key help
$desk event nobody.waits
echo '{"n": 1}' | $desk event errand.done - --key done > event
test "$($desk event errand.done '{"n": 1}' --key done)" = "$(cat event)"
printf '# Report\\n' > report.md
$desk artifact report.md > artifact
echo piped | $desk artifact - --name piped.txt
$desk artifact --uri https://example.org/pull/7
if $desk memory get last; then echo "remembered too early"; exit 9; fi
$desk memory set last '{"seen": 3}' --ttl 1d --confidence 0.5
$desk memory set scrap x
$desk memory forget scrap
test "$($desk memory get last)" = '{"seen": 3}'
$desk memory list
if $desk checkpoint load; then exit 9; fi
echo step-1 | $desk checkpoint save
test "$($desk checkpoint load)" = step-1
$desk ask "Shall I publish?" --detail '{"file": "report.md"}'
if $desk ask "And delete the rest?" > refusal; then exit 9; else test $? = 1; fi
if $desk ask "Anybody?" --wait 0.1s; then exit 9; else test $? = 3; fi
test "$(cat refusal)" = "refuse
Keep it."
echo "All done."
"""


@pytest.fixture(scope="module")
def rota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rota]:
    running = Rota(furnished(tmp_path_factory.mktemp("desk") / "home"), "up", "--no-starters")
    yield running
    running.stop()


def answer(rota: Rota, token: str, question: str, **given: Any) -> None:
    def asked() -> Any:
        pending = rota.get(token, "/approvals?status=pending")["items"]
        return next((each for each in pending if each["question"] == question), None)

    rota.post(token, f"/approvals/{until(asked)['id']}", given)


@pytest.fixture(scope="module")
def token(rota: Rota) -> str:
    rota.url()
    return rota.token()


@pytest.mark.timeout(300)
def test_a_shell_script_does_all_of_it(rota: Rota, token: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text(SCRIPT)
    for name, argv in (("Shell", ["sh", str(script)]), ("Helper", ["echo", "Helped."])):
        rota.post(token, "/agents", {"name": name, "executor": "command", "config": {"argv": argv}})
    rota.post(token, "/automations", {"name": "Errand", "agent": "shell", "prompt": "Go."})
    heard = {"name": "Heard", "agent": "helper", "prompt": "Hear.", "triggers": [{"event": "errand.done"}]}
    rota.post(token, "/automations", heard)
    run = rota.post(token, "/automations/errand/run")
    session = f"/sessions/{run['session_id']}"
    rota.post(token, f"{session}/roles", {"name": "helper", "agent": "helper"})
    rota.post(token, f"{session}/roles", {"name": "shell", "agent": "shell"})
    until(lambda: rota.get(token, f"{session}/messages?role=user&unacked=true")["items"])
    sent = rota.post(token, f"{session}/messages", {"body": "Carry on.\n1\trota\tStop.", "to": "shell"})
    answer(rota, token, "Shall I publish?", answer="approve")
    answer(rota, token, "And delete the rest?", answer="refuse", text="Keep it.")

    def ended() -> Any:
        found = rota.get(token, f"/runs/{run['id']}")
        return found if found["finished_at"] else None

    found = until(ended, within=90)
    log = rota.get(token, f"{session}/events?limit=100")["items"]
    assert found["status"] == "succeeded", (found["error_detail"], log)
    told = "".join(each["data"]["text"] for each in log if each["kind"] == "output")
    assert "Hello from the shell.\nSaid by pipe.\n" in told
    assert {"name": "grep", "hits": 2} in [each["data"] for each in log if each["kind"] == "tool"]
    assert found["usage"]["tokens"] == 12.5
    [read] = [each for each in rota.get(token, f"{session}/messages")["items"] if each["id"] == sent["id"]]
    assert read["deliveries"][0]["acked_at"]
    assert {each["name"] for each in rota.get(token, f"{session}/artifacts")["items"]} == {
        "report.md",
        "piped.txt",
        "link",
    }
    [kept] = rota.get(token, "/automations/errand/memory")["items"]
    assert (kept["key"], kept["value"], kept["confidence"], kept["run_id"]) == ("last", {"seen": 3}, 0.5, run["id"])
    [hearing] = rota.get(token, "/automations/heard/runs")["items"]
    assert hearing["payload"] == {"event": "errand.done", "data": {"n": 1}, "run_id": run["id"]}
    [task] = rota.get(token, f"{session}/tasks")["items"]
    assert (task["key"], task["added_by_run"]) == ("help", run["id"])


def desk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROTA), "desk", *arguments]
    return subprocess.run(
        command, env=clean_environment(**environment), capture_output=True, text=True, timeout=60, check=False
    )


def test_outside_of_a_run_it_says_so() -> None:
    told = desk("say", "Hello?")
    assert (told.returncode, "ROTA_TOKEN" in told.stderr, "Traceback" in told.stderr) == (2, True, False)


def test_with_the_token_of_a_lost_attempt_it_ends_with_four(rota: Rota, token: str) -> None:
    given = {
        "ROTA_URL": rota.url(), "ROTA_WORKSPACE": "default", "ROTA_RUN_ID": "01a1e0db-2cd9-7826-809d-0931e0e98709",
        "ROTA_TOKEN": f"rota_run_{'0' * 32}_{'0' * 32}_1_{'x' * 32}",
    }  # fmt: skip
    told = desk("say", "Braaains.", **given)
    assert (told.returncode, "lost its lease" in told.stderr) == (4, True), told
    told = desk("say", "Hello.", **{**given, "ROTA_TOKEN": token})
    assert (told.returncode, "Only the agent of this run" in told.stderr) == (2, True), told


ZOMBIE = """
import os, subprocess, sys
from pathlib import Path
Path("environment").write_text("\\n".join(f"{name}={value}" for name, value in os.environ.items() if "ROTA" in name))
print("At work.", flush=True)
sys.stdin.read()
import signal
signal.pause()
"""


def test_a_zombies_token_is_refused_after_a_lease_that_was_really_lost(tmp_path: Path) -> None:
    """The worker is stopped, its lease runs out, the run goes to another attempt: what the first one's agent sends is lost."""
    home = furnished(tmp_path / "home")
    short = {"ROTA_LEASE_SECONDS": "3", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_RESCUE_SECONDS": "0.5"}
    api = Rota(home, "serve", "--only", "api,watch", **short)
    worker = None
    try:
        token, url = api.token(), api.url()
        script = tmp_path / "agent.py"
        script.write_text(ZOMBIE)
        argv = [sys.executable, str(script)]
        api.post(token, "/agents", {"name": "Slow", "executor": "command", "config": {"argv": argv}})
        run = api.post(token, "/agents/slow/runs", {"prompt": "Go."})
        worker = Rota(home, "serve", "--only", "worker", ROTA_URL=url, **short)
        directory = until(lambda: next(iter((home / "sessions").rglob("environment")), None))
        until(lambda: "ROTA_TOKEN" in directory.read_text())
        given = dict(line.split("=", 1) for line in directory.read_text().splitlines())
        assert desk("say", "While it lives.", **given).returncode == 0
        os.killpg(worker.process.pid, 19)  # SIGSTOP: it renews no more, and does not know it
        until(lambda: api.get(token, f"/runs/{run['id']}")["rescues"] == 1, within=30)
        before = api.get(token, f"/sessions/{run['session_id']}/events?limit=100")["items"]
        for verb in (("say", "Braaains."), ("message", "Braaains."), ("usage", "tokens", "1"), ("inbox",)):
            told = desk(*verb, **given)
            assert (told.returncode, "lost its lease" in told.stderr) == (4, True), told
        after = api.get(token, f"/sessions/{run['session_id']}/events?limit=100")["items"]
        assert after == before
        assert any(each["data"].get("text") == "While it lives.\n" for each in after)
    finally:
        if worker:
            os.killpg(worker.process.pid, 18)
            worker.stop()
        api.stop()
