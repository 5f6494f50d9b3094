"""What belongs to sessions and automations, on the command line: messages, artifacts, memory, triggers, roles, tasks."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from rota.access import signing_in
from rota.model.scope import Scope
from support.api_client import Office

from .conftest import Answer, Command

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOBODY = "01a1e0db-2cd9-7826-809d-0931e0e98709"


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def files(folder: Path) -> list[str]:
    return os.listdir(folder)


async def drafted(rota: Command) -> str:
    """A session of several roles in which nothing runs."""
    seats = ("--role", "planner=worker-bee", "--role", "judge=worker-bee")
    return (await rota("sessions", "goal", "Think.", *seats, "--draft")).stdout.strip()


async def errand(rota: Command, *more: str) -> None:
    await rota("automations", "create", "Errand", "--agent", "worker-bee", "--prompt", "Go.", *more)


async def test_messages_are_published_once_listed_and_acknowledged(rota: Command, answer: Answer) -> None:
    session = await drafted(rota)
    for _ in range(2):
        sent = await rota("messages", "publish", session, "-", "--to", "judge", "--key", "k", stdin="Is it so?")
        assert sent.stdout == "1\n"
    assert (await answer("messages", "publish", session, '{"n": [1]}', "--parse"))["body"] == {"n": [1]}
    listed = rows((await rota("messages", "list", session)).stdout)
    assert [(row[0], row[2]) for row in listed] == [("1", "judge"), ("2", "all")]
    assert [row[-2:] for row in listed] == [["it", "so?"], ['{"n":', "[1]}"]]
    shown = (await rota("messages", "show", session, "2")).stdout
    assert "  judge: -\n  planner: -\n" in shown
    assert '{"n": [1]}' in shown
    assert (await rota("messages", "ack", session, "1", "2", "--role", "judge")).stdout.count("is acknowledged.") == 2
    left = await answer("messages", "list", session, "--role", "judge", "--unacked")
    assert left == {"items": [], "next_cursor": None}
    assert (await rota("messages", "list", session, "--after", "2", "--wait", "0.01s", code=3)).stderr == (
        "There is none.\n"
    )
    assert len(rows((await rota("messages", "list", session, "--wait", "9m")).stdout)) == 2


async def test_an_artifact_comes_out_as_it_went_in_and_over_no_other_file(
    rota: Command, answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, content = await drafted(rota), bytes(range(256)) * 4000
    (tmp_path / "report.bin").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    added = (await rota("artifacts", "add", session, "report.bin", "--key", "k")).stdout
    assert (await rota("artifacts", "add", session, "report.bin", "--key", "k")).stdout == added
    await rota("artifacts", "add", session, "--uri", "https://example.org/pull/7", "--name", "PR")
    listed = rows((await rota("artifacts", "list", session)).stdout)
    assert [(row[1], row[3], row[-1]) for row in listed] == [
        ("PR", "-", "https://example.org/pull/7"),
        ("report.bin", "1,024,000", "-"),
    ]
    there = await rota("artifacts", "download", session, "report.bin", code=2)
    assert "is there already" in there.stderr
    assert (await rota("artifacts", "download", session, added.strip().upper(), "-o", "copy")).stdout == "copy\n"
    assert (tmp_path / "copy").read_bytes() == content
    assert (await rota("artifacts", "download", session, "report.bin", "-o", "-")).stdout_bytes == content
    assert "https://example.org/pull/7" in (await rota("artifacts", "download", session, "PR", code=2)).stderr
    assert (await answer("artifacts", "download", session, "report.bin", "-o", "third"))["size"] == len(content)


async def test_what_breaks_off_leaves_no_file(rota: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await drafted(rota)
    await rota("artifacts", "add", session, "-", "--name", "notes.txt", stdin="Notes.")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rota.cli.artifacts.sha256", hashlib.sha224)
    damaged = await rota("artifacts", "download", session, "notes.txt", code=2)
    assert "damaged on its way" in damaged.stderr
    await rota("sessions", "export", NOBODY, "-o", "session.jsonl", code=2)
    assert files(tmp_path) == []
    (tmp_path / "session.jsonl").write_text("kept")
    await rota("sessions", "export", session, "-o", "session.jsonl", code=2)
    assert (tmp_path / "session.jsonl").read_text() == "kept"


async def test_a_name_that_a_program_would_read_by_itself_is_not_used_for_a_file(
    rota: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await drafted(rota)
    monkeypatch.chdir(tmp_path)
    await rota("artifacts", "add", session, "-", "--name", ".profile", stdin="rm -rf /")
    assert "with -o" in (await rota("artifacts", "download", session, ".profile", code=2)).stderr
    assert files(tmp_path) == []


async def test_memory_is_set_from_anywhere_read_and_deleted(rota: Command, answer: Answer, tmp_path: Path) -> None:
    await errand(rota)
    (tmp_path / "seen.json").write_text('["a", "é"]')
    assert (await rota("memory", "set", "errand", "n", "3")).stdout == "n is remembered.\n"
    until = (await rota("memory", "set", "errand", "city", "-", "--text", "--ttl", "7d", stdin="Berlin")).stdout
    assert until.startswith("city is remembered until ")
    await rota("memory", "set", "errand", "a:b", "--file", str(tmp_path / "seen.json"), "--confidence", "0.5")
    listed = rows((await rota("memory", "list", "errand")).stdout)
    assert [(row[0], row[1], row[-1]) for row in listed] == [
        ("a:b", "0.5", '"é"]'),
        ("city", "-", '"Berlin"'),
        ("n", "-", "3"),
    ]
    assert (await rota("memory", "get", "errand", "city")).stdout == '"Berlin"\n'
    assert (await answer("memory", "get", "errand", "a:b"))["confidence"] == 0.5
    assert (await rota("memory", "delete", "errand", "a:b")).stdout == "a:b is forgotten.\n"
    assert "Nothing is remembered" in (await rota("memory", "delete", "errand", "a:b", code=2)).stderr


async def test_a_token_for_changes_only_deletes_what_it_cannot_see(
    rota: Command, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await errand(rota)
    for key in ("n", "a:b"):
        await rota("memory", "set", "errand", key, "3")
    async with office.db.transaction() as conn:
        caller = office.caller
        _, token = await signing_in.add_token(conn, caller.workspace_id, caller.user_id, "writes", scopes=[Scope.WRITE])
    whole = os.environ["ROTA_TOKEN"]
    monkeypatch.setenv("ROTA_TOKEN", token)
    assert "no scope `read`" in (await rota("memory", "get", "errand", "n", code=2)).stderr
    assert (await rota("memory", "delete", "errand", "a:b")).stdout == "Nothing is remembered under a:b now.\n"
    assert (await rota("memory", "delete", "errand", "n", "--json")).stdout == ""
    assert "There is no such automation" in (await rota("memory", "delete", "nothing", "n", code=2)).stderr
    await rota("notifications", "choose", "paused", "--no-bell", "--outward")
    told = (await rota("automations", "delete", "errand")).stdout
    assert told == "errand is deleted; `rota automations restore` takes its id.\n"
    assert "There is no such automation" in (await rota("automations", "delete", "errand", code=2)).stderr
    assert await office.value("SELECT count(*) FROM memory WHERE workspace_id = %s", office.caller.workspace_id) == 0
    monkeypatch.setenv("ROTA_TOKEN", whole)
    assert "deleted" in (await rota("automations", "list", "--deleted")).stdout


async def test_triggers_are_added_held_changed_and_deleted_one_by_one(rota: Command, answer: Answer) -> None:
    await errand(rota, "--cron", "0 9 * * 1-5")
    saved = (await rota("triggers", "add", "errand", "--webhook")).stdout
    hook = saved.split()[0]
    assert f"/hooks/{hook} has the secret whsec_" in saved
    assert "whsec_" in (await rota("triggers", "renew-secret", "errand", hook)).stdout
    await rota("triggers", "add", "errand", "--event", "invoice.paid", "--max-fires", "3", "--overlap", "queue_one")
    held = await rota("triggers", "edit", "errand", hook, "--disable")
    assert held.stdout == f"{hook} is saved: When its webhook is called (switched off).\n"
    assert ["status", "disabled"] in rows((await rota("triggers", "show", "errand", hook)).stdout)
    assert [row[1] for row in rows((await rota("triggers", "list", "errand")).stdout)] == ["cron", "webhook", "event"]
    assert (await rota("triggers", "delete", "errand", hook)).stdout == f"{hook} is deleted.\n"
    event = (await answer("triggers", "list", "errand"))["items"][1]
    assert (event["max_fires"], event["overlap"]) == (3, "queue_one")
    assert (await answer("triggers", "edit", "errand", event["id"], "--set", "max_fires=null"))["max_fires"] is None


async def test_what_changed_between_two_revisions_is_told(rota: Command, answer: Answer) -> None:
    await errand(rota)
    assert "before the first" in (await rota("automations", "diff", "errand", code=2)).stderr
    await rota("automations", "edit", "errand", "--prompt", "Go.\nThen rest.")
    await rota("automations", "edit", "errand", "--set", "timeout=30m")
    assert (await rota("automations", "diff", "errand")).stdout == (
        "Revision 2 → 3, saved by Local admin\n    timeout: 1h → 30m\n"
    )
    assert "      + Then rest.\n" in (await rota("automations", "diff", "errand", "1")).stdout
    told = await answer("automations", "diff", "errand", "3", "1")
    assert (told["from"], told["to"], told["changed"]["timeout"]) == (3, 1, {"from": "30m", "to": "1h"})
    assert (await rota("automations", "diff", "errand", "2", "2")).stderr == "Nothing changed.\n"
    assert "no revision 9" in (await rota("automations", "diff", "errand", "1", "9", code=2)).stderr


async def test_a_session_gets_roles_and_tasks_and_tells_where_it_came_from(rota: Command, answer: Answer) -> None:
    session = await drafted(rota)
    assert (await rota("sessions", "add-role", session, "critic", "worker-bee")).stdout == "critic is worker-bee.\n"
    assert [row[0] for row in rows((await rota("sessions", "roles", session)).stdout)] == ["judge", "planner", "critic"]
    assert (await rota("sessions", "add-task", session, "planner", "Plan.", "--name", "plan")).stdout == "plan\n"
    more = [{"key": "judge", "role": "judge", "prompt": "Judge.", "depends_on": ["plan"]}]
    assert (await rota("sessions", "add-tasks", session, "-", stdin=json.dumps(more))).stdout == "judge\n"
    assert [row[-2] for row in rows((await rota("sessions", "tasks", session)).stdout)] == ["-", "plan"]
    told = rows((await rota("sessions", "events", session)).stdout)
    assert [row[-2:] for row in told][-2:] == [["plan", "pending"], ["judge", "pending"]]
    assert len((await answer("sessions", "events", session, "--after", "1"))["items"]) == len(told) - 1
    assert "No automation started" in (await rota("sessions", "origin", session, code=2)).stderr
    await errand(rota)
    run = await answer("automations", "run", "errand", "--key", "once")
    assert (await answer("automations", "run", "errand", "--key", "once"))["id"] == run["id"]
    assert ["run", run["id"]] in rows((await rota("sessions", "origin", run["session_id"])).stdout)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["messages", "show", NOBODY, "1"], "There is no such session."),
        (["messages", "publish", "SESSION", "{", "--parse"], "BODY is no JSON"),
        (["messages", "publish", "SESSION", "x", "--to", "nobody"], "it has judge, planner, user"),
        (["messages", "ack", "SESSION", "7"], "Message 7 of this session was not sent to 'user'"),
        (["messages", "show", "SESSION", "7"], "There is no message 7"),
        (["artifacts", "add", "SESSION"], "Give a FILE or a --uri"),
        (["artifacts", "add", "SESSION", "-"], "give it one with --name"),
        (["artifacts", "add", "SESSION", "nowhere"], "nowhere cannot be read: No such file"),
        (["artifacts", "add", "SESSION", "--uri", "x:y"], "A URI begins with"),
        (["artifacts", "download", "SESSION", "nope"], "There is no such artifact"),
        (["artifacts", "download", "SESSION", "nope", "-o", "-", "--json"], "leave out --json"),
        (["sessions", "add-tasks", "SESSION", "{}"], "tasks: Give a JSON list"),
        (["sessions", "roles", "nonsense"], "rota: session_id: Give an id such as"),
        (["memory", "set", "errand", "k", "Berlin"], "--text takes it as text"),
        (["memory", "set", "errand", "k"], "Give a VALUE or a --file"),
        (["memory", "set", "errand", "k", "--file", "nowhere"], "nowhere cannot be read"),
        (["memory", "get", "errand", " "], "Give a key."),
        (["triggers", "add", "errand"], "Say when: --cron"),
        (["triggers", "add", "errand", "--schedule", "[1]"], "A schedule is a JSON object"),
        (
            ["triggers", "add", "errand", "--every", "1h", "--ends-at", "soon"],
            "ends_at: Give an instant with its offset",
        ),
        (["triggers", "show", "errand", NOBODY], "There is no such trigger"),
    ],
)
async def test_a_refusal_says_what_would_be_right(rota: Command, words: list[str], told: str) -> None:
    await errand(rota)
    session = await drafted(rota)
    refused = await rota(*(session if word == "SESSION" else word for word in words), code=2)
    assert told in refused.stderr
    assert "Traceback" not in refused.output
