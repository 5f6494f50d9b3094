"""What a model goes through: tools, approvals, checkpoints and their limits, with models that are functions."""

import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelConnectionError
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall

from rota.agent import Context, GiveUp, Parked, Turn, Unusable
from rota.executors import llm_conversation
from rota.executors.llm_conversation import Conversation, agent, opening, prompt_of
from rota.executors.llm_models import may_pass, model_named
from rota.model.agent_config import DESK_TOOLS
from support.line_agent import ANSWER, Line


@pytest.fixture
def line() -> Line:
    return Line()


Step = str | list[tuple[str, Any]]


class Script:
    """A model that follows a script: a text, or calls of tools. What it was shown is kept."""

    def __init__(self, *steps: Step) -> None:
        self.steps, self.heard = list(steps), list[list[ModelMessage]]()

    async def model(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.heard.append(messages)
        step = self.steps.pop(0)
        if isinstance(step, str):
            yield step
            return
        for at, (name, arguments) in enumerate(step):
            given = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield {at: DeltaToolCall(name, given, tool_call_id="the same")}

    def results(self) -> list[Any]:
        """What the tools gave back, as the model was last told."""
        parts = [part for message in self.heard[-1] for part in message.parts]
        return [part.content for part in parts if isinstance(part, ToolReturnPart)]


@pytest.fixture
def converse(tmp_path: Path, line: Line, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """One attempt at a conversation with a model that follows the script."""

    async def conversed(
        script: Script, tools: Any = DESK_TOOLS, *, max_turns: int = 50, max_retries: int = 0, **context: Any
    ) -> str:
        monkeypatch.setattr(sys.modules[__name__], "model", script.model, raising=False)
        listed = [
            {"name": each, "function": None, "approval": False} if isinstance(each, str) else each for each in tools
        ]
        given: dict[str, Any] = {
            "model": f"function:{__name__}:model",
            "base_url": None,
            "settings": {},
            "prices": None,
            "tools": listed,
            "max_turns": max_turns,
            "max_retries": max_retries,
            "seconds": 60,
        }
        about = {"prompt": "Write a poem", "run_id": "run-1", "automation_id": "automation-1", "line": line, **context}
        return await Conversation(Context(**about), given, tmp_path).finish()

    return conversed


done: list[str] = []


def send_mail(to: str) -> str:
    """Send a mail."""
    done.append(to)
    return f"Sent to {to}."


def breaks(what: str) -> str:
    raise OSError(f"no {what}")


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    done.clear()


def tool(function: Callable[..., Any], *, approval: bool = False) -> dict[str, Any]:
    return {"name": function.__name__, "function": f"{__name__}:{function.__name__}", "approval": approval}


async def test_a_model_works_at_the_desk(converse: Any, line: Line) -> None:
    line.memory["lines"] = {"value": 4}
    line.answers["event"] = {"runs": ["1"]}
    script = Script(
        [("recall", {"key": "lines"}), ("recall", {"key": "other"}), ("message", {"body": "I begin.", "to": "user"})],
        [("task", {"role": "judge", "prompt": "Judge it"}), ("artifact", {"name": "poem.md", "content": "A poem."})],
        [("remember", {"key": "last", "value": [1], "ttl": "7d"}), ("forget", {"key": "lines"})],
        [("event", {"name": "poem.done", "data": {"lines": 4}})],
        "Done.",
    )
    assert await converse(script) == "Done."
    assert script.results()[:3] == [4, "Nothing is remembered under this key.", "Sent as message 7."]
    [message] = line.of("message")
    assert (message["body"], message["to"], message["key"]) == ("I begin.", "user", "turn-1-call-3")
    assert line.of("task")[0]["tasks"] == [{"role": "judge", "prompt": "Judge it", "key": None, "depends_on": []}]
    assert base64.b64decode(line.of("artifact")[0]["data"]) == b"A poem."
    assert line.of("remember")[0]["ttl"] == "7d"
    assert line.of("forget")
    assert line.of("event")[0] | {"type": "event"} == {
        "type": "event", "name": "poem.done", "data": {"lines": 4}, "key": "turn-4-call-1",
    }  # fmt: skip
    assert script.results()[-1] == "Posted. Runs it started: 1."
    assert line.of("say") == [{"type": "say", "text": "Done."}]


async def test_a_run_without_an_automation_is_not_offered_its_memory(
    converse: Any, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of the agent may have such a name: it is another tool."""
    offered: list[set[str]] = []

    class Heard(Script):
        async def model(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
            offered.append({tool.name for tool in info.function_tools})
            async for step in super().model(messages, info):
                yield step

    await converse(Heard("Done."))
    await converse(Heard("Done."), automation_id=None)
    own = {"name": "remember", "function": f"{__name__}:send_mail", "approval": False}
    await converse(Heard([("recall", {"key": "x"})], "Done."), ["recall", own], automation_id=None)
    memory = {"remember", "recall", "forget"}
    assert offered == [set(DESK_TOOLS), set(DESK_TOOLS) - memory, {"remember"}, {"remember"}]


def measures(depth: int) -> Any:
    """What nobody can keep as it is."""
    return [measures(depth - 1)] if depth else [float("nan")]


async def test_a_result_that_the_desk_cannot_keep_does_not_end_the_conversation(converse: Any, line: Line) -> None:
    script = Script([("measures", {"depth": 0}), ("measures", {"depth": 70}), ("measures", '{"depth": NaN}')], "Done.")
    assert await converse(script, [tool(measures)]) == "Done."
    none, deep, nonsense = line.of("tool")
    assert none["result"] == [None]
    assert deep["result"].startswith("[[[")
    assert nonsense["arguments"] == {"depth": None}


async def test_files_are_read_and_written_in_the_sessions_directory_only(converse: Any, tmp_path: Path) -> None:
    (tmp_path.parent / "secret").write_text("canary")
    (tmp_path / "link").symlink_to(tmp_path.parent)
    (tmp_path / "binary").write_bytes(b"\0")
    script = Script(
        [
            ("write_file", {"path": "a/poem.txt", "content": "Ä"}),
            ("read_file", {"path": "a/poem.txt"}),
            ("list_files", {}),
        ],
        [("read_file", {"path": path}) for path in ("../secret", "link/secret", str(tmp_path.parent / "secret"))],
        [("write_file", {"path": path, "content": "x"}) for path in ("../evil", "link/evil", ".")],
        [("read_file", {"path": "none"}), ("read_file", {"path": "binary"}), ("list_files", {"path": ".."})],
        "Done.",
    )
    await converse(script)
    results = script.results()
    assert results[:3] == ["Wrote 2 bytes.", "Ä", ["a/poem.txt", "binary"]]
    assert all("outside the working directory" in each for each in [*results[3:8], results[11]])
    assert results[8:11] == ["'.' is a directory.", "There is no file 'none'.", "'binary' is not a text file."]
    assert "canary" not in str(results)
    assert not (tmp_path.parent / "evil").exists()


async def test_the_model_hears_what_went_wrong_and_may_find_another_way(converse: Any, line: Line) -> None:
    calls = [("breaks", {"what": "ink"}), ("nothing", {}), ("send_mail", {"too": "x"}), ("send_mail", "{broken")]
    script = Script(calls, "Done.")
    assert await converse(script, [tool(breaks), tool(send_mail)]) == "Done."
    broken, unknown, misfit, nonsense = script.results()
    assert broken == "OSError: no ink"
    assert unknown == "There is no tool 'nothing'; there are breaks, send_mail."
    assert "do not fit" in misfit
    assert "do not fit" in nonsense
    assert [outcome for _, _, outcome in line.used] == ["failed", "failed", "retried", "retried"]
    assert done == []


async def test_a_later_attempt_goes_on_behind_the_last_finished_tool(converse: Any, line: Line) -> None:
    """It is killed after each thing it stores: whatever was finished is not done again."""
    script = Script([("send_mail", {"to": "a"}), ("send_mail", {"to": "b"})], "Done.")
    await converse(script, [tool(send_mail)])
    stored = [base64.b64decode(each["data"]) for each in line.of("checkpoint")]
    assert len(stored) == 4
    for kept, steps, missing in zip(
        stored, (["Done."], ["Done."], ["Done."], []), (["a", "b"], ["b"], [], []), strict=True
    ):
        done.clear()
        later = Script(*steps)
        assert await converse(later, [tool(send_mail)], last_checkpoint=kept, attempt=2) == "Done."
        assert done == missing
        if steps:
            assert later.results() == ["Sent to a.", "Sent to b."]
    resumed = [each for each in line.of("tool") if each["name"] == "resume"]
    assert [each["finished"] for each in resumed] == [[], ["send_mail"], ["send_mail"] * 2, ["send_mail"] * 2]


@pytest.mark.parametrize("kept", [b"", b"of another kind", None], ids=["empty", "nonsense", "none"])
async def test_a_checkpoint_of_another_kind_is_left_alone(converse: Any, line: Line, kept: bytes | None) -> None:
    assert await converse(Script("Done."), last_checkpoint=kept) == "Done."
    assert line.used == []


async def test_the_checkpoint_of_an_earlier_run_is_left_to_the_transcript(converse: Any, line: Line) -> None:
    await converse(Script([("send_mail", {"to": "a"})], "Done."), [tool(send_mail)])
    script = Script("Yes.")
    earlier = [Turn("user", "Write a poem"), Turn("agent", "Done.")]
    await converse(script, run_id="run-2", prompt="Really?", transcript=earlier, last_checkpoint=line.checkpoint)
    assert [message.kind for message in script.heard[0]] == ["request", "response", "request"]
    assert script.results() == []


async def test_an_approved_tool_is_used_in_another_process_once(converse: Any, line: Line) -> None:
    tools = [tool(send_mail), {**tool(send_mail, approval=True), "name": "send_all"}]
    with pytest.raises(Parked):
        await converse(Script([("send_mail", {"to": "a"}), ("send_all", {"to": "all"})]), tools)
    [question] = line.of("park")
    assert question["question"] == "May the agent use send_all?"
    assert question["detail"] == {"tool": "send_all", "arguments": {"to": "all"}}
    assert done == ["a"]
    line.answers[question["key"]] = ANSWER
    script = Script("Done.")
    assert await converse(script, tools, last_checkpoint=line.checkpoint, attempt=2) == "Done."
    assert done == ["a", "all"]
    assert script.results() == ["Sent to a.", "Sent to all."]


async def test_a_refused_tool_is_not_used_and_the_model_is_told(converse: Any, line: Line) -> None:
    line.answers["turn-1-call-1"] = {**ANSWER, "approved": False, "option_id": "refuse", "text": "Too dear."}
    script = Script([("send_mail", {"to": "all"})], "Not sent.")
    assert await converse(script, [tool(send_mail, approval=True)]) == "Not sent."
    assert script.results() == ["A person refused this: Too dear."]
    assert line.used == [("send_mail", "A person refused this: Too dear.", "denied")]
    assert done == []


async def test_each_question_has_a_key_of_its_own_also_when_a_model_repeats_its_ids(converse: Any, line: Line) -> None:
    for number in (1, 2, 3):
        line.answers |= {f"turn-{number}-call-1": ANSWER, f"turn-{number}-call-2": ANSWER}
    twice = [("ask", {"question": "This?"}), ("ask", {"question": "That?", "detail": "It is late."})]
    script = Script(twice, twice, "Done.")
    await converse(script)
    keys = [each["key"] for each in line.of("park")]
    assert keys == ["turn-1-call-1", "turn-1-call-2", "turn-2-call-1", "turn-2-call-2"]
    assert script.results()[0] == {"approved": True, "text": "Go."}
    assert line.of("park")[1]["detail"] == {"tool": "ask", "detail": "It is late."}


async def test_a_model_that_is_never_done_is_stopped_also_over_several_attempts(converse: Any, line: Line) -> None:
    endless: Step = [("list_files", {})]
    with pytest.raises(GiveUp, match="after 2 turns"):
        await converse(Script(endless, endless, endless), max_turns=2)
    with pytest.raises(GiveUp, match="after 2 turns"):
        await converse(Script(endless), max_turns=2, last_checkpoint=line.checkpoint)


async def test_what_broke_off_is_counted_before_the_model_is_asked_again(
    converse: Any, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The desk hears in order, and answers for a checkpoint once it has counted what came before."""
    monkeypatch.setattr(llm_conversation, "FIRST_PAUSE", 0)
    script = Script("Done.")
    whole, told_before = script.model, list[str]()

    async def breaks_once(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        told_before.extend(each["type"] for each in line.sent)
        if line.sent:
            async for piece in whole(messages, info):
                yield piece
            return
        yield "Half"
        raise ModelConnectionError("model", "it went away")

    monkeypatch.setattr(script, "model", breaks_once)
    assert await converse(script, max_retries=1) == "Done."
    assert told_before == ["say", "tool", "checkpoint"]
    assert "".join(each["text"] for each in line.of("say")) == "Half\nDone."


async def test_a_model_that_says_nothing_at_the_end_is_done(converse: Any) -> None:
    assert await converse(Script([("list_files", {})], "")) == ""


async def test_a_conversation_that_is_too_long_to_be_kept_ends_with_that(converse: Any, line: Line) -> None:
    line.answers["checkpoint"] = RuntimeError("A checkpoint of 3,000,000 bytes is too large")
    with pytest.raises(GiveUp, match="cannot be kept any longer: A checkpoint of 3,000,000 bytes"):
        await converse(Script("Done."))


def test_a_prompt_tells_all_that_was_given() -> None:
    missed = {"count": 3, "since": "2027-01-01T09:00:00Z"}
    context = Context(prompt="Go.", input={"a": 1}, payload=["ä"], missed=missed)
    assert prompt_of(context) == (
        'Go.\n\nInput:\n{\n  "a": 1\n}\n\nWhat came with it:\n[\n  "ä"\n]\n\n'
        "This run also stands for 3 missed since 2027-01-01T09:00:00Z."
    )


def test_instructions_stand_before_everything() -> None:
    last = opening(Context(prompt="Go.", instructions="Be brief."))[-1]
    assert isinstance(last, ModelRequest)
    assert last.instructions == "Be brief."


@pytest.mark.parametrize(
    "given",
    [
        {"model": "function:no_such_module:f"},
        {"model": f"function:{__name__}:done"},
        {"tools": [{"name": "x", "function": f"{__name__}:done", "approval": False}]},
    ],
    ids=["module", "no function", "no tool"],
)
async def test_what_is_not_there_is_named(given: dict[str, Any]) -> None:
    whole = {
        "model": f"function:{__name__}:send_mail",
        "base_url": None,
        "settings": {},
        "prices": None,
        "tools": [],
        "max_turns": 1,
        "max_retries": 0,
        "seconds": 60,
        **given,
    }
    with pytest.raises(Unusable, match=r"no_such_module|is not a function"):
        await agent(whole)(Context(line=Line()))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("anthropic:x", "has no key: give the agent a credential as ANTHROPIC_API_KEY"),
        ("google:x", "has no key: give the agent a credential as GOOGLE_API_KEY"),
        ("openrouter:a/b", "has no key: give the agent a credential as OPENROUTER_API_KEY"),
        ("ollama:x", "lacks OLLAMA_BASE_URL: set it in the agent's env, or give the agent a credential as that"),
        ("nobody:x", "cannot be used: Unknown provider: nobody"),
    ],
)
def test_a_model_that_lacks_something_says_what_to_set(monkeypatch: pytest.MonkeyPatch, model: str, says: str) -> None:
    for name in ("ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OLLAMA_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unusable) as refusal:
        model_named(model, None)
    assert str(refusal.value) == f"the model {model!r} {says}"


def test_what_is_no_failure_of_a_provider_does_not_pass() -> None:
    assert not may_pass(ValueError("no ink"))
