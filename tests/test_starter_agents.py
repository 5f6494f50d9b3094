"""What the starters say where there is little, much, or something that no longer is."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rota.agent import Context, Turn
from rota.starters import agents, folder

ASKED = {"folder": "/papers", "since": 0.0, "looked_at": 7.0}


class Letters:
    """The desk of a judge: what came, what was said, and a person who agrees."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.letters = [{"id": number, "body": body} for number, body in enumerate(bodies, 1)]
        self.asked: list[str] = []
        self.acked: list[int] = []
        self.remembered: list[Any] = []
        self.report = ""

    def inbox(self) -> list[dict[str, Any]]:
        return self.letters

    def message(self, body: Any, **_: Any) -> None:
        self.letters.append({"id": 1, "body": body})

    def ask(self, question: str, **_: Any) -> dict[str, Any]:
        self.asked.append(question)
        return {"approved": True}

    def artifact(self, _name: str, content: str, **_: Any) -> None:
        self.report = content

    def remember(self, _key: str, value: Any) -> None:
        self.remembered.append(value)

    def ack(self, *ids: int) -> None:
        self.acked += ids


def test_the_counter_goes_on_from_what_it_said_and_says_a_sentence() -> None:
    """A number with a dot alone is an empty item of a list, wherever a page shows it."""
    said = [Turn("agent", "1."), Turn("user", "Count one further, up to 99."), Turn("agent", "I have counted to 2.")]
    assert agents.count(Context(transcript=said)) == "I have counted to 3."


def test_nobody_is_asked_about_a_folder_in_which_nothing_changed() -> None:
    desk = Letters({"changed": [], "more": 0}, {"changed": [], "more": 0})
    assert folder.merge_findings(Context(input=ASKED), desk) == "Nothing has changed."
    assert (desk.asked, desk.acked, desk.remembered) == ([], [1, 2], [{"at": 7.0, "changed": 0}])


def test_however_many_files_changed_a_message_has_room_for_what_is_told(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    for number in range(1_500):
        (deep / f"{number}").touch()
    desk = Letters()
    asked = {"folder": str(tmp_path), "names": ["d" * 200], "since": 0.0}
    assert folder.look_for_changes(Context(input=asked), desk) == "1500 changed."
    assert len(json.dumps(desk.letters)) < 524_288
    assert folder.merge_findings(Context(input=ASKED), desk) == "1500 files changed; the report is written."
    assert desk.asked == ["Write a report of 1500 files that changed?"]
    assert desk.report.endswith("\n- and 500 more\n")


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[str]:
    """An API that gives these answers, by the last part of the path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path.partition("?")[0].rpartition("/")[2]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing to the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("after", "said"), [(None, "4 runs since the start, 1 failed."), ("x", "1 of the latest 4 runs failed.")]
)
def test_the_digest_tells_what_it_has_seen_and_calls_it_by_its_name(
    after: str | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[dict[str, str | None]] = [
        {"id": "1", "automation_id": "a", "source": "schedule", "status": "succeeded"},
        {"id": "2", "automation_id": None, "source": "task", "status": "succeeded"},
        {"id": "3", "automation_id": None, "source": "run_now", "status": "succeeded"},
        {"id": "4", "automation_id": "b", "source": "schedule", "status": "failed"},
    ]
    for run in runs:
        run |= {"error_class": "agent_error", "error_detail": "no"}
    answers = {"runs": {"items": runs, "next_cursor": after}, "automations": {"items": [{"id": "a", "name": "Tidy"}]}}
    with serving(answers) as url:
        for name, value in {"ROTA_URL": url, "ROTA_WORKSPACE": "default", "ROTA_TOKEN": "rota_x"}.items():
            monkeypatch.setenv(name, value)
        assert agents.digest(Context()) == said
    assert capsys.readouterr().out.splitlines() == [
        "- Direct runs: 1 succeeded",
        "- Other automations: 1 failed",
        "- Tasks: 1 succeeded",
        "- Tidy: 1 succeeded",
        "- Look at Other automations: agent_error, no",
    ]


def test_an_agent_of_the_starters_loads_nothing_of_the_server() -> None:
    program = "import sys, rota.starters.agents, rota.starters.folder; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {"psycopg", "rota.db", "rota.roster"}.isdisjoint(loaded)
