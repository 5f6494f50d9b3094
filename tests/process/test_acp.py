"""Agents of the Agent Client Protocol under a Rota that is killed: conversations and questions outlive it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executors.acp_agent import config
from executors.stand_ins import lives, read_pids

from .rota import Rota, until

QUICK = {"ROTA_LEASE_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_RESCUE_SECONDS": "1"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Rota] = []

    def up() -> Rota:
        started.append(Rota(tmp_path / "home", "up", "--no-starters", **QUICK))
        return started[-1]

    yield up
    for each in started:
        each.stop()


def begin(rota: Rota, token: str, how: str) -> dict[str, Any]:
    agent = rota.post(token, "/agents", {"name": how, "executor": "acp", "config": config(how)})
    assert agent.get("warnings", []) == []
    run: dict[str, Any] = rota.post(token, f"/agents/{agent['id']}/runs", {"prompt": "Go."})
    return run


def directory(rota: Rota, run: dict[str, Any]) -> Path:
    [found] = (rota.home / "sessions").glob(f"*/{run['session_id']}")
    return found


def status(rota: Rota, token: str, run: dict[str, Any]) -> str:
    found: str = rota.get(token, f"/runs/{run['id']}")["status"]
    return found


def ended(rota: Rota, token: str, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = until(
        lambda: found if (found := rota.get(token, f"/runs/{run['id']}"))["finished_at"] else None
    )
    return found


def resumed(rota: Rota, token: str, run: dict[str, Any]) -> list[str]:
    events = rota.get(token, f"/sessions/{run['session_id']}/events?limit=100")["items"]
    told = [each["data"] for each in events if each["kind"] == "tool"]
    return [each["why"] for each in told if each.get("name") == "resume" and each["resumed"]]


def test_conversations_and_questions_outlive_everything(start: Any) -> None:
    """SIGKILL of the whole group while one agent is at work and another one's question waits."""
    rota = start()
    rota.link()
    token = rota.token()
    works, asks = begin(rota, token, "steps"), begin(rota, token, "pushes")
    until(lambda: status(rota, token, asks) == "awaiting_approval")
    until(lambda: list((rota.home / "sessions").glob(f"*/{works['session_id']}/pids")))
    [pid] = read_pids(directory(rota, works)) or []
    rota.kill_group()
    until(lambda: not lives(pid))

    rota = start()
    run = ended(rota, token, works)
    assert (run["status"], run["attempt"], run["rescues"]) == ("succeeded", 2, 1)
    assert (directory(rota, works) / "done.txt").read_text() == "one\ntwo\n"  # each step once
    assert resumed(rota, token, works) == ["interrupted"]

    [asked] = rota.get(token, "/approvals?status=pending")["items"]
    assert [option["id"] for option in asked["options"]] == ["yes", "always", "no"]
    rota.post(token, f"/approvals/{asked['id']}", {"answer": "yes"})
    run = ended(rota, token, asks)
    assert (run["status"], run["summary"], run["tries"]) == ("succeeded", "Answered: yes.", 0)
    assert (directory(rota, asks) / "done.txt").read_text() == "one\npush yes\n"
    assert resumed(rota, token, asks) == ["answered"]
    assert len(rota.get(token, "/approvals")["items"]) == 1


def test_a_cancelled_agent_leaves_nothing_running(start: Any) -> None:
    rota = start()
    rota.link()
    token = rota.token()
    run = begin(rota, token, "waits")
    until(lambda: list((rota.home / "sessions").glob(f"*/{run['session_id']}/pids")))
    place = directory(rota, run)
    [pid] = read_pids(place) or []
    rota.post(token, f"/runs/{run['id']}/cancel")
    assert ended(rota, token, run)["status"] == "cancelled"
    assert (place / "done.txt").read_text() == "cancel\n"
    assert not lives(pid)
