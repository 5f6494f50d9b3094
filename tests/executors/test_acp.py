"""Agents of the Agent Client Protocol: real ones, in processes, over real pipes."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from rota.errors import Invalid, NotFound
from rota.executors.acp import AcpExecutor, child
from rota.executors.acp.files import Files
from rota.executors.acp.opening import Bookmark, bookmark, digest
from rota.executors.acp.story import Story
from rota.executors.acp.terminals import Terminals
from rota.executors.briefing import prepare_directory
from rota.executors.process import Spec
from rota.executors.sandbox import UNCONFINED
from rota.executors.transcript import Transcript
from rota.model.agent_config import Limits, read_acp
from rota.model.approval import Answer, Option, Question, pre_approved
from rota.model.executor import Assignment, Desk, Turn
from rota.model.ids import ApprovalId, RunId, UserId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Parked, Succeeded
from rota.model.text import clean_json
from support.acp_agent import LIMITED, config, recalled
from support.stand_ins import RecordingDesk, is_alive, read_pids, until

AT_ONCE = {"park_after": "0s"}
OPTIONS = [Option("yes", "Yes", True), Option("always", "Always", True), Option("no", "No", False)]


def said(option: str, text: str | None = None) -> Answer:
    return Answer(ApprovalId(new_id()), option, option != "no", text, UserId(new_id()))


@pytest.fixture
def run(desk: RecordingDesk, assign: Callable[..., Assignment]) -> Any:
    async def executed(how: str, *like: str, config_: dict[str, Any] | None = None, **given: Any) -> Outcome:
        return await turn(assign(config(how, *like, **(config_ or {})), **given), desk)

    return executed


async def turn(assigned: Assignment, desk: RecordingDesk) -> Outcome:
    """As the child carries it out, but here: that there is one is shown by the tests of all kinds."""
    prepare_directory(assigned, UNCONFINED)
    brief = AcpExecutor(grace=timedelta(seconds=2))._brief(assigned, read_acp(assigned.config))
    return await child.work(json.loads(json.dumps(brief)), cast("Desk", desk))


def last_checkpoint(desk: RecordingDesk) -> bytes:
    kept: bytes = [call[1] for call in desk.calls if call[0] == "checkpoint"][-1]
    return kept


def tools(desk: RecordingDesk) -> list[tuple[Any, ...]]:
    return [call[1:] for call in desk.calls if call[0] == "tool"]


def done(directory: Path) -> list[str]:
    return (directory / "done.txt").read_text().split("\n")[:-1]


async def test_all_that_an_agent_tells_stands_in_the_log(run: Any, desk: RecordingDesk) -> None:
    """Words as they come; a thought when it is whole; a tool when it begins and ends; a plan when it changes."""
    assert await run("chats") == Succeeded()
    assert desk.text == "[a line that is no message]\nLooking\nA poem."
    assert tools(desk) == [
        ("thought", {"text": "Let me look."}),
        ("search", {"title": "Find rhymes", "status": "in_progress", "input": {"query": "rhymes"}}),
        (
            "search",
            {
                "title": "Find all rhymes",
                "status": "completed",
                "input": {"query": "rhymes"},
                "output": {"found": 2},
            },
        ),
        ("plan", {"steps": [{"step": "Write", "status": "pending"}]}),
        ("plan", {"steps": [{"step": "Write", "status": "completed"}]}),
    ]
    charged = [call[1:] for call in desk.calls if call[0] == "usage"]
    assert charged == [("money", 0.1), ("money", 0.2), ("tokens", 12)]


async def test_a_conversation_begins_with_instructions_and_what_was_said_before(run: Any, desk: RecordingDesk) -> None:
    before = [Turn("user", "Hello?"), Turn("agent", "Hello!")]
    await run("echoes", instructions="Be brief.", transcript=before, prompt="Go.", input={"a": 1})
    assert desk.text == (
        "Be brief.\n\nWhat was said before in this session:\nuser: Hello?\nagent: Hello!\n\nGo.\n\n"
        'Input:\n{\n  "a": 1\n}'
    )


@pytest.mark.parametrize(
    ("reason", "retryable"),
    [("max_tokens", True), ("max_turn_requests", True), ("refusal", False), ("cancelled", True)],
)
async def test_a_turn_that_stops_otherwise_has_failed(run: Any, reason: str, retryable: bool) -> None:
    outcome = await run(reason)
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.AGENT_ERROR, retryable)
    assert reason in LIMITED


async def test_the_next_run_of_a_session_goes_on_with_the_conversation(run: Any, desk: RecordingDesk) -> None:
    await run("echoes", instructions="Be brief.", prompt="One.")
    kept = last_checkpoint(desk)
    await run("echoes", instructions="Be brief.", prompt="Two.", checkpoint=kept, transcript=[Turn("user", "One.")])
    assert desk.text == "Be brief.\n\nOne.Two."  # neither the history, which it repeats, nor what it was told before
    [(name, told)] = tools(desk)
    assert (name, told["resumed"], told["why"]) == ("resume", True, "next run")
    await run("echoes", instructions="Be long.", prompt="Three.", checkpoint=last_checkpoint(desk))
    assert desk.text.endswith("Two.Be long.\n\nThree.")


async def test_a_second_attempt_goes_on_where_the_first_was_stopped(
    run: Any, desk: RecordingDesk, directory: Path
) -> None:
    run_id = RunId(new_id())
    first = asyncio.create_task(run("steps", run_id=run_id))
    await until(lambda: read_pids(directory), "it has done the first step")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await run("steps", run_id=run_id, attempt=2, checkpoint=last_checkpoint(desk)) == Succeeded()
    assert done(directory) == ["one", "two"]
    assert desk.text == "Did one.Did two."
    [(name, told)] = tools(desk)
    assert (name, told["resumed"], told["why"]) == ("resume", True, "interrupted")


async def test_a_lost_conversation_begins_anew_and_the_trace_says_so(run: Any, desk: RecordingDesk) -> None:
    run_id = RunId(new_id())
    lost = Bookmark("gone", str(run_id), digest("")).encoded()
    assert await run("echoes", run_id=run_id, attempt=2, checkpoint=lost, prompt="Go.") == Succeeded()
    [(name, told)] = tools(desk)
    assert (name, told["resumed"]) == ("resume", False)
    assert "not found" in told["why"]
    assert "before you do anything again.\n\nGo." in desk.text
    assert bookmark(last_checkpoint(desk)) != bookmark(lost)


async def test_an_answer_in_time_goes_to_the_process_that_waits_for_it(
    run: Any, desk: RecordingDesk, directory: Path
) -> None:
    """So the agent is never told that its permission request was cancelled."""
    run_id = RunId(new_id())
    running = asyncio.create_task(run("pushes", run_id=run_id))
    await until(lambda: desk.asked, "it has asked")
    assert (bookmark(last_checkpoint(desk)) or Bookmark("", "", "")).asked == "Allow “git push”?"
    desk.answers.put_nowait(said("yes"))
    assert await running == Succeeded()
    assert done(directory) == ["one", "push yes"]
    assert [call[0] for call in desk.asked] == ["ask"]
    kept = bookmark(last_checkpoint(desk))
    assert kept is not None
    assert (kept.asked, list(kept.answered.values())) == (None, [1])
    told = recalled(str(directory / kept.session))
    assert not any("permission" in each for each in told)


async def test_a_process_that_has_waited_long_enough_is_parked_with_the_question_it_waited_for(
    run: Any, desk: RecordingDesk, directory: Path
) -> None:
    assert isinstance(await run("pushes", config_={"park_after": "0.2s"}), Parked)
    waited, parked = desk.asked
    assert (waited[0], parked[0]) == ("ask", "park")
    assert waited[1:] == parked[1:]
    assert done(directory) == ["one"]


async def test_an_answer_at_the_moment_of_parking_goes_to_the_process(
    run: Any, desk: RecordingDesk, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    park = desk.park

    async def answered_meanwhile(question: str, **about: Any) -> Answer | Parked:
        desk.answers.put_nowait(said("no"))
        return await park(question, **about)

    monkeypatch.setattr(desk, "park", answered_meanwhile)
    assert await run("pushes", config_={"park_after": "0.2s"}) == Succeeded()
    assert done(directory) == ["one", "push no"]


async def test_permission_is_asked_with_the_agents_own_options_and_the_process_need_not_wait(
    run: Any, desk: RecordingDesk, directory: Path
) -> None:
    run_id = RunId(new_id())
    assert isinstance(await run("pushes", run_id=run_id, config_=AT_ONCE), Parked)
    [asked] = [call for call in desk.calls if call[0] == "park"]
    assert asked[1] == "Allow “git push”?"
    assert asked[2]["options"] == OPTIONS
    assert asked[2]["detail"] == {
        "tool": "execute", "kind": "execute", "title": "git push", "input": {"command": "git push"},
    }  # fmt: skip
    assert asked[2]["key"].startswith("execute:git push#")
    assert done(directory) == ["one"]
    kept = last_checkpoint(desk)
    assert desk.calls.index(("checkpoint", kept)) < desk.calls.index(asked)  # so the answer is newer
    answer = said("yes", "But gently.")
    desk.answers.put_nowait(answer)
    assert await run("pushes", run_id=run_id, attempt=2, checkpoint=kept, answer=answer, config_=AT_ONCE) == Succeeded()
    assert done(directory) == ["one", "push yes"]
    again = [call for call in desk.calls if call[0] == "park"][1]
    assert again[1:] == asked[1:]  # the same question, which has its answer
    told = recalled(str(directory / (bookmark(kept) or Bookmark("", "", "")).session))
    assert any("You had asked for permission" in each and "But gently." in each for each in told)


async def test_a_pre_approval_names_the_tool_or_just_this_use_of_it(run: Any, desk: RecordingDesk) -> None:
    await run("pushes", config_=AT_ONCE)
    [(_, text, about)] = [call for call in desk.calls if call[0] == "park"]
    question = Question(text, **about)
    covering = [
        pattern
        for pattern in ("execute", "execute:git push", "execute:git*", "execute:git", "push")
        if pre_approved([pattern], question)
    ]
    assert covering == ["execute", "execute:git push", "execute:git*"]


async def test_what_was_allowed_once_is_asked_again_the_next_time(
    run: Any, desk: RecordingDesk, directory: Path
) -> None:
    for option in ("yes", "no"):
        desk.answers.put_nowait(said(option))
    assert await run("pushes", "twice") == Succeeded()
    assert done(directory) == ["one", "push yes", "push no"]
    first, second = [call[2]["key"] for call in desk.calls if call[0] == "ask"]
    assert (first[-2:], second[-2:]) == (".1", ".2")


async def test_an_agent_that_forgets_waits_in_its_process(run: Any, desk: RecordingDesk, directory: Path) -> None:
    running = asyncio.create_task(run("pushes", "forgets"))
    await until(lambda: desk.asked, "it has asked")
    desk.answers.put_nowait(said("no"))
    assert await running == Succeeded()
    assert [call[0] for call in desk.events] == ["ask", "usage"]
    assert done(directory) == ["one", "push no"]


@pytest.mark.parametrize(
    ("how", "like"), [("waits", ["forgets"]), ("asks_and_waits", ["forgets"]), ("asks_and_waits", [])]
)
async def test_a_cancelled_turn_is_cancelled_in_the_protocols_own_way_first(
    run: Any, directory: Path, desk: RecordingDesk, how: str, like: list[str]
) -> None:
    running = asyncio.create_task(run(how, *like))
    [pid] = await until(lambda: read_pids(directory), "it waits")
    if how == "asks_and_waits":
        await until(lambda: desk.asked, "it has asked")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(pid)
    if how == "waits":
        assert done(directory) == ["cancel"]
    else:
        assert desk.text == "Answered: None."


def with_ways_out(directory: Path) -> Path:
    """What must not be reached, beside a directory with links to it."""
    directory.mkdir()
    secret = directory.with_name("secret")
    secret.write_text("x")
    (directory / "link").symlink_to(secret)
    (directory / "out").symlink_to(directory.parent)
    return secret


async def test_files_are_those_of_the_session_and_no_others(run: Any, desk: RecordingDesk, directory: Path) -> None:
    secret = with_ways_out(directory)
    inside = [str(directory / "new" / "deep.txt"), "plain.txt"]
    outside = [str(secret), "../secret", str(directory / ".." / "secret"), "link", "out/secret", "/etc/hostname", "new"]
    assert await run("opens_files", prompt=json.dumps(inside + outside)) == Succeeded()
    told = desk.text.splitlines()
    assert told[:2] == ["'b\\n'"] * 2
    assert len(told) == len(inside + outside)
    assert "'b\\n'" not in told[2:]
    assert secret.read_text() == "x"


async def test_programs_in_terminals_begin_in_the_directory_and_end_with_the_agent(
    run: Any, desk: RecordingDesk, directory: Path
) -> None:
    assert await run("runs_programs") == Succeeded()
    assert desk.text == f"3 blue {directory}\n"
    assert [pid for pid in read_pids(directory) or [os.getpid()] if is_alive(pid)] == []


async def test_servers_and_mode_are_passed_through_with_credentials_filled_in(run: Any, desk: RecordingDesk) -> None:
    servers = [{"name": "notes", "command": "notes-mcp", "args": ["-v"], "env": {"KEY": "${NOTES_KEY}"}}]
    given = {"mcp_servers": servers, "mode": "careful"}
    assert await run("tells_what_it_was_given", config_=given, environment={"NOTES_KEY": "k"}) == Succeeded()
    told = json.loads(desk.text)
    env = [{"name": "KEY", "value": "k"}]
    assert told == {
        "servers": [{"name": "notes", "command": "notes-mcp", "args": ["-v"], "env": env}],
        "mode": "careful",
    }


async def test_a_server_that_the_agent_cannot_reach_is_named(run: Any) -> None:
    outcome = await run("echoes", config_={"mcp_servers": [{"name": "web", "url": "https://example.com/mcp"}]})
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
    assert "'web'" in outcome.detail


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a program on the path that is called like an agent of a preset and behaves like it."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def made(program: str, *like: str) -> None:
        words = " ".join(shlex.quote(word) for word in config("echoes", *like)["argv"])
        (tmp_path / program).write_text(f"#!/bin/sh\nexec {words}\n")
        (tmp_path / program).chmod(0o755)

    return made


@pytest.mark.parametrize(
    ("preset", "program", "like", "key"),
    [
        ("gemini", "gemini", ["wants a key"], {"GEMINI_API_KEY": "valid"}),
        ("codex", "codex-acp", ["wants a key", "like Codex"], {"OPENAI_API_KEY": "valid"}),
        ("codex", "codex-acp", ["wants a key", "like Codex"], {"CODEX_API_KEY": "valid"}),
        ("claude", "claude-agent-acp", ["like Claude Code"], {"ANTHROPIC_API_KEY": "valid"}),
    ],
)
async def test_a_known_agent_needs_a_preset_and_a_key_and_without_the_key_names_it(
    desk: RecordingDesk,
    assign: Callable[..., Assignment],
    install: Callable[..., None],
    preset: str,
    program: str,
    like: list[str],
    key: dict[str, str],
) -> None:
    install(program, *like)
    [variable] = key
    for given in ({"preset": preset}, {"argv": [program]}):
        outcome = await turn(assign(given, prompt="Go."), desk)
        assert isinstance(outcome, Failed)
        assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
        assert "Give the agent a credential as" in outcome.detail
        assert variable in outcome.detail
        assert await turn(assign(given, prompt="Go.", environment=key), desk) == Succeeded()


async def test_a_key_that_an_agent_does_not_take_is_not_tried_again(
    desk: RecordingDesk, assign: Callable[..., Assignment], install: Callable[..., None]
) -> None:
    install("claude-agent-acp", "like Claude Code")
    outcome = await turn(assign({"preset": "claude"}, prompt="Go.", environment={"ANTHROPIC_API_KEY": "old"}), desk)
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
    assert "Check the credential that it is given as ANTHROPIC_API_KEY" in outcome.detail


@pytest.mark.parametrize("method", ["api-key", "chat-gpt", "unknown"])
async def test_an_agent_that_cannot_be_signed_in_by_its_method_is_not_tried_again(run: Any, method: str) -> None:
    outcome = await run("echoes", "wants a key", "like Codex", config_={"auth_method": method})
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
    assert method in outcome.detail


async def test_a_sign_in_that_does_not_suffice_is_not_tried_again(run: Any) -> None:
    """Gemini CLI takes its method also without a key, and refuses the conversation."""
    outcome = await run("echoes", "wants a key", config_={"auth_method": "web"})
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)


async def test_another_agent_is_signed_in_by_the_method_that_its_configuration_names(run: Any) -> None:
    assert await run("echoes", "wants a key", config_={"auth_method": "gemini-api-key"}) == Succeeded()


@pytest.mark.parametrize(
    ("like", "config_", "detail"),
    [
        ("is from the future", {}, "speaks version 9"),
        ("never greets", {"start_timeout": "1.5s"}, "not ready within"),
    ],
)
async def test_an_agent_that_cannot_begin_says_why(run: Any, like: str, config_: dict[str, Any], detail: str) -> None:
    outcome = await run("echoes", like, config_=config_)
    assert isinstance(outcome, Failed)
    assert outcome.error_class == ErrorClass.EXECUTOR_ERROR
    assert detail in outcome.detail


async def test_what_a_failed_agent_wrote_to_standard_error_is_told_as_that(
    desk: RecordingDesk, assign: Callable[..., Assignment]
) -> None:
    """Through the child and its line, as the worker has it."""
    given = assign(config("fails_with_a_warning"))
    outcome = await AcpExecutor(grace=timedelta(seconds=2)).execute(given, desk)
    assert isinstance(outcome, Failed)
    assert "npm warn config deprecated" in desk.voices["stderr"]
    assert desk.voices[""] == "I look for ink."


async def test_an_agent_that_hangs_up_has_failed(run: Any) -> None:
    outcome = await run("hangs_up")
    assert isinstance(outcome, Failed)
    assert "without ending its turn" in outcome.detail


async def test_a_program_that_is_missing_is_said_to_be_installed_how(
    desk: RecordingDesk, assign: Callable[..., Assignment]
) -> None:
    given = assign({"preset": "gemini", "env": {"PATH": "/nowhere"}})
    outcome = await AcpExecutor().execute(given, desk)
    assert isinstance(outcome, Failed)
    assert outcome.error_class == ErrorClass.EXECUTOR_ERROR
    assert "npm install -g @google/gemini-cli" in outcome.detail
    assert not outcome.retryable


async def test_a_worker_without_the_library_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "acp", None)
    monkeypatch.delitem(sys.modules, "rota.executors.acp.attempt", raising=False)
    outcome = await run("echoes")
    assert isinstance(outcome, Failed)
    assert "pip install 'rota[acp]'" in outcome.detail
    assert not outcome.retryable


@pytest.mark.parametrize("kept", [None, b"", b"half", b"[]", b'{"acp": 1}', b'{"acp": {"session": "s"}}'])
def test_a_checkpoint_of_somebody_else_is_no_bookmark(kept: bytes | None) -> None:
    assert bookmark(kept) is None


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Invalid, match="not a file"):
        Files(tmp_path).read("pipe")


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(10_000_001)
    with pytest.raises(Invalid, match="10,000,000 bytes"):
        Files(tmp_path).read("large")


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("one\x0c\ntwo\u2028\r\nthree\n", newline="")
    files = Files(tmp_path)
    assert files.read("code.py", line=2, limit=1) == "two\u2028\r\n"
    assert files.read("code.py", line=3) == "three\n"
    assert files.read("code.py", limit=0) == files.read("code.py", line=9) == ""


async def test_a_terminal_may_be_released_twice(tmp_path: Path) -> None:
    spec = Spec(["sh"], {"PATH": os.environ["PATH"]}, tmp_path, Limits(), timedelta(seconds=1))
    terminals = Terminals(spec)
    name = terminals.create(["sleep", "600"], {}, tmp_path, None)
    await asyncio.sleep(0)
    await asyncio.gather(terminals.release(name), terminals.release(name))
    with pytest.raises(NotFound):
        terminals.find(name)


def test_a_directory_is_known_by_its_link_too(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to("real")
    files = Files(tmp_path / "named")
    files.write(str(tmp_path / "named" / "a"), "1")
    assert files.read(str(tmp_path / "real" / "a")) == "1"


async def test_the_parts_of_a_tool_may_be_nested_as_deep_as_anything_and_deeper_ones_are_left_out(
    desk: RecordingDesk,
) -> None:
    def nested(depth: int) -> Any:
        return {"in": nested(depth - 1)} if depth else 1

    async def spend(_unit: str, _amount: float) -> None:
        raise AssertionError

    story = Story(Transcript(desk, 1_000_000), spend)
    story.listening = True
    for depth in range(50, 70):
        used = {"toolCallId": str(depth), "title": f"{depth}", "status": "completed", "rawInput": nested(depth)}
        for call in ({**used, "rawOutput": nested(depth)}, {**used, "content": [_shown(nested(depth))]}):
            await story.hear({"sessionId": "s", "update": {"sessionUpdate": "tool_call", **call}})
    assert len(desk.events) == 40
    for _, name, data in desk.events:
        clean_json({"name": name, **data})  # as the desk does
    assert [data["title"] for _, _, data in desk.events if "input" in data][-1] == "60"


def _shown(meta: Any) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": "x", "annotations": {"_meta": meta}}}
