"""The starters, run to their ends by real workers in one Rota."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.rota_process import Rota, until


@pytest.fixture(scope="module")
def rota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rota]:
    running = Rota(tmp_path_factory.mktemp("starters") / "home", "up")
    running.link()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def token(rota: Rota) -> str:
    return rota.token()


def ended(rota: Rota, token: str, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = until(
        lambda: found if (found := rota.get(token, f"/runs/{run['id']}"))["finished_at"] else None
    )
    return found


def run_to_its_question(rota: Rota, token: str, slug: str) -> tuple[dict[str, Any], dict[str, Any]]:
    run = rota.post(token, f"/automations/{slug}/run", {})

    def asked() -> Any:
        pending = rota.get(token, "/approvals?status=pending")["items"]
        return next((each for each in pending if each["session_id"] == run["session_id"]), None)

    return run, until(asked)


def settled(rota: Rota, token: str, session: str) -> Any:
    def check() -> Any:
        found = rota.get(token, f"/sessions/{session}")
        return found if found["status"] in {"done", "failed"} else None

    return until(check)


def test_several_plan_look_ask_write_and_remember(rota: Rota, token: str, tmp_path: Path) -> None:
    """Planner, two workers, a judge."""
    folder = tmp_path / "papers"
    (folder / "deep").mkdir(parents=True)
    for name in ("new.txt", "deep/also.txt", "old.txt"):
        (folder / name).write_text(name)
    long_ago = time.time() - 3 * 86_400
    os.utime(folder / "old.txt", (long_ago, long_ago))
    rota.patch(token, "/automations/what-changed-here", {"input": {"folder": str(folder)}})

    run, approval = run_to_its_question(rota, token, "what-changed-here")
    assert approval["question"] == "Write a report of 2 files that changed?"
    rota.post(token, f"/approvals/{approval['id']}", {"answer": "approve"})
    session = run["session_id"]
    assert settled(rota, token, session)["status"] == "done"
    tasks = {each["key"]: each for each in rota.get(token, f"/sessions/{session}/tasks")["items"]}
    assert {key: (each["role"], each["status"]) for key, each in tasks.items()} == {
        "look-worker-a": ("worker-a", "done"), "look-worker-b": ("worker-b", "done"), "merge": ("judge", "done"),
    }  # fmt: skip
    assert tasks["merge"]["summary"] == "2 files changed; the report is written."
    sent = rota.get(token, f"/sessions/{session}/messages")["items"]
    assert {(each["from"], each["to"]) for each in sent} == {("worker-a", "judge"), ("worker-b", "judge")}
    assert all(delivery["acked_at"] for each in sent for delivery in each["deliveries"])
    [artifact] = rota.get(token, f"/sessions/{session}/artifacts")["items"]
    assert (artifact["name"], artifact["media_type"]) == ("report.md", "text/markdown")

    (folder / "newer.txt").write_text("later")
    _, approval = run_to_its_question(rota, token, "what-changed-here")
    assert approval["question"] == "Write a report of 1 file that changed?", "it remembers when it looked"
    rota.post(token, f"/approvals/{approval['id']}", {"answer": "refuse"})
    assert settled(rota, token, approval["session_id"])["status"] == "done"
    assert rota.get(token, f"/sessions/{approval['session_id']}/artifacts")["items"] == []


def test_the_digest_reads_rotas_own_runs_with_the_token_of_its_attempt(rota: Rota, token: str) -> None:
    until(lambda: [run for run in rota.get(token, "/runs")["items"] if run["status"] == "succeeded"])
    done = ended(rota, token, rota.post(token, "/automations/weekday-digest/run"))
    assert done["status"] == "succeeded", done
    assert re.fullmatch(r"\d+ runs? since the start, 0 failed\.", done["summary"])


def test_the_diary_is_written_once_somebody_agrees_and_goes_on_the_next_day(rota: Rota, token: str) -> None:
    written = []
    for answer in ("write", "write"):
        run, approval = run_to_its_question(rota, token, "diary-of-this-machine")
        assert (approval["question"], approval["status"]) == ("Allow “Write into the diary”?", "pending")
        rota.post(token, f"/approvals/{approval['id']}", {"answer": answer})
        done = ended(rota, token, run)
        assert done["status"] == "succeeded", done
        [diary] = (rota.home / "sessions").glob(f"*/{run['session_id']}/diary.md")
        written.append(diary.read_text().splitlines())
    assert written[0] == written[1][:-1]
    assert written[0][0] == "# Diary"
    assert len(written[1]) == 4


def test_the_disk_is_compared_with_what_was_measured_before_and_a_tight_one_is_asked_about(
    rota: Rota, token: str
) -> None:
    for known in (1, 2):
        run = ended(rota, token, rota.post(token, "/automations/disk-over-time/run"))
        assert run["status"] == "succeeded", run
        assert re.fullmatch(r"[\d.]+ GB of [\d.]+ GB are free: .* in all\.", run["summary"])
        events = rota.get(token, f"/sessions/{run['session_id']}/events?limit=100")["items"]
        steps = [each["data"] for each in events if each["kind"] == "tool" and each["run_id"] == run["id"]]
        assert [each["node"] for each in steps] == ["measure", "compare"]
        assert len(steps[0]["update"]["measured"]) == known
    rota.patch(token, "/automations/disk-over-time", {"input": {"folder": "/", "tight": 1.1}})
    run, approval = run_to_its_question(rota, token, "disk-over-time")
    assert re.fullmatch(r"Only [\d.]+ GB are free\. Have you seen it\?", approval["question"])
    rota.post(token, f"/approvals/{approval['id']}", {"answer": "approve"})
    assert ended(rota, token, run)["summary"] == "It was seen."
