"""docs/agents against the real thing: the examples are saved, run and watched; the tables are complete."""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rota.agent import Context
from rota.executors.briefing import as_json
from rota.executors.command import CommandExecutor
from rota.executors.events import EVENTS, parse
from rota.executors.http import EVENT_STREAMS, TOLD, HttpExecutor
from rota.executors.llm import LlmExecutor
from rota.executors.python import PythonExecutor
from rota.http.shapes.agents import AgentIn
from rota.model.acp_presets import PRESETS
from rota.model.agent_config import (
    DESK_TOOLS,
    EXTRAS,
    KINDS,
    AcpConfig,
    CommandConfig,
    HttpConfig,
    LanggraphConfig,
    Limits,
    LlmConfig,
    PythonConfig,
    Stdin,
)
from rota.model.executor import Turn
from rota.model.outcome import ErrorClass, Failed, Succeeded
from rota.worker.worker import Worker
from support.doc_pages import AGENTS, KIND_PAGES, Block, blocks, column, spans, table, text_of
from support.doc_requests import Api
from support.openai_server import Provider, calls, says
from support.stand_ins import RecordingDesk, assignment
from support.waiting import until

FROM_CONFIG = "what `config.env` says"
COMMAND, PYTHON, HTTP, ACP, LLM, LANGGRAPH = (
    KIND_PAGES[kind] for kind in ("command", "python", "http", "acp", "llm", "langgraph")
)


def examples() -> list[Block]:
    """What the pages send to the API, in their order."""
    return [block for page in (AGENTS, *KIND_PAGES.values()) for block in blocks(page, "json")]


# ── The examples ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_json_example_is_accepted_without_a_warning(api: Api) -> None:
    for block in examples():
        method, path = block.purpose.split()
        answer = await api.ask(method, path, json.loads(block.text))
        assert not answer.get("warnings"), answer["warnings"]


@pytest.fixture
def opt(tmp_path: Path) -> Path:
    """`/opt/agents` as the page describes it."""
    place = tmp_path / "opt"
    place.mkdir()
    [script] = blocks(COMMAND, "sh")
    [module] = [each for each in blocks(PYTHON, "python") if "@agent" in each.text]
    [tidy], [graph] = blocks(ACP, "python"), blocks(LANGGRAPH, "python")
    (place / "putting_away.py").write_text(graph.text)
    (place / "tidy.py").write_text(tidy.text)
    (place / "archive.sh").write_text(script.text)
    (place / "whats_new.py").write_text(module.text)
    return place


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """`/srv/letters`, with two in it."""
    folder = tmp_path / "letters"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(name)
    return folder


async def save(api: Api, slug: str, opt: Path, letters: Path) -> dict[str, Any]:
    """Save an example's agent and its automation, in the places of this test."""
    for block in examples():
        body = block.text.replace("/opt/agents", str(opt)).replace("/srv/letters", str(letters))
        body = body.replace("python3", sys.executable)
        if block.purpose in {"POST /agents", "POST /automations"} and slug in _slugs(body):
            method, path = block.purpose.split()
            saved: dict[str, Any] = await api.ask(method, path, json.loads(body))
    return saved


def _slugs(body: str) -> set[str]:
    values = json.loads(body)
    return {values.get("agent", ""), values["name"].lower().replace(" ", "-")}


async def test_the_shell_example_archives_a_directory(api: Api, worker: Worker, opt: Path, letters: Path) -> None:
    automation = await save(api, "archive", opt, letters)
    run = await api.ended((await api.ask("POST", f"/automations/{automation['id']}/run"))["id"])
    [archive] = (opt.parent / "home").rglob("*.tar.gz")
    size = archive.stat().st_size
    assert (run["status"], run["summary"], run["usage"]) == ("succeeded", f"Archived {size} bytes", {"bytes": size})
    assert archive.name == f"{run['id']}.tar.gz"
    assert await api.said(run) == f"Archiving {letters}\n"


async def test_the_shell_example_finds_what_an_earlier_attempt_finished(opt: Path, letters: Path) -> None:
    config = {"argv": ["sh", str(opt / "archive.sh")]}
    for said in (f"Archiving {letters}\n", ""):
        desk = RecordingDesk()
        given = assignment(config, opt.parent / "session", prompt=str(letters))
        assert isinstance(await CommandExecutor().execute(given, desk), Succeeded)
        assert desk.text == said


async def test_the_shell_example_gives_up_on_what_is_no_directory(opt: Path) -> None:
    given = assignment({"argv": ["sh", str(opt / "archive.sh")]}, opt.parent / "session", prompt="/nowhere at all")
    outcome = await CommandExecutor().execute(given, RecordingDesk())
    assert outcome == Failed(ErrorClass.AGENT_ERROR, "The prompt is not the path of a directory", retryable=False)


async def test_the_python_example_tells_only_what_is_new(api: Api, worker: Worker, opt: Path, letters: Path) -> None:
    automation = await save(api, "what-is-new", opt, letters)
    address = f"/automations/{automation['id']}/run"
    first = await api.ended((await api.ask("POST", address))["id"])
    (letters / "c.txt").write_text("c")
    second = await api.ended((await api.ask("POST", address))["id"])
    assert (first["summary"], first["usage"]) == ("2 of 2 files are new.", {"files": 2})
    assert await api.said(first) == "- a.txt\n- b.txt\n2 of 2 files are new."
    assert await api.said(second) == "- c.txt\n1 of 3 files are new."
    assert first["session_id"] == second["session_id"]


@pytest.mark.parametrize(("folder", "said"), [("/nowhere", "There is no folder /nowhere."), ("/", "too much")])
async def test_the_python_example_gives_up_or_refuses(opt: Path, folder: str, said: str) -> None:
    config = {"function": "whats_new:whats_new", "path": str(opt)}
    given = assignment(config, opt.parent / "session", input={"folder": folder})
    outcome = await PythonExecutor().execute(given, RecordingDesk())
    assert isinstance(outcome, Failed)
    assert said in outcome.detail
    assert not outcome.retryable


@pytest.mark.parametrize(("answer", "left"), [("delete", ["b.txt"]), ("keep", ["a.tmp", "b.txt"])])
async def test_the_acp_example_asks_before_it_deletes(
    api: Api, worker: Worker, opt: Path, letters: Path, answer: str, left: list[str]
) -> None:
    (letters / "a.txt").rename(letters / "a.tmp")
    automation = await save(api, "tidy", opt, letters)
    run = await api.ask("POST", f"/automations/{automation['id']}/run")

    async def asked() -> Any:
        return (await api.ask("GET", "/approvals?status=pending"))["items"]

    [approval] = await until(asked, within=30)
    assert (approval["question"], approval["detail"]["tool"]) == ("Allow “Delete 1 files”?", "delete")
    await api.ask("POST", f"/approvals/{approval['id']}", {"answer": answer})
    run = await api.ended(run["id"])
    told = (run["status"], run["summary"], run["attempt"])
    assert told == ("succeeded", f"{answer.capitalize()}: 1 files.", 1), "it waited in its process"
    assert sorted(os.listdir(letters)) == left


async def test_a_context_made_by_hand_prints_what_would_be_sent(opt: Path, letters: Path) -> None:
    [block] = [each for each in blocks(PYTHON, "python") if "Context(" in each.text]
    tried = await asyncio.create_subprocess_exec(
        sys.executable, "-c", block.text.replace("/srv/letters", str(letters)), cwd=opt, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(tried.communicate(), 20)
    assert output.decode().splitlines()[-1] == "2 of 2 files are new."


@pytest.fixture
async def answering(api: Api, worker: Worker, opt: Path, letters: Path) -> AsyncIterator[tuple[Provider, str]]:
    """The model's example, whose provider is in this process; and the id of its automation."""
    [tools] = [each for each in blocks(LLM, "python") if "answer_letter" in each.text]
    (opt / "letters.py").write_text(tools.text.replace("/srv/letters", str(letters)))
    [secret] = [each for each in blocks(LLM, "json") if each.purpose == "POST /credentials"]
    await api.ask("POST", "/credentials", json.loads(secret.text))
    automation = await save(api, "letters", opt, letters)
    with Provider() as provider:
        config = (await api.ask("GET", "/agents/letters"))["config"]
        await api.ask("PATCH", "/agents/letters", {"config": {**config, "base_url": provider.url}})
        yield provider, automation["id"]


async def test_the_model_of_the_example_answers_a_letter_once_somebody_agreed(
    api: Api, answering: tuple[Provider, str], letters: Path
) -> None:
    provider, automation_id = answering
    provider.answers += [
        calls(("read_letters", {}), usage=(300, 20)),
        calls(("answer_letter", {"letter": "a.txt", "text": "Thank you."}), usage=(400, 30)),
        says("Answered one letter.", usage=(500, 10)),
    ]
    run_id = (await api.ask("POST", f"/automations/{automation_id}/run"))["id"]

    async def asked() -> Any:
        return (await api.ask("GET", "/approvals?status=pending"))["items"]

    [question] = await until(asked, within=30)
    assert question["detail"]["tool"] == "answer_letter"
    assert not (letters / "answers").exists()
    await api.ask("POST", f"/approvals/{question['id']}", {"answer": "approve"})
    run = await api.ended(run_id)
    assert (run["status"], run["summary"], run["usage"]["tokens"]) == ("succeeded", "Answered one letter.", 1260)
    assert run["usage"]["money"] > 0
    assert (letters / "answers" / f"{run_id}-a.txt").read_text() == "Thank you."
    assert await api.said(run) == "Answered one letter."


async def test_a_model_is_stopped_within_one_answer_of_its_budget_and_the_ledger_is_exact(
    api: Api, answering: tuple[Provider, str]
) -> None:
    provider, automation_id = answering
    provider.answers += [
        calls(("read_letters", {}), usage=(900, 50)),
        calls(("read_letters", {}), usage=(1000, 100)),
        says("Never asked."),
    ]
    run = await api.ended((await api.ask("POST", f"/automations/{automation_id}/run"))["id"])
    assert (run["status"], run["error_class"], run["attempt"]) == ("failed", "budget_exceeded", 1)
    assert run["usage"]["tokens"] == 2050
    assert len(provider.asked) == 2


async def test_a_model_may_be_a_function(opt: Path) -> None:
    [block] = [each for each in blocks(LLM, "python") if "DeltaToolCall" in each.text]
    (opt / "trying.py").write_text(block.text)
    config = {"model": "function:trying:model", "path": str(opt)}
    session = opt.parent / "session"
    session.mkdir()
    (session / "a.txt").touch()
    outcome = await LlmExecutor().execute(assignment(config, session), RecordingDesk())
    assert outcome == Succeeded("There are 1 files.")


@pytest.mark.parametrize(
    ("answer", "said", "left"),
    [
        ("approve", "1 letters were put away.", ["answers", "archive", "b.txt"]),
        ("refuse", "Nothing was put away: refused", ["a.txt", "answers", "b.txt"]),
    ],
)
async def test_the_graph_of_the_example_asks_before_it_puts_letters_away(
    api: Api, worker: Worker, opt: Path, letters: Path, answer: str, said: str, left: list[str]
) -> None:
    (letters / "answers").mkdir()
    (letters / "answers" / "a.txt").touch()
    automation = await save(api, "putting-away", opt, letters)
    run = await api.ask("POST", f"/automations/{automation['id']}/run")

    async def asked() -> Any:
        return (await api.ask("GET", "/approvals?status=pending"))["items"]

    [approval] = await until(asked, within=30)
    assert approval["question"] == "Put 1 letters away?"
    assert approval["detail"] == {"tool": "put_away", "letters": ["a.txt"]}
    await api.ask("POST", f"/approvals/{approval['id']}", {"answer": answer})
    run = await api.ended(run["id"])
    assert (run["status"], run["summary"]) == ("succeeded", said)
    assert sorted(os.listdir(letters)) == left


async def test_the_service_of_the_example_counts_words(tmp_path: Path) -> None:
    """At a port of its own, since 8700 may be somebody's."""
    [service] = blocks(HTTP, "python")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    program = service.text.replace("8700", str(port))
    serving = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=asyncio.subprocess.DEVNULL)
    try:
        desk, executor = RecordingDesk(), HttpExecutor(allow=[f"127.0.0.1:{port}"])
        given = assignment({"url": f"http://127.0.0.1:{port}/"}, tmp_path, prompt="An apple a day")

        async def answered() -> Any:
            outcome = await executor.execute(given, desk)
            return outcome if isinstance(outcome, Succeeded) else None

        assert await until(answered, within=30) == Succeeded("4 words")
        assert desk.text == "1. An\n2. apple\n3. a\n4. day\n"
        assert desk.events == [("usage", "words", 4)]
    finally:
        serving.kill()
        await serving.wait()


# ── What an agent is given ───────────────────────────────────────────────────────────────────────────────────────


async def test_an_agent_has_the_environment_that_is_documented_and_no_more(
    api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LC_ALL", "TZ", "TMPDIR", "ROTA_DATABASE_URL", "SOMETHING_ELSE"):
        monkeypatch.setenv(name, "/tmp" if name == "TMPDIR" else "C")
    await api.ask("POST", "/agents", {"name": "Env", "executor": "command", "config": {"argv": ["env"]}})
    run = await api.ended((await api.ask("POST", "/agents/env/runs", {"prompt": "x"}))["id"])
    given = dict(line.split("=", 1) for line in (await api.said(run)).splitlines())
    assert given.keys() == column(AGENTS, "variable") - set(spans(FROM_CONFIG))
    assert given["TRACEPARENT"].split("-")[1] == run["trace_id"]


async def test_an_agents_token_reads_its_own_and_nothing_else(api: Api, worker: Worker, served: str) -> None:
    """As the page says, with the workspace's id in the address."""
    script = """
        import json, os, urllib.error, urllib.request
        def ask(path, body=None):
            url = f"{os.environ['SERVED']}/api/v1/workspaces/{os.environ['ROTA_WORKSPACE']}{path}"
            headers = {"Authorization": "Bearer " + os.environ["ROTA_TOKEN"], "Content-Type": "application/json"}
            try:
                return urllib.request.urlopen(urllib.request.Request(url, body, headers)).status
            except urllib.error.HTTPError as refused:
                return refused.code
        own = ask("/runs?session=" + os.environ["ROTA_SESSION_ID"])
        print(own, ask("/runs?limit=10"), ask("/events", b'{"event": "a"}'))
    """
    lines = [line.removeprefix("        ") for line in script.splitlines()]
    config = {"argv": [sys.executable, "-c", "\n".join(lines)], "env": {"SERVED": served}}
    await api.ask("POST", "/agents", {"name": "Reader", "executor": "command", "config": config})
    run = await api.ended((await api.ask("POST", "/agents/reader/runs", {"prompt": "x"}))["id"])
    assert await api.said(run) == "200 403 403\n"
    wide = {"prompt": "x", "scopes": ["workspace:read"]}
    run = await api.ended((await api.ask("POST", "/agents/reader/runs", wide))["id"])
    assert await api.said(run) == "200 200 403\n"


# ── Complete, and nothing stale ──────────────────────────────────────────────────────────────────────────────────


def test_every_kind_has_its_page_and_its_line_in_the_index() -> None:
    assert set(KIND_PAGES) == set(KINDS)
    assert column(AGENTS, "kind") == set(KINDS)
    needs = {spans(row[0])[0]: spans(row[2])[:1] for row in table(AGENTS, "kind")}
    assert {kind: needed for kind, needed in needs.items() if needed} == {kind: [f"rota[{kind}]"] for kind in EXTRAS}
    for kind, page in KIND_PAGES.items():
        assert text_of(page).splitlines()[0].endswith(f": the kind `{kind}`")
        assert "## Example" in text_of(page)


def test_every_field_of_an_agent_is_documented() -> None:
    assert column(AGENTS, "field of an agent") == set(AgentIn.model_fields)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("command", {each.name for each in fields(CommandConfig)} | {"command"}),
        ("python", {each.name for each in fields(PythonConfig)}),
        ("acp", {each.name for each in fields(AcpConfig)} | {"command"}),
        ("http", {each.name for each in fields(HttpConfig)} - {"target"} | {"url"}),
        ("llm", {each.name for each in fields(LlmConfig)}),
        ("langgraph", {each.name for each in fields(LanggraphConfig)}),
    ],
)
def test_every_key_of_a_configuration_is_documented(kind: str, keys: set[str]) -> None:
    rows = table(KIND_PAGES[kind], "key of `config`")
    assert {spans(row[0])[0] for row in rows} == keys


def test_every_preset_is_documented_as_it_is_run() -> None:
    rows = {
        spans(name)[0]: (spans(runs)[0], installed.strip("`"), spans(key))
        for name, runs, installed, key in table(ACP, "preset")
    }
    assert rows == {
        name: (" ".join(preset.argv), preset.install.removeprefix("see "), list(preset.keys))
        for name, preset in PRESETS.items()
    }


def test_every_tool_of_a_model_is_documented() -> None:
    assert column(LLM, "tool") == set(DESK_TOOLS)


def test_every_limit_is_documented() -> None:
    assert column(AGENTS, "key of `limits`") == {each.name for each in fields(Limits)}


def test_every_stdin_mode_is_documented() -> None:
    assert column(COMMAND, "`stdin`") == set(Stdin)


def test_every_event_is_documented_by_one_that_counts() -> None:
    events: list[Mapping[str, Any] | None] = [parse(spans(row[0])[0].encode()) for row in table(COMMAND, "event")]
    assert {event["type"] for event in events if event} == set(EVENTS)
    assert len(events) == len(EVENTS)


def test_every_attribute_and_method_of_the_context_is_documented() -> None:
    assert column(PYTHON, "attribute of `Context`") == {name for name in vars(Context()) if not name.startswith("_")}
    methods = {name.partition("(")[0] for name in column(PYTHON, "method")}
    assert methods == {name for name in vars(Context) if not name.startswith("_")}


def test_a_turn_has_what_is_documented() -> None:
    assert {each.name for each in fields(Turn)} == {"speaker", "text"}
    assert '`{"speaker", "text"}`' in text_of(COMMAND)


@pytest.mark.parametrize(
    ("page", "begins", "names"),
    [
        (COMMAND, "The object has", set(as_json(assignment({}, Path("/")))) | {"transcript"}),
        (HTTP, "The body has", set(TOLD)),
    ],
    ids=["command", "http"],
)
def test_everything_that_is_told_as_json_is_documented(page: Path, begins: str, names: set[str]) -> None:
    [told] = re.findall(rf"^{begins} (.*?)\.", text_of(page), re.MULTILINE | re.DOTALL)
    assert {name for name in spans(told) if name.isidentifier()} == names


def test_every_stream_of_events_is_documented() -> None:
    told = {name for row in table(HTTP, "the answer") for name in spans(row[0])}
    assert told == set(EVENT_STREAMS)
