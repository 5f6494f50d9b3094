"""What a graph goes through: its steps, its words, its questions, and the checkpoints it is gone on from."""

import base64
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from rota.agent import Context, GiveUp, NotApproved, Parked, Unusable
from rota.executors.langgraph_thread import Thread, agent, graph_of
from support.line_agent import ANSWER, Line

GIVEN: dict[str, Any] = {
    "graph": "test:graph", "prompt_key": None, "result_key": None, "recursion_limit": None, "context": None,
    "prices": None,
}  # fmt: skip


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def work(line: Line) -> Callable[..., Any]:
    """One attempt at a graph; with `again`, one that goes on from what was stored."""

    async def worked(graph: Any, *, again: bool = False, config: dict[str, Any] | None = None, **context: Any) -> str:
        kept = {"last_checkpoint": line.checkpoint, "attempt": 2} if again else {}
        about = {"prompt": "Write a poem", "run_id": "run-1", "session_id": "session-1", "line": line, **kept}
        made = await graph_of(graph, "test:graph")
        return await Thread(Context(**{**about, **context}), {**GIVEN, **(config or {})}, made).finish()

    return worked


def told(line: Line) -> list[str]:
    """The events of an attempt in short; steps by their nodes."""
    tools = line.of("tool")
    return [f"{each['name']} {each['node']}" if each["name"] == "node" else each["name"] for each in tools]


def test_an_installed_graph_is_found_by_its_name_and_one_that_is_missing_is_told_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "poetry_club-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: poetry-club\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[rota.graphs]\npoet = poetry_club:graphs.poet\n")
    (tmp_path / "poetry_club.py").write_text("class graphs: poet = 'a graph'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert callable(agent({**GIVEN, "graph": "poet"}))
    with pytest.raises(Unusable, match=r"no entry point 'poem' in the group rota.graphs; known are poet"):
        agent({**GIVEN, "graph": "poem"})


done: list[str] = []


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    done.clear()
    yield
    done.clear()


class Lines(TypedDict, total=False):
    prompt: str
    instructions: str
    lines: Annotated[list[str], operator.add]


def step(name: str, then: Callable[[], Any] = lambda: None) -> Any:
    def stepped(state: Lines) -> Any:
        done.append(name)
        then()
        return {"lines": [name]}

    return stepped


def chain(**steps: Any) -> "StateGraph[Any]":
    return StateGraph(Lines).add_sequence(list(steps.items())).add_edge(START, next(iter(steps)))


class Fails:
    """Fails the first time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise OSError("no ink")


class Poet(BaseChatModel):
    """A model that follows a script, word by word, and tells what it used."""

    script: list[str | list[ToolCall]]
    heard: list[Any] = []  # noqa: RUF012 - pydantic makes one for each

    @property
    def _llm_type(self) -> str:
        return "poet"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.heard.append([(each.type, each.text) for each in messages])
        say = self.script.pop(0)
        message = AIMessage(say) if isinstance(say, str) else AIMessage("", tool_calls=say)
        message.usage_metadata = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        whole = self._generate(messages).generations[0].message
        assert isinstance(whole, AIMessage)
        for word in str(whole.text).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        calls = [{**call, "args": str(call["args"]).replace("'", '"'), "index": 0} for call in whole.tool_calls]
        yield ChatGenerationChunk(
            message=AIMessageChunk(content="", tool_call_chunks=calls, usage_metadata=whole.usage_metadata)  # type: ignore[arg-type]
        )


def chat(model: Poet, *tools: Callable[..., Any]) -> "StateGraph[Any]":
    def poet(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    made = StateGraph(MessagesState).add_node(poet).add_edge(START, "poet")
    if tools:
        made.add_node(ToolNode(list(tools))).add_conditional_edges("poet", tools_condition).add_edge("tools", "poet")
    return made


async def test_a_graph_that_says_nothing_gives_what_it_holds(work: Any, line: Line) -> None:
    result = await work(chain(a=step("a"), b=step("b")), instructions="Be brief.", input={"lines": ["0"]})
    assert result == '{"prompt": "Write a poem", "instructions": "Be brief.", "lines": ["0", "a", "b"]}'
    assert line.of("tool") == [
        {"type": "tool", "name": "node", "node": "a", "update": {"lines": ["a"]}},
        {"type": "tool", "name": "node", "node": "b", "update": {"lines": ["b"]}},
    ]


async def test_words_tools_and_usage_reach_the_desk_in_order(work: Any, line: Line) -> None:
    def search(query: str) -> str:
        """Look something up."""
        return f"Nothing about {query}."

    call = ToolCall(name="search", args={"query": "rhymes"}, id="call-1")
    model = Poet(script=[[call], "No rhymes."])
    prices = {"input": 1.0, "output": 10.0, "cached_input": None}
    assert (await work(chat(model, search), config={"prices": prices}, instructions="Be brief.")) == "No rhymes."
    assert line.text.strip() == "No rhymes."
    assert len([each for each in line.of("say") if each["text"].strip()]) == 2  # word by word
    spent = [(each["unit"], each["amount"]) for each in line.of("usage")]
    assert spent == [("input_tokens", 100), ("output_tokens", 20), ("money", 0.0003), ("tokens", 120)] * 2
    found = {"arguments": {"query": "rhymes"}, "result": "Nothing about rhymes.", "outcome": "success"}
    assert {"type": "tool", "name": "search", **found} in line.sent
    assert told(line) == ["node poet", "search", "node tools", "node poet"]
    assert model.heard[0] == [("system", "Be brief."), ("human", "Write a poem")]
    assert model.heard[1][-1] == ("tool", "Nothing about rhymes.")


async def test_the_next_run_of_the_session_goes_on_in_the_same_thread(work: Any, line: Line) -> None:
    model = Poet(script=["One.", "Two."])
    await work(chat(model), instructions="Be brief.")
    await work(chat(model), again=True, run_id="run-2", prompt="Another", instructions="Be long.", attempt=1)
    spoken = [(author, text.strip()) for author, text in model.heard[1]]
    assert spoken == [("system", "Be long."), ("human", "Write a poem"), ("ai", "One."), ("human", "Another")]
    assert "resume" not in told(line)


async def test_what_a_node_tells_its_writer_and_its_context_is_in_the_trace(work: Any, line: Line) -> None:
    def node(state: Lines, config: RunnableConfig) -> None:
        get_stream_writer()({"progress": 0.5})
        config["configurable"]["rota"].say("Halfway.")
        config["configurable"]["rota"].tool("search", query="rhymes")

    assert await work(chain(node=node)) == ""
    assert line.text == "Halfway."
    assert sorted(told(line)) == ["custom", "node node", "search"]
    assert {"type": "tool", "name": "custom", "data": {"progress": 0.5}} in line.sent


async def test_a_step_that_nobody_can_keep_is_told_without_what_it_did(work: Any, line: Line) -> None:
    def nested(depth: int) -> list[Any]:
        return [nested(depth - 1)] if depth else []

    circle: list[Any] = []
    circle.append(circle)

    def node(state: Lines, config: RunnableConfig) -> None:
        for each in (nested(70), circle, "x" * 100_001, [float("nan")]):
            get_stream_writer()(each)

    await work(chain(node=node))
    assert [each["data"] for each in line.of("tool") if each["name"] == "custom"] == [
        *3 * ["[too large to be kept]"], [None],
    ]  # fmt: skip


async def test_a_later_attempt_repeats_no_step_that_was_finished_and_says_so(work: Any, line: Line) -> None:
    graph = chain(a=step("a"), b=step("b", Fails()), c=step("c"))
    with pytest.raises(OSError, match="no ink"):
        await work(graph)
    result = await work(graph, again=True, config={"result_key": "lines"})
    assert (result, done) == ('["a", "b", "c"]', ["a", "b", "b", "c"])
    assert told(line) == ["node a", "resume", "node b", "node c"]
    assert {"type": "tool", "name": "resume", "step": 1, "next": ["b"]} in line.sent


async def test_killed_after_whatever_was_stored_it_goes_on_from_there(work: Any, line: Line) -> None:
    graph = chain(a=step("a"), b=step("b"))
    whole = await work(graph)
    stored = [base64.b64decode(each["data"]) for each in line.of("checkpoint")]
    assert len(stored) >= 4
    repeated = []
    for kept in stored:
        done.clear()
        assert await work(graph, last_checkpoint=kept, attempt=2) == whole
        repeated.append("".join(done))
    assert sorted(repeated, key=len, reverse=True) == repeated
    assert (repeated[0], repeated[-1]) == ("ab", "")
    assert "b" in repeated


async def test_a_finished_sibling_is_not_repeated_when_another_failed(work: Any, line: Line) -> None:
    graph = StateGraph(Lines).add_node("a", step("a")).add_node("b", step("b", Fails()))
    graph.add_edge(START, "a").add_edge(START, "b")
    with pytest.raises(OSError, match="no ink"):
        await work(graph)
    await work(graph, again=True)
    assert sorted(done) == ["a", "b", "b"]
    assert [each for each in line.of("tool") if each.get("done_before")] == [
        {"type": "tool", "name": "node", "node": "a", "done_before": True}
    ]


@pytest.mark.parametrize("kept", [b"", b"of another kind", None], ids=["empty", "nonsense", "none"])
async def test_a_checkpoint_of_another_kind_is_left_alone(work: Any, line: Line, kept: bytes | None) -> None:
    assert await work(chain(a=step("a")), last_checkpoint=kept, config={"result_key": "prompt"}) == "Write a poem"
    assert told(line) == ["node a"]


async def test_an_interrupt_is_a_question_and_its_answer_the_way_on(work: Any, line: Line) -> None:
    answers: list[Any] = []
    options = [{"id": "red", "label": "Red"}, {"id": "none", "label": "None", "approves": False}]
    asked = {"question": "Which colour?", "options": options, "why": "The roof needs one."}

    def ask(state: Lines) -> Any:
        answers.append(interrupt("Send it?"))
        answers.append(interrupt(asked))
        return {"lines": ["sent"]}

    graph = chain(a=step("a"), ask=ask)
    with pytest.raises(Parked):
        await work(graph)
    [first] = line.of("park")
    assert (first["question"], first["options"], first["detail"]) == ("Send it?", None, {"tool": "ask"})
    line.answers[first["key"]] = ANSWER
    with pytest.raises(Parked):
        await work(graph, again=True)
    second = line.of("park")[-1]
    assert (second["question"], second["detail"]) == ("Which colour?", {"tool": "ask", "why": "The roof needs one."})
    assert second["options"] == [
        {"id": "red", "label": "Red", "approves": True},
        {"id": "none", "label": "None", "approves": False},
    ]
    line.answers[second["key"]] = {**ANSWER, "option_id": "none", "approved": False, "text": None}
    assert await work(graph, again=True, config={"result_key": "lines"}) == '["a", "sent"]'
    assert answers[-2:] == [
        {"approved": True, "option": "approve", "text": "Go."},
        {"approved": False, "option": "none", "text": None},
    ]
    assert done == ["a"]


async def test_the_same_question_twice_in_one_step_is_two_questions(work: Any, line: Line) -> None:
    """What a person allowed once is allowed once."""

    def ask(state: Lines) -> Any:
        return {"lines": [interrupt("Send it?")["option"], interrupt("Send it?")["option"]]}

    graph = chain(ask=ask)
    with pytest.raises(Parked):
        await work(graph)
    line.answers[line.of("park")[0]["key"]] = ANSWER
    with pytest.raises(Parked):
        await work(graph, again=True)
    assert len({each["key"] for each in line.of("park")}) == 2


async def test_all_questions_of_parallel_nodes_are_asked_before_it_goes_on(work: Any, line: Line) -> None:
    def asking(name: str) -> Any:
        return lambda state: {"lines": [f"{name} {interrupt(f'{name}?')['option']}"]}

    graph = StateGraph(Lines).add_node("a", asking("a")).add_node("b", asking("b")).add_node("c", step("c"))
    for name in "abc":
        graph.add_edge(START, name)
    for number in range(2):
        with pytest.raises(Parked):
            await work(graph, again=number > 0)
        last = line.of("park")[-1]
        line.answers[last["key"]] = {**ANSWER, "option_id": last["question"]}
    assert await work(graph, again=True, config={"result_key": "lines"}) == '["a a?", "b b?", "c"]'
    assert done == ["c"]


async def test_the_middleware_that_asks_before_tools_is_answered_as_it_expects(work: Any, line: Line) -> None:
    heard: list[Any] = []
    requests = [{"name": "send_mail", "args": {"to": "all"}, "description": "Tool execution requires approval"}]

    def review(state: Lines) -> None:
        heard.append(interrupt({"action_requests": requests, "review_configs": []}))

    graph = chain(review=review)
    with pytest.raises(Parked):
        await work(graph)
    [asked] = line.of("park")
    assert asked["question"] == "May the agent use send_mail?"
    assert asked["detail"] == {"tool": "send_mail", "requests": requests}
    line.answers[asked["key"]] = ANSWER
    await work(graph, again=True)
    line.answers[asked["key"]] = {**ANSWER, "approved": False, "text": "Too dear."}
    await work(graph, last_checkpoint=base64.b64decode(_at_the_question(line)), attempt=2)
    assert heard == [
        {"decisions": [{"type": "approve"}]},
        {"decisions": [{"type": "reject", "message": "Too dear."}]},
    ]


def _at_the_question(line: Line) -> str:
    asked = line.sent.index(line.of("park")[0])
    stored: str = [each["data"] for each in line.sent[:asked] if each["type"] == "checkpoint"][-1]
    return stored


async def test_subgraphs_ask_too_and_leave_nothing_behind(work: Any, line: Line) -> None:
    inner = chain(x=step("x"), y=lambda state: {"lines": [interrupt("Go on?")["option"]]}).compile()
    graph = StateGraph(Lines).add_node("inner", inner).add_node("last", step("last"))
    graph.add_edge(START, "inner").add_edge("inner", "last")
    with pytest.raises(Parked):
        await work(graph)
    asking = len(line.checkpoint or b"")
    line.answers[line.of("park")[0]["key"]] = ANSWER
    assert await work(graph, again=True, config={"result_key": "lines"}) == '["x", "approve", "last"]'
    assert done == ["x", "last"]
    assert "node inner/x" in told(line)
    assert len(line.checkpoint or b"") < asking


async def test_a_function_with_tasks_is_a_graph_too(work: Any, line: Line) -> None:
    @task
    def double(number: int) -> int:
        done.append("double")
        return number * 2

    @entrypoint()
    def flow(given: Any) -> Any:
        return {"doubled": double(given["number"]).result(), "option": interrupt("Really?")["option"]}

    with pytest.raises(Parked):
        await work(flow, input={"number": 3})
    line.answers[line.of("park")[0]["key"]] = ANSWER
    assert await work(flow, again=True) == '{"doubled": 6, "option": "approve"}'
    assert done == ["double"]


@dataclass
class Weather:
    sky: str


async def test_types_of_ones_own_stay_what_they_are(work: Any) -> None:
    class State(TypedDict, total=False):
        weather: Weather
        told: str

    graph = StateGraph(State).add_node("look", lambda state: {"weather": Weather("blue")})
    failing = Fails()

    def tell(state: State) -> Any:
        failing()
        return {"told": f"The sky is {state['weather'].sky}."}

    graph.add_node("tell", tell).add_edge(START, "look").add_edge("look", "tell")
    with pytest.raises(OSError, match="no ink"):
        await work(graph)
    assert await work(graph, again=True, config={"result_key": "told"}) == "The sky is blue."


async def test_a_long_thread_does_not_grow_its_checkpoint_but_by_what_it_holds(work: Any, line: Line) -> None:
    class State(TypedDict, total=False):
        number: int

    graph = StateGraph(State).add_node("count", lambda state: {"number": state.get("number", 0) + 1})
    graph.add_edge(START, "count").add_conditional_edges(
        "count", lambda state: "count" if state["number"] < 60 else "__end__"
    )
    await work(graph)
    sizes = [len(each["data"]) for each in line.of("checkpoint")]
    assert len(sizes) > 100
    assert max(sizes) < 2 * sizes[5]


def _joined(state: list[int], writes: list[list[int]]) -> list[int]:
    return [*state, *(each for write in writes for each in write)]


async def test_a_channel_of_differences_is_made_of_what_is_kept_and_no_more(work: Any, line: Line) -> None:
    class State(TypedDict, total=False):
        number: int
        seen: Annotated[list[int], DeltaChannel(_joined, snapshot_frequency=4)]

    failing = {7: Fails(), 10: Fails()}

    def count(state: State) -> Any:
        number = state.get("number", 0) + 1
        failing.get(number, lambda: None)()
        return {"number": number, "seen": [number]}

    graph = StateGraph(State).add_node(count).add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: "count" if state["number"] < 40 else "__end__")
    for again in (False, True):
        with pytest.raises(OSError, match="no ink"):
            await work(graph, again=again)
    result = await work(graph, again=True, config={"result_key": "seen"})
    assert result == str(list(range(1, 41)))
    sizes = [len(each["data"]) for each in line.of("checkpoint")]
    assert max(sizes) < 3 * max(sizes[:12])


async def test_a_state_that_the_desk_refuses_fails_for_good(work: Any, line: Line) -> None:
    line.answers["checkpoint"] = RuntimeError("A checkpoint of 3,000,000 bytes is too large")
    with pytest.raises(GiveUp, match=r"The state of the graph cannot be kept: .*too large"):
        await work(chain(a=step("a")))
    assert done == []


async def test_what_a_node_declines_is_declined(work: Any) -> None:
    def refused() -> None:
        raise NotApproved("Too dear.")

    with pytest.raises(NotApproved):
        await work(chain(a=step("a", refused)))


async def test_a_graph_that_turns_in_circles_is_stopped(work: Any) -> None:
    graph = chain(a=step("a")).add_edge("a", "a")
    with pytest.raises(GiveUp, match="recursion_limit"):
        await work(graph, config={"recursion_limit": 5})
    assert len(done) == 5


async def test_the_prompt_goes_where_the_configuration_says(work: Any) -> None:
    class State(TypedDict, total=False):
        question: str
        answer: str

    graph = (
        StateGraph(State)
        .add_node("think", lambda state: {"answer": f"Not {state['question']}"})
        .add_edge(START, "think")
    )
    keys = {"prompt_key": "question", "result_key": "answer"}
    assert await work(graph, config=keys) == "Not Write a poem"
    with pytest.raises(Unusable, match=r"no place for prompt_key 'query'; it has answer, question"):
        await work(graph, config={"prompt_key": "query"})
    with pytest.raises(GiveUp, match="an object as its input"):
        await work(graph, input=[1])


async def test_what_is_no_graph_or_asks_nobody_is_refused(work: Any) -> None:
    for nothing in (7, lambda: 7):
        with pytest.raises(Unusable, match="'test:graph' is not a graph"):
            await work(nothing)
    with pytest.raises(Unusable, match=r"use interrupt\(\)"):
        await work(chain(a=step("a")).compile(interrupt_before=["a"]))


async def test_a_function_may_make_the_graph(work: Any) -> None:
    async def made() -> Any:
        return chain(a=step("a")).compile()

    assert await work(made, config={"result_key": "lines"}) == '["a"]'
