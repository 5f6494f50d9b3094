"""The nouns of the command line, over HTTP against a real server: what they ask, and what people and programs read."""

import asyncio
import json
import os
import re
import socket
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rota.db import workers
from rota.model.ids import WorkerId
from support.api_client import Office
from support.api_routes import EXPORT
from support.waiting import until

from .conftest import Answer, Command

pytestmark = pytest.mark.asyncio(loop_scope="module")

POET = '{"argv": ["sh", "-c", "read topic; echo \\"On $topic\\"; echo five"]}'
AGE = r"(now|\d+ s ago)"  # of what just happened
EVIL = "\x1b]0;owned\x07\x1b[31mred\x9b2J"


async def poet(rota: Command, config: str = POET) -> None:
    await rota("agents", "create", "Poet", "--executor", "command", "--config", config)


async def haiku(rota: Command, *more: str) -> None:
    await rota("automations", "create", "Haiku", "--agent", "poet", "--prompt", "the sea", *more)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_an_agent_is_saved_changed_shown_paused_and_deleted(rota: Command, answer: Answer) -> None:
    await poet(rota)
    changed = await rota(
        "agents", "edit", "poet", "--instructions", "-", "--set", "max_concurrent=2", stdin="Be\nbrief."
    )
    assert changed.stdout == "poet is saved, revision 2.\n"
    shown = await answer("agents", "show", "poet")
    assert (shown["instructions"], shown["max_concurrent"], shown["config"]["argv"][0]) == ("Be\nbrief.", 2, "sh")
    told = (await rota("agents", "show", "poet")).stdout
    assert "\n  Be\n  brief.\n" in told
    assert (await rota("agents", "pause", "poet")).stdout == "poet is paused.\n"
    assert ["poet", "Poet", "command", "paused"] in [row[:4] for row in rows((await rota("agents", "list")).stdout)]
    await rota("agents", "resume", "poet")
    assert (await rota("agents", "delete", "poet", "--json")).stdout == ""
    refused = await rota("agents", "show", "poet", code=2)
    assert refused.stderr == "rota: There is no such agent.\n"


@pytest.mark.usefixtures("worker")
async def test_a_run_is_followed_to_its_end_and_its_story_told(rota: Command, answer: Answer) -> None:
    await poet(rota)
    await haiku(rota, "--paused")
    followed = await rota("automations", "run", "haiku", "--payload", '{"n": 1}', "--follow")
    assert followed.stdout == "On the sea\nfive\n"
    assert followed.stderr.startswith("succeeded, ")
    [run] = (await answer("automations", "runs", "haiku"))["items"]
    assert run["payload"] == {"n": 1}
    [ledger] = rows((await rota("runs", "list", "--status", "succeeded")).stdout)[1:]
    assert ledger[:4] == [run["id"], "succeeded", "run_now", "haiku"]
    told = (await rota("runs", "show", run["id"])).stdout
    assert ["status", "succeeded"] in rows(told)
    assert told.splitlines()[-2].split()[:2] == ["ATTEMPT", "WORKER"]
    assert (await rota("runs", "follow", run["id"])).stdout == "On the sea\nfive\n"
    events = [json.loads(line) for line in (await rota("runs", "follow", run["id"], "--json")).stdout.splitlines()]
    assert events[-1]["data"]["status"] == "succeeded"
    assert (await answer("runs", "wait", run["id"]))["id"] == run["id"]


@pytest.mark.usefixtures("worker")
async def test_a_run_that_fails_ends_the_command_with_one_and_is_retried(rota: Command, answer: Answer) -> None:
    await poet(rota, '{"argv": ["sh", "-c", "echo oh; exit 7"]}')
    failed = await rota("agents", "run", "poet", "Go.", "--follow", code=1)
    assert failed.stdout == "oh\n"
    assert "failed, agent_error" in failed.stderr
    [run] = (await answer("agents", "runs", "poet"))["items"]
    again = (await rota("runs", "retry", run["id"])).stdout.strip()
    await rota("runs", "wait", again, "--timeout", "30s", code=1)
    assert (await answer("runs", "show", again))["retry_of"] == run["id"]


async def test_a_run_that_nobody_takes_is_waited_for_so_long_and_cancelled(rota: Command) -> None:
    await poet(rota)
    await rota("agents", "edit", "poet", "--pool", "nobodys")
    run = (await rota("agents", "run", "poet", "-", stdin="Go.")).stdout.strip()
    late = await rota("runs", "wait", run, "--timeout", "0.1s", code=3)
    assert late.stderr == f"rota: {run} is still queued.\n"
    assert (await rota("runs", "cancel", run)).stdout == f"{run} is cancelled.\n"
    ended = await rota("runs", "wait", run, code=1)
    assert ended.stderr == "cancelled, cancelled_by_user, Cancelled before it began.\n"
    assert "has ended" in (await rota("runs", "cancel", run, code=2)).stderr


async def test_an_automation_goes_through_its_life(rota: Command, answer: Answer) -> None:
    await poet(rota)
    await haiku(rota, "--cron", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--set", "timeout=90m")
    shown = await answer("automations", "show", "haiku")
    assert (shown["timeout"], shown["triggers"][0]["schedule"]["timezone"]) == ("1h30m", "Europe/Berlin")
    edited = await rota("automations", "edit", "haiku", "--every", "2d", "--time", "09:00")
    assert edited.stdout.startswith("haiku is saved, revision 2, next ")
    assert (await rota("automations", "pause", "haiku")).stdout == "haiku is paused.\n"
    assert (await rota("automations", "resume", "haiku")).stdout.startswith("haiku is active, next ")
    told = (await rota("automations", "list")).stdout
    assert "Every 2 days at 09:00" in told
    deleted = (await rota("automations", "delete", "haiku")).stdout
    assert f"restore {shown['id']}" in deleted
    assert rows((await rota("automations", "list")).stdout)[1:] == []
    [row] = rows((await rota("automations", "list", "--deleted")).stdout)[1:]
    assert "deleted" in row
    await rota("automations", "restore", shown["id"])
    assert (await rota("automations", "renew-grant", "haiku", "--lasts", "90d")).stdout.startswith("haiku runs on")
    assert [row[0] for row in rows((await rota("automations", "revisions", "haiku")).stdout)] == [
        "REVISION",
        "3",
        "2",
        "1",
    ]


async def test_a_webhooks_secret_is_shown_once_and_an_event_starts_a_run(rota: Command, answer: Answer) -> None:
    await poet(rota)
    created = await rota(
        "automations", "create", "Hooked", "--agent", "poet", "--prompt", "x",
        "--trigger", '{"webhook": {}}', "--trigger", '{"event": "invoice.paid"}',
    )  # fmt: skip
    assert "whsec_" in created.stdout
    assert "whsec_" not in (await rota("automations", "show", "hooked")).stdout
    nobody = await rota("events", "post", "nobody.waits")
    assert (nobody.stdout, nobody.stderr) == ("", "It started no run.\n")
    [run] = (await answer("events", "post", "invoice.paid", '{"n": 4711}', "--key", "n-4711"))["runs"]
    assert (
        await rota("events", "post", "invoice.paid", "-", "--key", "n-4711", stdin='{"n": 4711}')
    ).stdout.strip() == run
    assert (await answer("runs", "show", run))["payload"]["data"] == {"n": 4711}


async def test_a_preview_says_when_and_warns(rota: Command, answer: Answer) -> None:
    told = await rota("automations", "preview", "--cron", "0 9 13 * 5", "--count", "2")
    assert "Friday" in told.stdout
    assert len(told.stdout.splitlines()) == 3
    assert "either day field" in told.stderr
    assert len((await answer("automations", "preview", "--every", "15m"))["fires"]) == 5
    refused = await rota("automations", "preview", "--cron", "60 * * * *", code=2)
    assert "minute “60” is out of range" in refused.stderr
    assert "not both" in (await rota("automations", "preview", "--schedule", "{}", "--cron", "x", code=2)).stderr
    assert "Say when" in (await rota("automations", "preview", code=2)).stderr


@pytest.mark.usefixtures("worker")
async def test_a_conversation_is_opened_and_goes_on(rota: Command, answer: Answer) -> None:
    await poet(rota)
    session = (await rota("sessions", "open", "poet", "--title", "Chat")).stdout.strip()
    assert (await rota("sessions", "say", session, "winter", "--follow")).stdout == "On winter\nfive\n"
    told = (await rota("sessions", "transcript", session)).stdout
    assert "user: winter\n" in told
    assert "agent: On winter\nfive\n" in told
    [listed] = rows((await rota("sessions", "list", "--kind", "interactive")).stdout)[1:]
    assert listed[0] == session
    assert (await answer("sessions", "say", session, "hello", "--to", "all"))["body"] == "hello"
    assert "leave out" in (await rota("sessions", "say", session, "x", "--to", "all", "--follow", code=2)).stderr
    assert (await rota("sessions", "complete", session)).stdout == f"{session} is done.\n"
    assert ["status", "done"] in rows((await rota("sessions", "show", session)).stdout)


async def test_a_transcript_tells_as_many_events_as_it_is_asked_for_and_no_speech_in_pieces(
    rota: Command, answer: Answer
) -> None:
    """A page of the API ends in the middle of what an agent says."""
    created = {"created_at": "2026-06-01T09:00:00Z"}
    words: list[dict[str, Any]] = [
        {"kind": "output", "run_id": str(UUID(int=1)), "attempt": 1, "data": {"text": f"w{n} "}} for n in range(120)
    ]
    asked: dict[str, Any] = {
        "kind": "message",
        "run_id": None,
        "attempt": None,
        "data": {"body": "Go.", "from": "user", "to": "all"},
    }
    events = [{"event": {"seq": seq, **each, **created}} for seq, each in enumerate([asked, *words], start=1)]
    export = [EXPORT, *events, {"end": {"events": len(events)}}]
    lines = "\n".join(map(json.dumps, export))
    session = (await rota("sessions", "import", "-", stdin=lines)).stdout.strip()
    everything = " ".join(f"w{n}" for n in range(120))
    assert (await rota("sessions", "transcript", session, "--all")).stdout == f"user: Go.\nagent: {everything}\n"
    some = await rota("sessions", "transcript", session, "--limit", "4")
    assert some.stdout == "user: Go.\nagent: w0 w1 w2\n"
    assert some.stderr == "There is more: --limit 8, or --all.\n"
    page = await answer("sessions", "transcript", session, "--limit", "110")
    assert (len(page["items"]), page["items"][1]["text"].split()[-1]) == (2, "w108")
    assert len((await answer("sessions", "events", session, "--limit", "110"))["items"]) == 110


def large_session() -> str:
    """Of a few events, of which two are more than one request carries."""
    large = {"kind": "output", "run_id": None, "attempt": None, "data": {"text": "x" * 600_000}}
    events = [{"event": {"seq": seq, **large, "created_at": "2026-06-01T09:00:00Z"}} for seq in range(1, 6)]
    return "\n".join(map(json.dumps, [EXPORT, *events, {"end": {"events": 5}}]))


async def test_a_session_of_large_events_is_imported_in_as_many_requests_as_it_takes(
    rota: Command, answer: Answer
) -> None:
    session = (await rota("sessions", "import", "-", stdin=large_session())).stdout.strip()
    assert (await answer("sessions", "show", session))["last_seq"] == 5


async def test_as_many_are_shown_as_were_asked_for_also_of_those_of_which_few_make_a_page(
    rota: Command, answer: Answer
) -> None:
    session = (await rota("sessions", "import", "-", stdin=large_session())).stdout.strip()
    page = await answer("sessions", "events", session, "--limit", "4")
    assert [each["seq"] for each in page["items"]] == [1, 2, 3, 4]
    assert page["next_cursor"]


async def test_what_is_named_twice_is_refused_instead_of_half_forgotten(rota: Command, answer: Answer) -> None:
    await poet(rota)
    goal = ("sessions", "goal", "Write.", "--role", "judge=poet", "--role", "judge=worker-bee")
    assert "--role names 'judge' twice, as 'poet' and 'worker-bee'" in (await rota(*goal, code=2)).stderr
    assert (await answer("sessions", "list", "--kind", "background"))["items"] == []
    twice = ("agents", "edit", "poet", "--credential", "KEY=one", "--credential", "KEY=two")
    assert "--credential names 'KEY' twice" in (await rota(*twice, code=2)).stderr


@pytest.mark.usefixtures("worker")
async def test_a_question_is_seen_and_answered(rota: Command, answer: Answer, tmp_path: Path) -> None:
    (tmp_path / "asker.py").write_text("async def go(context):\n    return (await context.ask('Shall I?')).text\n")
    config = json.dumps({"function": "asker:go", "path": str(tmp_path)})
    await rota("agents", "create", "Asker", "--executor", "python", "--config", config)
    run = (await rota("agents", "run", "asker", "Go.")).stdout.strip()

    async def asked() -> Any:
        return (await answer("approvals", "list", "--mine"))["items"]

    [approval] = await until(asked)
    [row] = rows((await rota("approvals", "list")).stdout)[1:]
    assert row[:6] == [approval["id"], "pending", "Shall", "I?", "approve,", "refuse"]
    assert re.match(rf"{AGE} in \d", " ".join(row[6:]))
    await rota("approvals", "answer", approval["id"], "approve", "--text", "Go on.")
    assert ["status", "approved"] in rows((await rota("approvals", "show", approval["id"])).stdout)
    assert (await rota("runs", "follow", run)).stdout == "Go on.\n"
    assert rows((await rota("approvals", "list")).stdout)[1:] == []
    again = await rota("approvals", "answer", approval["id"], "refuse", code=2)
    assert "Local admin" in again.stderr


async def test_workers_are_listed(rota: Command, answer: Answer, office: Office) -> None:
    await poet(rota)
    await haiku(rota)
    run = await answer("automations", "run", "haiku")
    at_work = [{"workspace_id": str(office.caller.workspace_id), "run_id": run["id"], "attempt": 1, "last_line": "Hm."}]
    known: dict[str, Any] = {"host": "h", "pid": 1, "places": 5, "kinds": ["python"], "pools": ["default"]}
    async with office.db.transaction() as conn:
        await workers.beat(conn, WorkerId("h-1-abc"), busy=1, at_work=at_work, **known)
    [worker] = rows((await rota("workers", "list")).stdout)[1:]
    assert worker[:5] == ["h-1-abc", "alive", "1/5", "python", "default"]
    assert re.fullmatch(rf"{AGE} Hm\.", " ".join(worker[5:]))
    async with office.db.transaction() as conn:
        await conn.execute(
            "UPDATE workers SET last_seen_at = last_seen_at - interval '31 seconds' WHERE id = 'h-1-abc'"
        )
    await rota("runs", "follow", run["id"])
    [dead] = rows((await rota("workers", "list")).stdout)[1:]
    assert dead[1:3] == ["dead", "0/5"]
    assert " ".join(dead).endswith(f"{run['id']} succeeded, attempt 1")


async def test_a_list_is_read_page_by_page(rota: Command, answer: Answer) -> None:
    await poet(rota)
    for number in range(5):
        await haiku(rota, "--slug", f"haiku-{number}")
    page = await answer("automations", "list", "--limit", "2")
    assert [each["slug"] for each in page["items"]] == ["haiku-4", "haiku-3"]
    assert page["next_cursor"]
    told = await rota("automations", "list", "--limit", "2")
    assert len(rows(told.stdout)) == 3
    assert told.stderr == "There are more: --limit 4, or --all.\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rota.cli.noun.PAGE", 2)
        everything = await answer("automations", "list", "--all")
    assert [each["slug"] for each in everything["items"]] == [f"haiku-{number}" for number in range(4, -1, -1)]
    assert everything["next_cursor"] is None


async def test_json_is_what_the_api_answers(rota: Command, answer: Answer, office: Office) -> None:
    await poet(rota)
    await haiku(rota)
    api = await office.api()
    for path, words in (("/agents", ["agents", "list"]), ("/automations/haiku", ["automations", "show", "haiku"])):
        assert await answer(*words) == (await api.get(path)).json()


async def test_what_people_type_is_never_obeyed_by_a_terminal(rota: Command, answer: Answer) -> None:
    await rota("agents", "create", "Poet", "--executor", "command", "--config", POET, "--instructions", EVIL)
    told = (await rota("agents", "show", "poet")).stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
    as_json = (await rota("agents", "show", "poet", "--json")).stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", as_json)
    assert json.loads(as_json)["instructions"] == EVIL
    refused = await rota("agents", "edit", "poet", "--set", f"{EVIL}=1", code=2)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", refused.stderr)


REFUSALS = [
    (["agents", "show", " "], "Give an id or a slug."),
    (["agents", "show", ".."], "Give an id or a slug."),
    (["runs", "list", "--automation", ""], "automation: Give at least 1 character."),
    (["agents", "show", "../automations"], "Give an id or a slug."),
    (["triggers", "delete", "morning-digest", "../"], "Give an id or a slug."),
    (["agents", "create", "X", "--config", "{"], "This is no JSON"),
    (["agents", "create", "X", "--executor", "command", "--set", "x"], "--set takes FIELD=VALUE"),
    (["agents", "create", "X", "--executor", "command", "--credential", "x"], "--credential takes NAME=VALUE"),
    (["agents", "create", "X"], "executor: This field is required."),
    (["agents", "edit", "x"], "Say what is to change"),
    (["automations", "edit", "x", "--accept-grant"], "Say what is to change"),
    (["triggers", "edit", "x", str(uuid4())], "Say what is to change"),
    (["credentials", "edit", "x"], "Say what is to change"),
    (["automatoins", "list"], "No such command 'automatoins'. Did you mean 'automations'?"),
    (["sessions", "follow", str(uuid4()), "--after", "-5"], "-5 is not in the range x>=0"),
    (["agents", "create", "X", "--executor", "command", "--set", "a=1", "--set", "b=2"], "2 fields are wrong."),
    (
        ["agents", "create", "X", "--executor", "command", "--config", '{"argv": "x"}'],
        "rota: config.argv: must be a list",
    ),
    (
        ["agents", "create", "X", "--executor", "python", "--config", '{"function": "x"}'],
        "rota: config.function: must look like module:function",
    ),
    (["runs", "show", str(uuid4())], "There is no such run."),
    (["runs", "show", "haiku"], "run_id: Give an id such as 01a1e0db-"),
    (["runs", "list", "--owner", "nope"], "There is no member 'nope'."),
    (["runs", "list", "--automation", "nope"], "There is no such automation."),
    (["agents", "list", "--token", "rota_nobody"], "unknown, revoked or expired"),
    (["agents", "list", "--workspace", "elsewhere"], "rota: "),
    (["agents", "list", "--url", "nonsense"], "is no address of Rota"),
]


async def test_lists_are_limited_to_ones_own(rota: Command, answer: Answer) -> None:
    await poet(rota)
    await haiku(rota, "--run-now")
    for noun in ("automations", "runs", "sessions"):
        assert (
            len((await answer(noun, "list", "--owner", "me"))["items"])
            == len((await answer(noun, "list"))["items"])
            == 1
        )
    assert len(rows((await rota("runs", "list", "--owner", "me")).stdout)) == 2


async def test_a_refusal_says_what_was_wrong(rota: Command) -> None:
    for words, told in REFUSALS:
        refused = await rota(*words, code=2)
        assert told in refused.stderr
        assert "Traceback" not in refused.output


async def test_what_is_no_text_or_no_time_is_refused_in_words(rota: Command) -> None:
    for words in (("credentials", "create", "latin"), ("events", "post", "x", "-"), ("apply", "--yes", "-f", "-")):
        refused = await rota(*words, stdin=b"caf\xe9", code=2)
        assert "not UTF-8" in refused.stderr
    refused = await rota("tokens", "create", "For good", "--lasts", "", code=2)
    assert "--lasts" in refused.stderr


async def test_without_a_token_or_a_server_it_says_so_soon(rota: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.cli.noun.PATIENCE", 0.0)
    assert "Nobody answers at" in (await rota("runs", "list", "--url", "http://127.0.0.1:9", code=2)).stderr
    monkeypatch.delenv("ROTA_TOKEN")
    assert "rota tokens create NAME" in (await rota("runs", "list", code=2)).stderr


async def test_where_nothing_listens_it_says_so_before_its_patience_ends(
    rota: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ROTA_URL")
    monkeypatch.setenv("ROTA_HOME", str(tmp_path))
    monkeypatch.setattr("rota.cli.noun.PATIENCE", 90.0)
    monkeypatch.setattr("rota.cli.noun.CONNECT_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("ROTA_PORT", str(port))
    async with asyncio.timeout(60):
        refused = await rota("runs", "list", code=2)
    assert f"Nobody answers at http://127.0.0.1:{port}" in refused.stderr
    for wrong in ("http", "70000", "-1", "²"):
        monkeypatch.setenv("ROTA_PORT", wrong)
        assert "ROTA_PORT must be a port" in (await rota("runs", "list", code=2)).stderr


@pytest.mark.usefixtures("worker")
async def test_a_goal_is_given_to_several_agents_and_their_tasks_are_told(rota: Command, answer: Answer) -> None:
    await poet(rota)
    tasks = [
        {"key": "first", "role": "poet", "prompt": "autumn"},
        {"key": "answer", "role": "friend", "prompt": "winter", "depends_on": ["first"]},
    ]
    seats = ("--role", "poet=poet", "--role", "friend=poet")
    given = await rota("sessions", "goal", "Two haikus", *seats, "--tasks", "-", "--draft", stdin=json.dumps(tasks))
    session = given.stdout.strip()
    told = rows((await rota("sessions", "tasks", session)).stdout)
    assert told[0] == ["KEY", "ROLE", "STATUS", "AFTER", "OUTCOME"]
    assert told[1:] == [["first", "poet", "pending", "-", "-"], ["answer", "friend", "pending", "first", "-"]]
    await rota("sessions", "enable", session)

    async def done() -> bool:
        return bool((await answer("sessions", "show", session))["status"] == "done")

    await until(done, within=30)
    assert rows((await rota("sessions", "tasks", session)).stdout)[2] == ["answer", "friend", "done", "first", "five"]
    assert "--role takes NAME=VALUE" in (await rota("sessions", "goal", "x", "--role", "poet", code=2)).stderr


async def test_a_rota_that_is_up_on_this_machine_is_found_by_itself(
    rota: Command, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rota.cli.noun.PATIENCE", 0.0)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path))
    monkeypatch.delenv("ROTA_URL")
    (tmp_path / "up.lock").write_text(json.dumps({"url": address, "pid": os.getpid()}))
    assert (await rota("agents", "list")).stdout.startswith("SLUG")
    for told in ('{"url": "http://127.0.0.1:9", "pid": 0}', "", "[]"):  # stopped, starting, broken
        (tmp_path / "up.lock").write_text(told.replace('"pid": 0', f'"pid": {2**22 + 1}'))
        assert "http://127.0.0.1:9/" not in (await rota("agents", "list", "--token", "none", code=2)).stderr
