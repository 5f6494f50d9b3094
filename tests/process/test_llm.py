"""A model's agent with real processes: killed with everything around it, it goes on behind what it has finished."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executors.openai_wire import MODEL, Provider, calls, hangs, says

from .rota import Rota, until

QUICK = {"ROTA_LEASE_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_RESCUE_SECONDS": "1"}
TOOLS = """
def count(what: str) -> int:
    with open("counted", "a") as file:
        file.write(what + "\\n")
    return 3


def send(to: str) -> str:
    with open("sent", "a") as file:
        file.write(to + "\\n")
    return "Sent."
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "letter_tools.py").write_text(TOOLS)
    return tmp_path / "home"


@pytest.fixture
def start(home: Path) -> Iterator[Any]:
    started: list[Rota] = []

    def up() -> Rota:
        started.append(Rota(home, "up", "--no-starters", **QUICK))
        return started[-1]

    yield up
    for each in started:
        each.stop()


def begin(rota: Rota, token: str, provider: Provider) -> str:
    rota.post(token, "/credentials", {"name": "openai", "value": "sk-canary-of-the-vault"})
    tools = [{"function": "letter_tools:count"}, {"function": "letter_tools:send", "approval": True}]
    config = {"model": MODEL, "base_url": provider.url, "path": str(rota.home.parent / "code"), "tools": tools}
    agent = {"name": "Letters", "executor": "llm", "config": {**config, "prices": {"input": 1, "output": 10}}}
    saved = rota.post(token, "/agents", {**agent, "credentials": {"OPENAI_API_KEY": "openai"}})
    assert not saved["warnings"]
    run_id: str = rota.post(token, "/agents/letters/runs", {"prompt": "Send the letters."})["id"]
    return run_id


def test_finished_tools_and_approvals_outlive_everything(start: Any, home: Path) -> None:
    """SIGKILL of the whole group while the model thinks, and again while a person does."""
    with Provider(calls(("count", {"what": "letters"}), usage=(100, 10)), hangs) as provider:
        rota = start()
        rota.link()
        token = rota.token()
        run_id = begin(rota, token, provider)
        until(lambda: len(provider.asked) == 2)
        rota.kill_group()
        provider.answers += [calls(("send", {"to": "all"}), usage=(200, 20)), says("Sent 3 letters.", usage=(300, 30))]
        rota = start()
        until(lambda: rota.get(token, f"/runs/{run_id}")["status"] == "awaiting_approval")
        rota.kill_group()
        rota = start()
        [asked] = rota.get(token, "/approvals?status=pending")["items"]
        assert asked["detail"] == {"tool": "send", "arguments": {"to": "all"}}
        rota.post(token, f"/approvals/{asked['id']}", {"answer": "approve"})
        run = until(lambda: run if (run := rota.get(token, f"/runs/{run_id}"))["finished_at"] else None)
        assert (run["status"], run["summary"], run["rescues"]) == ("succeeded", "Sent 3 letters.", 1)
        spent = {"input_tokens": 600, "output_tokens": 60, "tokens": 660, "money": 0.0012}
        assert run["usage"] == pytest.approx(spent)
        [directory] = (home / "sessions").glob("*/*")
        assert ((directory / "counted").read_text(), (directory / "sent").read_text()) == ("letters\n", "all\n")
        events = rota.get(token, f"/sessions/{run['session_id']}/events?limit=100")["items"]
        used = [each["data"] for each in events if each["kind"] == "tool"]
        assert [each["name"] for each in used] == ["count", "resume", "resume", "send"]
        assert [each["finished"] for each in used if each["name"] == "resume"] == [["count"], ["count"]]
        assert set(provider.keys) == {"Bearer sk-canary-of-the-vault"}
        assert "sk-canary" not in str(events)
