"""A graph at work in the thread of its session: begun, or gone on with where an earlier attempt left it.

What the library stores after each step goes to the desk as the checkpoint, so that a later attempt, in whichever
process, goes on behind the last step that was finished. `interrupt` becomes a question to a person, its answer the way
on.
"""

import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from rota.agent import Answer, Context, GiveUp, Option, Said, Unusable

try:
    from langgraph.errors import GraphRecursionError
    from langgraph.graph import StateGraph
    from langgraph.pregel import Pregel
    from langgraph.types import Command, Interrupt, StateSnapshot
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; the kind 'langgraph' needs pip install 'rota[langgraph]'") from missing

from langchain_core.messages import AIMessage

from rota.executors.langgraph_saver import DeskSaver
from rota.executors.langgraph_trace import MODES, Charging, Teller, as_json
from rota.executors.named import named

GROUP = "rota.graphs"
HERE = "rota"  # where a node finds its context: config["configurable"]["rota"]
INSTRUCTIONS = "rota-instructions"
OPTIONAL = ("prompt", "instructions", "payload", "missed", "source")
LONGEST_QUESTION = 1000


def agent(given: Mapping[str, Any]) -> Callable[[Context], Coroutine[Any, Any, str]]:
    """The agent of a configuration, to be called with its context."""
    found = named(given["graph"], GROUP)
    # Types of one's own in a state are read without ado: nobody but this session wrote them.
    logging.getLogger("langgraph.checkpoint.serde").setLevel(logging.ERROR)

    async def working(context: Context) -> str:
        return await Thread(context, given, await graph_of(found, given["graph"])).finish()

    return working


async def graph_of(found: Any, name: str) -> "Pregel[Any, Any, Any, Any]":
    """A compiled graph, the builder of one, or a function that makes either."""
    if callable(found) and not isinstance(found, Pregel | StateGraph):
        found = found()
        found = await found if inspect.isawaitable(found) else found
    graph = found.compile() if isinstance(found, StateGraph) else found
    if not isinstance(graph, Pregel):
        raise Unusable(f"{name!r} is not a graph")
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise Unusable(
            f"{name!r} is compiled with interrupt_before or interrupt_after, which ask nobody: use interrupt()"
        )
    return graph


class Thread:
    """One attempt at it."""

    def __init__(self, context: Context, given: Mapping[str, Any], graph: "Pregel[Any, Any, Any, Any]") -> None:
        self._context, self._given = context, given
        self._saver = DeskSaver(context.checkpoint, context.run_id, context.last_checkpoint)
        graph.checkpointer = self._saver
        self._graph, self._teller = graph, Teller(context)
        self._config: Any = {
            "configurable": {"thread_id": context.session_id, HERE: context},
            "callbacks": [Charging(context, given["prices"])],
        }
        if given["recursion_limit"]:
            self._config["recursion_limit"] = given["recursion_limit"]

    async def finish(self) -> str:
        """The graph's last words."""
        if not self._saver.of_this_run:
            await self._work(self._input())
        elif (state := await self._found()).tasks:
            await self._work(await self._answered(state) if state.interrupts else None)
        while (state := await self._state()).tasks:
            await self._work(await self._answered(state))
        return self._result(state.values)

    async def _found(self) -> StateSnapshot:
        state = await self._state()
        self._context.tool("resume", step=(state.metadata or {}).get("step"), next=list(state.next))
        return state

    async def _state(self) -> StateSnapshot:
        return await self._graph.aget_state(self._config)

    async def _work(self, given: Any) -> None:
        try:
            parts = self._graph.astream(
                given, self._config, context=self._given["context"], stream_mode=MODES, subgraphs=True,
                durability="sync", version="v2",
            )  # fmt: skip
            async for part in parts:
                self._teller.tell(part)
        except GraphRecursionError as too_far:
            raise GiveUp(f"The graph did not end within its recursion_limit: {too_far}") from too_far

    async def _answered(self, state: StateSnapshot) -> "Command[Any]":
        """Each question has the same key in every attempt, so that an answer is there at once when it was given."""
        if not state.interrupts:
            raise GiveUp(f"The graph stopped before {', '.join(state.next)} and asked nobody.")
        asked = {each.id: task.name for task in state.tasks for each in task.interrupts}
        return Command(resume={each.id: await self._answer(each, asked[each.id]) for each in state.interrupts})

    async def _answer(self, asked: Interrupt, node: str) -> Any:
        """A pre-approval calls it by the tool that it is about, or by its node."""
        value = as_json(asked.value)
        tools = value.get("action_requests") if isinstance(value, dict) else None
        about = _review(tools) if tools else _question(value)
        about["detail"] = {"tool": node, **about["detail"]}
        answer = await self._context.park(**about, key=f"interrupt-{asked.id}")
        return _decisions(answer, tools) if tools else _plain(answer)

    def _input(self) -> Any:
        """What the graph's state has a place for; a graph without a state gets the input, or else the prompt."""
        context, given = self._context, self._context.input
        places = {name for name in self._graph.channels if not name.startswith(("__", "branch:"))}
        if not places:
            return context.prompt if given is None else given
        if given is not None and not isinstance(given, dict):
            raise GiveUp("This graph needs an object as its input, with the keys of its state.")
        told = {name: value for name in OPTIONAL if name in places and (value := getattr(context, name)) is not None}
        told |= self._prompt(places) if context.prompt else {}
        return {**told, **(given or {})}

    def _prompt(self, places: set[str]) -> Mapping[str, Any]:
        key = self._given["prompt_key"]
        if key is None and "messages" in places:
            return {"messages": _opening(self._context)}
        if key is not None and key not in places:
            raise Unusable(f"the graph has no place for prompt_key {key!r}; it has {', '.join(sorted(places))}")
        return {key: self._context.prompt} if key else {}

    def _result(self, values: Any) -> str:
        """The value that the configuration names, the last message, or what a graph holds that has said nothing."""
        key = self._given["result_key"]
        if key is not None:
            text = _text(values.get(key) if isinstance(values, dict) else None)
        elif (last := _last_message(values)) is not None:
            text = last
        else:
            return Said("") if self._context.spoke or not values else _text(values)
        return Said(text) if self._teller.has_said(text) else text


def _opening(context: Context) -> list[dict[str, Any]]:
    """The instructions have an id of their own: in the next run of the session they take the place of these."""
    told = [{"role": "system", "content": context.instructions, "id": INSTRUCTIONS}] if context.instructions else []
    return [*told, {"role": "user", "content": context.prompt}]


def _question(value: Any) -> dict[str, Any]:
    """A text is the question; of an object `question` and `options` are, and all else is its detail."""
    if isinstance(value, str):
        return {"question": value[:LONGEST_QUESTION], "detail": {}}
    if not isinstance(value, dict):
        return {"question": "May the graph go on?", "detail": {"value": value}}
    detail = {name: each for name, each in value.items() if name not in ("question", "options")}
    options = [_option(each) for each in value.get("options") or ()]
    question = str(value.get("question") or "May the graph go on?")
    return {"question": question[:LONGEST_QUESTION], "options": options, "detail": detail}


def _option(given: Any) -> Option:
    if isinstance(given, dict):
        name = str(given.get("id") or given.get("label"))
        return Option(name, str(given.get("label") or name), approves=given.get("approves") is not False)
    return Option(str(given), str(given), approves=True)


def _plain(answer: Answer) -> dict[str, Any]:
    return {"approved": answer.approved, "option": answer.option_id, "text": answer.text}


def _review(requests: list[Any]) -> dict[str, Any]:
    """What LangChain's middleware asks before tools are used."""
    names = ", ".join(str(each.get("name")) for each in requests)
    only = {"tool": names} if len(requests) == 1 else {}
    return {"question": f"May the agent use {names}?"[:LONGEST_QUESTION], "detail": {**only, "requests": requests}}


def _decisions(answer: Answer, requests: list[Any]) -> dict[str, Any]:
    refused = {"type": "reject", "message": answer.text or "A person refused this."}
    return {"decisions": [{"type": "approve"} if answer.approved else refused for _ in requests]}


def _last_message(values: Any) -> str | None:
    messages = values.get("messages") if isinstance(values, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    return str(last.text).strip() if isinstance(last, AIMessage) else None


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(as_json(value), ensure_ascii=False)
