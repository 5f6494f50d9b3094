"""`rota sessions` against a real process: export to a file, import it again, follow."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rota_process import ROTA, Rota, clean_environment, furnished, until


@pytest.fixture
def rota(tmp_path: Path) -> Iterator[Rota]:
    running = Rota(furnished(tmp_path / "home"), "up", "--no-starters")
    yield running
    running.stop()


def test_a_session_goes_through_a_file_and_comes_out_the_same(rota: Rota, tmp_path: Path) -> None:
    url = rota.url()
    token = rota.token()
    environment = clean_environment(ROTA_URL=url, ROTA_TOKEN=token)

    def sessions(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(ROTA), "sessions", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    rota.post(token, "/agents", {"name": "Talker", "executor": "command", "config": {"argv": ["seq", "2000"]}})
    run = rota.post(token, "/agents/talker/runs", {"prompt": "Count."})
    until(lambda: rota.get(token, f"/runs/{run['id']}")["finished_at"])
    file = tmp_path / "session.jsonl"
    sessions("export", run["session_id"], "-o", str(file))
    imported = sessions("import", str(file)).strip()
    here, there = (
        rota.get(token, f"/sessions/{each}/events?limit=100")["items"] for each in (run["session_id"], imported)
    )
    assert here == there
    assert rota.get(token, f"/sessions/{imported}")["status"] == "archived"

    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]))
    assert "not whole" in sessions("import", str(file), code=2)
    file.write_text("\n".join([lines[0], "{"]))
    assert "Line 2: this is no JSON" in sessions("import", str(file), code=2)

    follower = subprocess.Popen(
        [str(ROTA), "sessions", "follow", imported, "--json"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert follower.stdout
    followed = [json.loads(follower.stdout.readline()) for _ in there]
    follower.kill()
    follower.wait()
    follower.stdout.close()
    told = [(each["seq"], each["kind"], each["data"]) for each in there]
    assert [(each["seq"], each["kind"], each["data"]) for each in followed] == told
