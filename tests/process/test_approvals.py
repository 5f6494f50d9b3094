"""Approvals with real processes: what waits for an answer outlives everything but its database."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from support.rota_process import Rota, furnished, until

QUICK = {"ROTA_LEASE_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_RESCUE_SECONDS": "1"}
AGENTS = """
    import os

    from rota.agent import Context


    async def parks(context: Context) -> str:
        if not context.last_checkpoint:
            context.checkpoint(b"half")
        answer = await context.park("Send it?", key="send")
        return f"{context.last_checkpoint.decode()}, {answer.option_id}, {context.resumed_with.text}"


    async def waits(context: Context) -> str:
        answer = await context.ask("Send it?", key="send")
        return f"{answer.option_id} in process {os.getpid()}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "asking.py").write_text(dedent(AGENTS))
    return furnished(tmp_path / "home")


@pytest.fixture
def start(home: Path) -> Iterator[Any]:
    started: list[Rota] = []

    def up() -> Rota:
        started.append(Rota(home, "up", "--no-starters", **QUICK))
        return started[-1]

    yield up
    for each in started:
        each.stop()


def begin(rota: Rota, token: str, function: str) -> str:
    """A run of this agent, once it has asked."""
    config = {"function": f"asking:{function}", "path": str(rota.home.parent / "code")}
    agent = rota.post(token, "/agents", {"name": function, "executor": "python", "config": config})
    run_id: str = rota.post(token, f"/agents/{agent['id']}/runs", {"prompt": "Go."})["id"]
    until(lambda: rota.get(token, f"/runs/{run_id}")["status"] == "awaiting_approval")
    return run_id


def pending(rota: Rota, token: str, run_id: str) -> dict[str, Any]:
    asked = rota.get(token, "/approvals?status=pending")["items"]
    [found] = [each for each in asked if each["run_id"] == run_id]
    return dict(found)


def ended(rota: Rota, token: str, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = until(lambda: run if (run := rota.get(token, f"/runs/{run_id}"))["finished_at"] else None)
    return run


def test_what_waits_for_an_answer_outlives_everything(start: Any) -> None:
    """SIGKILL of the whole group while one run is parked and another waits in its process, and again right after an
    answer. The one goes on from its checkpoint; the other asks the same question anew, in its next attempt."""
    rota = start()
    rota.link()
    token = rota.token()
    parked, waiting = begin(rota, token, "parks"), begin(rota, token, "waits")
    asked = {run_id: pending(rota, token, run_id)["id"] for run_id in (parked, waiting)}
    rota.kill_group()
    rota = start()
    until(lambda: rota.get(token, f"/runs/{waiting}")["attempt"] == 2)
    until(lambda: rota.get(token, f"/runs/{waiting}")["status"] == "awaiting_approval")
    assert {run_id: pending(rota, token, run_id)["id"] for run_id in asked} == asked
    rota.post(token, f"/approvals/{asked[waiting]}", {"answer": "approve"})
    run = ended(rota, token, waiting)
    assert (run["status"], run["attempt"], run["rescues"]) == ("succeeded", 2, 1)
    assert run["summary"].startswith("approve in process")
    rota.post(token, f"/approvals/{asked[parked]}", {"answer": "refuse", "text": "Not today."})
    rota.kill_group()
    rota = start()
    run = ended(rota, token, parked)
    assert (run["status"], run["summary"], run["tries"]) == ("succeeded", "half, refuse, Not today.", 0)
    assert len(rota.get(token, "/approvals")["items"]) == 2
