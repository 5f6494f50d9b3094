"""Models behind a wire: real children ask a real server that speaks OpenAI's format, and fails as providers do."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.executors.llm import LlmExecutor
from rota.model.executor import Assignment, Turn
from rota.model.outcome import ErrorClass, Failed, Outcome, Succeeded
from support.openai_server import MODEL, Answer, Provider, calls, cut, garbage, hangs, says, status, unfinished
from support.stand_ins import RecordingDesk, until

KEY = {"OPENAI_API_KEY": "sk-canary"}
TOOLS = """
def search(query: str) -> str:
    \"\"\"Look something up.\"\"\"
    with open("searched", "a") as file:
        file.write(query + "\\n")
    return f"Nothing about {query}."
"""


@pytest.fixture
def provided(tmp_path: Path) -> Iterator[Callable[..., Provider]]:
    started: list[Provider] = []

    def start(*answers: Answer) -> Provider:
        started.append(Provider(*answers).__enter__())
        return started[-1]

    yield start
    for each in started:
        each.__exit__()


@pytest.fixture
def run(tmp_path: Path, desk: RecordingDesk, assign: Callable[..., Assignment], grace: timedelta) -> Any:
    """Start an attempt of an agent whose model is behind this URL."""
    (tmp_path / "search_tool.py").write_text(TOOLS)

    def started(url: str, config: dict[str, Any] | None = None, **given: Any) -> asyncio.Task[Outcome]:
        tools = [{"function": "search_tool:search"}]
        asked = {"model": MODEL, "base_url": url, "path": str(tmp_path), "tools": tools, **(config or {})}
        assigned = assign(asked, **{"environment": KEY, **given})
        return asyncio.create_task(LlmExecutor(grace=grace).execute(assigned, desk))

    return started


def told(desk: RecordingDesk) -> list[tuple[Any, ...]]:
    """What the trace and the ledger hear; checkpoints are the kind's own."""
    return [event for event in desk.events if event[0] != "checkpoint"]


async def test_text_tools_usage_and_money_reach_the_desk_in_order(
    run: Any, desk: RecordingDesk, provided: Callable[..., Provider], tmp_path: Path
) -> None:
    wanted = calls(("search", {"query": "rhymes"}), text="Looking …", usage=(1000, 200))
    provider = provided(wanted, says("No ", "rhymes.", usage=(1500, 100)))
    prices = {"input": 2, "output": 10}
    earlier = [Turn("user", "Hello"), Turn("agent", "Good day.")]
    given = {"instructions": "Be brief.", "transcript": earlier, "input": {"lines": 4}}
    assert await run(provider.url, {"prices": prices, "settings": {"temperature": 0.5}}, **given) == Succeeded(
        "No rhymes."
    )
    assert desk.text == "Looking …\nNo rhymes."
    found = {"arguments": {"query": "rhymes"}, "result": "Nothing about rhymes.", "outcome": "success"}
    assert told(desk) == [
        ("usage", "input_tokens", 1000),
        ("usage", "output_tokens", 200),
        ("usage", "money", 0.004),
        ("usage", "tokens", 1200),
        ("tool", "search", found),
        ("usage", "input_tokens", 1500),
        ("usage", "output_tokens", 100),
        ("usage", "money", 0.004),
        ("usage", "tokens", 1600),
    ]
    assert provider.keys == ["Bearer sk-canary"] * 2
    assert provider.messages(0) == [
        ("system", "Be brief."),
        ("user", "Hello"),
        ("assistant", "Good day."),
        ("user", 'Write a poem\n\nInput:\n{\n  "lines": 4\n}'),
    ]
    assert provider.asked[0]["temperature"] == 0.5
    assert provider.messages(1)[-1] == ("tool", "Nothing about rhymes.")
    assert not any(b"sk-canary" in call[1] for call in desk.events if call[0] == "checkpoint")


async def test_the_price_list_of_the_library_is_used_when_the_agent_has_none(
    run: Any, desk: RecordingDesk, provided: Callable[..., Provider]
) -> None:
    await run(provided(says("A poem.", usage=(1_000_000, 0))).url)
    [money] = [amount for kind, unit, amount in told(desk) if unit == "money"]
    assert money > 0


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (status(429, retry_after="0"), ""),
        (status(500, retry_after="0"), ""),
        (cut("No rh"), "No rh\n"),
        (unfinished("No rh"), "No rh\n"),
        (garbage, ""),
    ],
    ids=["429", "500", "cut", "unfinished", "garbage"],
)
async def test_an_outage_is_waited_for_and_no_finished_tool_is_repeated(
    run: Any, desk: RecordingDesk, provided: Callable[..., Provider], tmp_path: Path, trouble: Answer, said: str
) -> None:
    provider = provided(calls(("search", {"query": "rhymes"})), trouble, says("No rhymes."))
    assert await run(provider.url) == Succeeded("No rhymes.")
    assert desk.text == f"{said}No rhymes."
    assert [name for kind, name, _ in told(desk) if kind == "tool"] == ["search", "retry"]
    assert (tmp_path / "session" / "searched").read_text() == "rhymes\n"
    assert len(provider.asked) == 3


async def test_an_outage_that_lasts_fails_the_attempt_and_the_next_goes_on_behind_the_finished_tool(
    run: Any, desk: RecordingDesk, provided: Callable[..., Provider], tmp_path: Path
) -> None:
    busy = status(503, "come back later", retry_after="0")
    provider = provided(calls(("search", {"query": "rhymes"})), busy, busy, says("No rhymes."))
    first = await run(provider.url, {"max_retries": 1}, run_id="5")
    assert isinstance(first, Failed)
    assert (first.error_class, first.retryable) == (ErrorClass.AGENT_ERROR, True)
    assert "tried 2 times" in first.detail
    assert "come back later" in first.detail
    assert desk.text == ""
    [*_, checkpoint] = [call[1] for call in desk.events if call[0] == "checkpoint"]
    second = await run(provider.url, {"max_retries": 1}, run_id="5", attempt=2, checkpoint=checkpoint)
    assert second == Succeeded("No rhymes.")
    assert ("tool", "resume", {"turns": 1, "finished": ["search"]}) in told(desk)
    assert (tmp_path / "session" / "searched").read_text() == "rhymes\n"


async def test_a_provider_that_cannot_be_reached_is_an_outage(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"
    outcome = await run(url, {"max_retries": 0})
    assert isinstance(outcome, Failed)
    assert outcome.detail.startswith("The model could not be reached, tried 1 times")
    assert outcome.retryable


async def test_nobody_waits_beyond_the_deadline(run: Any, provided: Callable[..., Provider]) -> None:
    provider = provided(status(429, retry_after="3600"))
    outcome = await run(provider.url, timeout=timedelta(minutes=1))
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [(status(401, "wrong key"), "wrong key"), (says("Half a", ends="length"), "settings.max_tokens")],
    ids=["401", "length"],
)
async def test_what_no_further_attempt_would_mend_fails_for_good(
    run: Any, provided: Callable[..., Provider], answer: Answer, why: str
) -> None:
    outcome = await run(provided(answer).url)
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.AGENT_ERROR, False)
    assert why in outcome.detail


async def test_a_key_that_is_missing_is_named(run: Any) -> None:
    outcome = await run("", {"base_url": None}, environment={})
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.retryable) == (ErrorClass.EXECUTOR_ERROR, False)
    assert outcome.detail.endswith("has no key: give the agent a credential as OPENAI_API_KEY")


async def test_a_cancelled_agent_hangs_up_on_its_provider(
    run: Any, desk: RecordingDesk, provided: Callable[..., Provider], grace: timedelta
) -> None:
    provider = provided(hangs)
    attempt = run(provider.url)
    await until(lambda: desk.text == "Let me see …", "the model has begun")
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert await asyncio.to_thread(provider.hung_up.wait, 30)  # it never hangs up by itself


async def test_a_flood_of_words_is_cut_and_charged(
    run: Any, desk: RecordingDesk, provided: Callable[..., Provider]
) -> None:
    provider = provided(says(*["the same line again and again\n" * 1000] * 20, usage=(5, 2)))
    assert isinstance(await run(provider.url, {"output_limit": "50kB"}), Succeeded)
    assert desk.text.endswith("the rest is not kept.]\n")
    assert len(desk.text) < 50_100
    assert ("usage", "tokens", 7) in told(desk)
