"""Every kind under a Rota that is killed and asked to stop: nothing finished is repeated, and nothing is left."""

import os
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rota.model.agent_config import LOCAL_KINDS
from support import clusters
from support.acp_agent import config as acp_config
from support.executor_kinds import KINDS
from support.openai_server import MODEL, Provider, calls, hangs, says
from support.rota_process import ROTA, Rota, furnished, until
from support.stand_ins import is_alive, read_pids, translate_pids
from support.waiting import under_load

ROOM = {"ROTA_MAX_CONCURRENT": "8", "ROTA_HTTP_ALLOW": "127.0.0.1:*", "ROTA_GRACE_SECONDS": "0.1"}
QUICK = {"ROTA_LEASE_SECONDS": "6", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_RESCUE_SECONDS": "1"}
TOOLS = """
def count(what: str) -> int:
    note("counted", what)
    return 3


def send(to: str) -> str:
    note("sent", to)
    return "Sent."


def note(name, what):
    with open(name, "a") as file:
        file.write(what + "\\n")
"""
GRAPH = """
import os, time
from typing import TypedDict
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from letter_tools import count, note, send


class State(TypedDict, total=False):
    letters: int
    report: str


def look(state: State) -> State:
    return {"letters": count("letters")}


async def think(state: State, config: RunnableConfig) -> None:
    if config["configurable"]["rota"].attempt == 1:
        note("pids.new", str(os.getpid()))
        os.rename("pids.new", "pids")
        time.sleep(600)


def post(state: State) -> State:
    if interrupt({"question": f"Send {state['letters']} letters?", "tool": "send"})["approved"]:
        send("all")
    return {"report": "Sent 3 letters."}


graph = StateGraph(State).add_sequence([look, think, post]).add_edge(START, "look")
"""
SPENDING = """
from typing import TypedDict
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from letter_tools import note


class State(TypedDict, total=False):
    asked: int


def ask(state: State, config: RunnableConfig) -> State:
    note("counted", "60")
    config["configurable"]["rota"].usage("tokens", 60)
    return {"asked": state.get("asked", 0) + 1}


graph = StateGraph(State).add_node(ask).add_edge(START, "ask").add_edge("ask", "ask")
"""


POD = """
set -eu
echo one >> done.txt
{rota} desk say "One."
echo $$ > pids.new
mv pids.new pids
cat go
echo two >> done.txt
{rota} desk say "Two."
echo '{{"type": "done", "summary": "Both."}}'
"""


class Door:
    """One address for whichever Rota there is, as pods have it."""

    def __init__(self) -> None:
        self.url = ""  # of the Rota behind it
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        behind = urlsplit(self.url)
        with caller, suppress(OSError), socket.create_connection((behind.hostname or "", behind.port or 0)) as rota:
            threading.Thread(target=_pass_on, args=(caller, rota), daemon=True).start()
            _pass_on(rota, caller)


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


class House:
    """One Rota after the other in one home; there is always one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.door = Door()
        self.timing = QUICK
        self.rota = self._up()
        self.token = self.rota.token()

    def _up(self) -> Rota:
        cluster = {
            "ROTA_KUBERNETES_CONFIG": clusters.shared().kubeconfig, "ROTA_KUBERNETES_URL": self.door.address,
        }  # fmt: skip
        rota = Rota(self.home, "up", "--no-starters", **ROOM, **self.timing, **cluster)
        rota.link()
        self.door.url = rota.url()
        return rota

    def power_cut(self) -> None:
        """SIGKILL for everything; then it is started again."""
        self.rota.kill_group()
        self.rota = self._up()

    def with_default_timing(self) -> None:
        """Stopped in order and started again, unless it runs so."""
        if self.timing:
            assert self.rota.stop() == 0
            self.timing = {}
            self.rota = self._up()

    def begin(self, name: str, executor: str, config: Any, **agent: Any) -> dict[str, Any]:
        given = {"name": name, "executor": executor, "config": config, **agent}
        self.rota.post(self.token, "/agents", given)
        run: dict[str, Any] = self.rota.post(self.token, f"/agents/{name}/runs", {"prompt": "Send the letters."})
        return run

    def run(self, run: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.rota.get(self.token, f"/runs/{run['id']}")
        return found

    def status(self, run: dict[str, Any]) -> str:
        found: str = self.run(run)["status"]
        return found

    def ended(self, run: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = until(lambda: found if (found := self.run(run))["finished_at"] else None)
        return found

    def directory(self, run: dict[str, Any]) -> Path:
        found = until(lambda: list((self.home / "sessions").glob(f"*/{run['session_id']}")))
        place: Path = found[0]
        return place

    def at_work(self, run: dict[str, Any]) -> list[int]:
        place = self.directory(run)
        return translate_pids(until(lambda: read_pids(place)), place)

    def notes(self, run: dict[str, Any]) -> dict[str, str]:
        names = ("done.txt", "counted", "sent")
        return {each.name: each.read_text() for each in self.directory(run).iterdir() if each.name in names}

    def used(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        events = self.rota.get(self.token, f"/sessions/{run['session_id']}/events?limit=100")["items"]
        return [each["data"] for each in events if each["kind"] == "tool"]

    def question(self, run: dict[str, Any]) -> dict[str, Any]:
        until(lambda: self.status(run) == "awaiting_approval")
        waiting = self.rota.get(self.token, "/approvals?status=pending")["items"]
        [found] = [each for each in waiting if each["run_id"] == run["id"]]
        asked: dict[str, Any] = found
        return asked

    def answer(self, run: dict[str, Any], answer: str) -> dict[str, Any]:
        self.rota.post(self.token, f"/approvals/{self.question(run)['id']}", {"answer": answer})
        return self.ended(run)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    opened = House(furnished(tmp_path_factory.mktemp("kinds") / "home"))
    yield opened
    opened.rota.stop()
    opened.door.close()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "letter_tools.py").write_text(TOOLS)
    (tmp_path / "letters_graph.py").write_text(GRAPH)
    (tmp_path / "spending_graph.py").write_text(SPENDING)
    return tmp_path


@pytest.mark.timeout(300)  # three starts, in place of nine in three tests
def test_what_was_finished_and_asked_outlives_a_power_cut_and_a_restart(house: House, code: Path) -> None:
    """SIGKILL of the whole group while agents work and a question waits; then a stop in order while others wait, and a
    Job works."""
    with Provider(calls(("count", {"what": "letters"}), usage=(100, 10)), hangs) as provider:
        steps, pushes = (
            house.begin("steps", "acp", acp_config("steps")),
            house.begin("pushes", "acp", acp_config("pushes", park_after="0s")),
        )
        graph = house.begin(
            "graph", "langgraph", {"graph": "letters_graph:graph", "path": str(code), "result_key": "report"}
        )
        model = house.begin(
            "model", "llm", model_config(house, provider, code), credentials={"OPENAI_API_KEY": "openai"}
        )
        pod = begin_pod(house, code / "pod")
        pids = [*house.at_work(steps), *house.at_work(graph)]
        [outside] = until(lambda: read_pids(code / "pod"))
        until(lambda: len(provider.asked) == 2)
        until(lambda: house.status(pushes) == "awaiting_approval")
        provider.answers += [calls(("send", {"to": "all"}), usage=(200, 20)), says("Sent 3 letters.", usage=(300, 30))]
        house.power_cut()
        until(lambda: not any(is_alive(pid) for pid in pids))
        assert is_alive(outside)
        handed_back = begin_pod(house, code / "other", name="other-pod")
        until(lambda: read_pids(code / "other"))
        (code / "pod" / "go").write_text("")  # it may call before the next attempt has begun, with a token that is over

        assert house.question(model)["detail"] == {"tool": "send", "arguments": {"to": "all"}}
        assert house.question(graph)["question"] == "Send 3 letters?"
        stepped = house.ended(steps)
        check_that_it_was_adopted(house, pod, code / "pod", rescues=1)
        house.with_default_timing()
        (code / "other" / "go").write_text("")
        check_that_it_was_adopted(house, handed_back, code / "other", rescues=0)
        ended = {"pushes": house.answer(pushes, "yes"), "model": house.answer(model, "approve")}
        ended["graph"] = house.answer(graph, "approve")

    assert (stepped["status"], stepped["attempt"], stepped["rescues"]) == ("succeeded", 2, 1)
    told = {name: (run["status"], run["summary"], run["rescues"]) for name, run in ended.items()}
    assert told == {
        "pushes": ("succeeded", "Answered: yes.", 0),
        "model": ("succeeded", "Sent 3 letters.", 1),
        "graph": ("succeeded", "Sent 3 letters.", 1),
    }
    assert house.notes(steps) == {"done.txt": "one\ntwo\n"}
    assert house.notes(pushes) == {"done.txt": "one\npush yes\n"}
    assert house.notes(model) == house.notes(graph) == {"counted": "letters\n", "sent": "all\n"}
    assert [each["why"] for each in house.used(steps) if each.get("resumed")] == ["interrupted"]
    assert [each["why"] for each in house.used(pushes) if each.get("resumed")] == ["answered"]
    assert [each["name"] for each in house.used(model)] == ["count", "resume", "resume", "send"]
    assert [each["finished"] for each in house.used(model) if each["name"] == "resume"] == [["count"], ["count"]]
    assert [each["next"] for each in house.used(graph) if each["name"] == "resume"] == [["think"], ["post"]]
    assert [each["node"] for each in house.used(graph) if each["name"] == "node"] == ["look", "think", "post"]
    spent = {"input_tokens": 600, "output_tokens": 60, "tokens": 660, "money": 0.0012}
    assert ended["model"]["usage"] == pytest.approx(spent)
    assert set(provider.keys) == {"Bearer sk-canary-of-the-vault"}
    assert "sk-canary" not in str(house.used(model))


def begin_pod(house: House, place: Path, name: str = "pod") -> dict[str, Any]:
    place.mkdir()
    os.mkfifo(place / "go")
    script = POD.format(rota=shlex.quote(str(ROTA)))
    config = {"image": "agents/shell:1", "command": ["sh", "-c", script], "working_dir": str(place)}
    return house.begin(name, "kubernetes", config)


def check_that_it_was_adopted(house: House, run: dict[str, Any], place: Path, *, rescues: int) -> None:
    """One process did all of it, and went on at the desk of the next attempt."""
    ended = house.ended(run)
    told = (ended["status"], ended["summary"], ended["attempt"], ended["rescues"])
    assert told == ("succeeded", "Both.", 2, rescues)
    assert (place / "done.txt").read_text() == "one\ntwo\n"
    assert [each["why"] for each in house.used(run) if each["name"] == "resume"] == ["adopted from attempt 1"]
    events = house.rota.get(house.token, f"/sessions/{run['session_id']}/events?limit=100")["items"]
    assert [each["data"]["text"] for each in events if each["kind"] == "output"] == ["One.\n", "Two.\n"]
    assert clusters.shared().objects(run["id"], "Secret") == []


def model_config(house: House, provider: Provider, code: Path) -> dict[str, Any]:
    house.rota.post(house.token, "/credentials", {"name": "openai", "value": "sk-canary-of-the-vault"})
    tools = [{"function": "letter_tools:count"}, {"function": "letter_tools:send", "approval": True}]
    prices = {"input": 1, "output": 10}
    return {"model": MODEL, "base_url": provider.url, "path": str(code), "tools": tools, "prices": prices}


def test_a_graph_goes_no_step_further_than_its_budget_and_the_ledger_is_exact(house: House, code: Path) -> None:
    config = {"graph": "spending_graph:graph", "path": str(code)}
    house.rota.post(house.token, "/agents", {"name": "spending", "executor": "langgraph", "config": config})
    automation = {"name": "Spending", "agent": "spending", "prompt": "Spend.", "schedule": {"every": "1d"}}
    house.rota.post(house.token, "/automations", {**automation, "budget": {"per_run": {"tokens": 100}}})
    run = house.ended(house.rota.post(house.token, "/automations/spending/run"))
    assert (run["status"], run["error_class"], run["usage"]["tokens"]) == ("failed", "budget_exceeded", 120)
    assert house.notes(run) == {"counted": "60\n60\n"}


def test_a_cancelled_agent_of_any_kind_is_gone_within_five_seconds_with_all_its_children(
    house: House, tmp_path: Path
) -> None:
    """With the default settings. All ignore the request to end, and have children that left their group."""
    house.with_default_timing()
    with Provider(hangs) as service:
        remote = house.begin("cancelled-http", "http", {"url": service.url})
        behaving = {
            kind.name: house.begin(
                f"cancelled-{kind.name}",
                kind.name,
                kind.behave("forks and ignores TERM", tmp_path / kind.name / "code"),
            )
            for kind in KINDS
            if kind.name in (*LOCAL_KINDS, "kubernetes")
        }
        pod = behaving["kubernetes"]
        pids = {name: house.at_work(run) for name, run in behaving.items() if run is not pod}
        pids["kubernetes"] = until(lambda: read_pids(tmp_path / "kubernetes" / "session"))
        assert {name: len(each) for name, each in pids.items()} == dict.fromkeys(behaving, 5)
        assert all(is_alive(pid) for each in pids.values() for pid in each)
        until(lambda: service.asked)
        before = time.monotonic()
        for run in (remote, *behaving.values()):
            house.rota.post(house.token, f"/runs/{run['id']}/cancel")
        gone: dict[str, float] = {}
        while len(gone) < len(pids) and time.monotonic() < before + under_load(10):
            for name in set(pids) - set(gone):
                if not any(is_alive(pid) for pid in pids[name]):
                    gone[name] = round(time.monotonic() - before, 2)
            time.sleep(0.01)
        until(
            lambda: not clusters.shared().objects(pod["id"]), within=max(0.0, before + under_load(5) - time.monotonic())
        )
        assert service.hung_up.wait(max(0.0, before + under_load(5) - time.monotonic()))
        assert {house.ended(run)["status"] for run in (remote, *behaving.values())} == {"cancelled"}
        assert set(gone) == set(pids)
        assert max(gone.values()) < under_load(5), gone


def test_an_agent_that_is_asked_to_end_may_tidy_up(house: House) -> None:
    run = house.begin("waits", "acp", acp_config("waits"))
    [pid] = house.at_work(run)
    house.rota.post(house.token, f"/runs/{run['id']}/cancel")
    assert house.ended(run)["status"] == "cancelled"
    assert house.notes(run) == {"done.txt": "cancel\n"}
    assert not is_alive(pid)
