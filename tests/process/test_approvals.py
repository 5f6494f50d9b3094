"""Approvals with real processes: what waits for an answer outlives everything but its database."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from .rota import Rota, furnished, until

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


def pending(rota: Rota, token: str) -> dict[str, Any]:
    [asked] = rota.get(token, "/approvals?status=pending")["items"]
    found: dict[str, Any] = asked
    return found


def ended(rota: Rota, token: str, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = until(lambda: run if (run := rota.get(token, f"/runs/{run_id}"))["finished_at"] else None)
    return run


def test_a_parked_run_outlives_everything_and_goes_on_with_the_answer(start: Any) -> None:
    """SIGKILL of the whole group while it is parked, and again right after the answer."""
    rota = start()
    rota.link()
    token = rota.token()
    run_id = begin(rota, token, "parks")
    rota.kill_group()
    rota = start()
    asked = pending(rota, token)
    rota.post(token, f"/approvals/{asked['id']}", {"answer": "refuse", "text": "Not today."})
    rota.kill_group()
    rota = start()
    run = ended(rota, token, run_id)
    assert (run["status"], run["summary"]) == ("succeeded", "half, refuse, Not today.")
    assert run["tries"] == 0
    assert len(rota.get(token, "/approvals")["items"]) == 1


def test_an_agent_that_waited_in_its_process_asks_the_same_question_after_it_was_killed(start: Any) -> None:
    rota = start()
    rota.link()
    token = rota.token()
    run_id = begin(rota, token, "waits")
    asked = pending(rota, token)
    rota.kill_group()
    rota = start()
    until(lambda: rota.get(token, f"/runs/{run_id}")["attempt"] == 2)
    until(lambda: rota.get(token, f"/runs/{run_id}")["status"] == "awaiting_approval")
    assert pending(rota, token)["id"] == asked["id"]
    rota.post(token, f"/approvals/{asked['id']}", {"answer": "approve"})
    run = ended(rota, token, run_id)
    assert (run["status"], run["attempt"], run["rescues"]) == ("succeeded", 2, 1)
    assert run["summary"].startswith("approve in process")
