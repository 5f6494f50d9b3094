"""What a graph streams, on its way to the desk: words as they come, steps and tools as events, usage as charges."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from rota.agent import Context
from rota.model.agent_config import Prices
from rota.model.text import DEEPEST, clean_json

MODES: Sequence[Literal["messages", "updates", "custom"]] = ("messages", "updates", "custom")
LARGEST_EVENT = 100_000
LONGEST_PATH = 1000
TOO_LARGE = "[too large to be kept]"
OURS = "__"  # how the library's own names begin, such as __interrupt__

Part = Mapping[str, Any]


class Teller:
    """Tells the desk of one attempt."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._message_id: str | None = None
        self._message = ""  # the latest, as far as it was said
        self._calls: dict[str, Mapping[str, Any]] = {}

    def tell(self, part: Part) -> None:
        match part["type"]:
            case "messages":
                self._hear(*part["data"])
            case "custom":
                self._context.tool("custom", **_fitting(data=part["data"]))
            case "updates":
                done_before = bool(part["data"].get("__metadata__", {}).get("cached"))
                for node, update in part["data"].items():
                    self._step(part["ns"], node, update, done_before=done_before)

    def has_said(self, text: str) -> bool:
        return bool(text.strip()) and self._message.strip() == text.strip()

    def _hear(self, message: BaseMessage, _about: Mapping[str, Any]) -> None:
        text = str(message.text) if isinstance(message, AIMessage) else ""
        if not text:
            return
        if message.id != self._message_id:
            if self._message and not self._message.endswith("\n"):
                self._context.say("\n")
            self._message_id, self._message = message.id, ""
        self._message += text
        self._context.say(text)

    def _step(self, space: Sequence[str], node: str, update: Any, *, done_before: bool) -> None:
        """What was done before, by an earlier attempt or another run, was told then."""
        path = "/".join([*(each.partition(":")[0] for each in space), node])[:LONGEST_PATH]
        if node.startswith(OURS):
            return
        if done_before:
            self._context.tool("node", node=path, done_before=True)
            return
        for message in _messages(update):
            self._use(message)
        self._context.tool("node", node=path, **_fitting(update=update))

    def _use(self, message: BaseMessage) -> None:
        """A tool is told once its result is there, with what it was called with."""
        if isinstance(message, AIMessage):
            self._calls |= {call["id"]: call["args"] for call in message.tool_calls if call["id"]}
        if isinstance(message, ToolMessage):
            told = {"arguments": self._calls.pop(message.tool_call_id, None), "result": message.content}
            self._context.tool((message.name or "tool")[:200], **_fitting(**told), outcome=message.status)


class Charging(BaseCallbackHandler):
    """Charges what each call of a model used, as soon as it has ended."""

    run_inline = True

    def __init__(self, context: Context, prices: Mapping[str, Any] | None) -> None:
        self._context, self._prices = context, Prices(**prices) if prices else None

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        for each in (each for generations in response.generations for each in generations):
            message = each.message if isinstance(each, ChatGeneration) else None
            if isinstance(message, AIMessage) and (usage := message.usage_metadata):
                self._charge(usage["input_tokens"], usage["output_tokens"], _cached(usage))

    def _charge(self, given: int, taken: int, cached: int) -> None:
        """The total comes last: once it is counted, who is over is stopped, and the rest is counted too."""
        self._context.usage("input_tokens", given)
        self._context.usage("output_tokens", taken)
        if self._prices:
            self._context.usage("money", self._prices.cost(given, taken, cached))
        self._context.usage("tokens", given + taken)


def _cached(usage: Mapping[str, Any]) -> int:
    return int((usage.get("input_token_details") or {}).get("cache_read") or 0)


def _messages(update: Any) -> Iterator[BaseMessage]:
    """The messages that a node adds, wherever in its update they stand."""
    if isinstance(update, BaseMessage):
        yield update
    elif isinstance(update, Mapping):
        for each in update.values():
            yield from _messages(each)
    elif isinstance(update, list | tuple):
        for each in update:
            yield from _messages(each)


def as_json(value: Any) -> Any:
    """As people read it: a message is its author and its text, and what JSON cannot say is told as Python would."""
    return json.loads(json.dumps(value, default=_told, skipkeys=True), parse_constant=lambda _: None)


def _told(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        calls = getattr(value, "tool_calls", None)
        said = {"author": value.name or value.type, "text": str(value.text)}
        return (
            {**said, "tools": [{"tool": each["name"], "arguments": each["args"]} for each in calls]} if calls else said
        )
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value)


def _fitting(**data: Any) -> dict[str, Any]:
    """What is too large, or nested too deep, is left out whole: half a secret would not be known as one."""
    return {name: _fitted(value) for name, value in data.items()}


def _fitted(value: Any) -> Any:
    try:
        plain = clean_json(as_json(value), DEEPEST - 1)  # it stands within a message
    except (ValueError, RecursionError):  # it may also hold itself
        return TOO_LARGE
    return plain if len(json.dumps(plain)) <= LARGEST_EVENT else TOO_LARGE
