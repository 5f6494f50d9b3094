"""A house is backed up while it works, restored into an empty home, and goes on there."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from support.rota_process import ROTA, Rota, clean_environment, furnished, until


def rota(*arguments: str) -> str:
    done = subprocess.run(
        [str(ROTA), *arguments], env=clean_environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(house: Rota, token: str) -> dict[str, Any]:
    """What people see of it, apart from what the clock moves on."""
    automations = house.get(token, "/automations")["items"]
    runs = house.get(token, "/runs?limit=100")["items"]
    [report] = [each for each in runs if each["source"] == "run_now"]
    return {
        "automations": [(each["id"], each["name"], each["triggers"]) for each in automations],
        "agents": house.get(token, "/agents")["items"],
        "credentials": [each["name"] for each in house.get(token, "/credentials")["items"]],
        "report": (report, house.get(token, f"/sessions/{report['session_id']}/transcript")["items"]),
    }


def test_a_house_is_backed_up_while_it_works_and_goes_on_in_another_home(tmp_path: Path) -> None:
    old = Rota(furnished(tmp_path / "old"), "up", "--no-starters")
    try:
        token = old.token()
        old.post(token, "/credentials", {"name": "key", "value": "s3cret-of-the-house"})
        script = 'echo the report; test "$KEY" = s3cret-of-the-house'
        old.post(token, "/agents", {"name": "Reporter", "executor": "command", "config": {"argv": ["sh", "-c", script]},
                                    "credentials": {"KEY": "key"}})  # fmt: skip
        old.post(
            token,
            "/automations",
            {"name": "Report", "agent": "reporter", "prompt": "Go.", "schedule": {"cron": "0 9 1 1 *"}},
        )
        run = old.post(token, "/automations/report/run")
        until(lambda: old.get(token, f"/runs/{run['id']}")["finished_at"])
        before = shown(old, token)
        assert before["report"][0]["status"] == "succeeded"
        said = json.loads(rota("backup", str(tmp_path / "file"), "--home", str(old.home), "--with-keys", "--json"))
        assert said["bytes"] == (tmp_path / "file").stat().st_size
        assert (said["keys"], said["missing"]) == (True, [])
    finally:
        old.stop()
    assert "rows" in rota("restore", str(tmp_path / "file"), "--home", str(tmp_path / "new"))
    [workspace] = os.listdir(tmp_path / "old" / "sessions")
    unused = tmp_path / "new" / "sessions" / workspace / "00000000-0000-7000-8000-000000000000"
    unused.mkdir(mode=0o700, parents=True)
    new = Rota(tmp_path / "new", "up", "--no-starters", ROTA_KEEP_RUNS_DAYS="30")
    try:
        assert shown(new, token) == before
        until(lambda: not unused.exists())
        again = new.post(token, "/automations/report/run")
        until(lambda: new.get(token, f"/runs/{again['id']}")["finished_at"])
        assert new.get(token, f"/runs/{again['id']}")["status"] == "succeeded"
    finally:
        new.stop()
