"""The starter in which several work together, run to its end by real workers: planner, two workers, a judge."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .rota import Rota, until


@pytest.fixture
def rota(tmp_path: Path) -> Iterator[Rota]:
    running = Rota(tmp_path / "home", "up")
    yield running
    running.stop()


def run_to_its_question(rota: Rota, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    run = rota.post(token, "/automations/what-changed-here/run", {})

    def asked() -> Any:
        pending = rota.get(token, "/approvals?status=pending")["items"]
        return next((each for each in pending if each["session_id"] == run["session_id"]), None)

    return run, until(asked)


def settled(rota: Rota, token: str, session: str) -> Any:
    def check() -> Any:
        found = rota.get(token, f"/sessions/{session}")
        return found if found["status"] in {"done", "failed"} else None

    return until(check)


def test_it_plans_looks_asks_writes_and_remembers(rota: Rota, tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    (folder / "deep").mkdir(parents=True)
    for name in ("new.txt", "deep/also.txt", "old.txt"):
        (folder / name).write_text(name)
    long_ago = time.time() - 3 * 86_400
    os.utime(folder / "old.txt", (long_ago, long_ago))
    rota.url()  # it has settled in
    token = rota.token()
    rota.patch(token, "/automations/what-changed-here", {"input": {"folder": str(folder)}})

    run, approval = run_to_its_question(rota, token)
    assert approval["question"] == "Write a report of 2 changed files?"
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
    _, approval = run_to_its_question(rota, token)
    assert approval["question"] == "Write a report of 1 changed files?", "it remembers when it looked"
    rota.post(token, f"/approvals/{approval['id']}", {"answer": "refuse"})
    assert settled(rota, token, approval["session_id"])["status"] == "done"
    assert rota.get(token, f"/sessions/{approval['session_id']}/artifacts")["items"] == []
