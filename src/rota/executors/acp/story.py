"""An agent's updates on their way to the desk: words as they come; thoughts, tools and plans when they are whole."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from acp import schema
from pydantic import ValidationError

from rota.executors.events import LARGEST_AMOUNT
from rota.executors.transcript import Transcript
from rota.model.text import DEEPEST, clean, clean_json

LARGEST_EVENT = 100_000
LONGEST_NAME = 200
WITHIN = 3  # levels at most, in which a part stands when it is told
DECIMALS = 9  # of money: the difference of two floats has more, and none of them is meant
ENDED = ("completed", "failed")

Spend = Callable[[str, float], Awaitable[None]]


@dataclass(slots=True)
class Call:
    """One use of a tool, as far as it is known."""

    tool: str = "tool"
    kind: str | None = None
    title: str = ""
    status: str | None = None
    input: Any = None
    output: Any = None
    content: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    told: str | None = None  # the status that stands in the log

    def learn(self, news: schema.ToolCallStart | schema.ToolCallProgress | schema.ToolCallUpdate) -> None:
        self.kind, self.status = news.kind or self.kind, news.status or self.status
        self.title = clean(news.title) if news.title else self.title
        self.tool = (
            _tool_name(news.field_meta) or (self.kind if self.tool in ("tool", self.kind) else None) or self.tool
        )
        self.input = self.input if news.raw_input in (None, {}) else _plain(news.raw_input)
        self.output = self.output if news.raw_output is None else _plain(news.raw_output)
        if news.content is not None:
            self.content = [_content(each) for each in news.content]
        if news.locations is not None:
            self.paths = [clean(each.path) for each in news.locations]

    def shown(self) -> dict[str, Any]:
        told = {
            "title": self.title, "status": self.status, "input": self.input, "paths": self.paths,
            "output": self.output if self.output is not None else self.content,
        }  # fmt: skip
        return {name: value for name, value in told.items() if value not in (None, "", [], {})}


class Story:
    """Hears nothing until it is told to: an agent that loads a conversation repeats all of it."""

    def __init__(self, transcript: Transcript, spend: Spend) -> None:
        self._transcript, self._spend = transcript, spend
        self.listening = False
        self.costs: dict[str, float] = {}
        self._thought: list[str] = []
        self._calls: dict[str, Call] = {}
        self._plan: Any = None
        self._mid_line = self._interrupted = False

    async def hear(self, params: Any) -> None:
        """Updates that this version of the protocol doesn't know are passed over."""
        try:
            update = schema.SessionNotification.model_validate(params).update
        except (ValidationError, RecursionError):
            return
        if isinstance(update, schema.UsageUpdate):
            await self._count(update.cost)
        elif self.listening:
            await self._tell(update)

    async def end(self) -> None:
        """Nothing more of this turn will come."""
        await self._think()

    async def about(self, news: schema.ToolCallUpdate) -> Call:
        """The use of a tool that a question is about."""
        await self._think()
        call = self._calls.setdefault(news.tool_call_id, Call())
        call.learn(news)
        return call

    async def note(self, name: str, data: Mapping[str, Any]) -> None:
        data = _fitting(data)
        await self._transcript.tool(name[:LONGEST_NAME], data, len(json.dumps(data)))
        self._interrupted = True

    async def _tell(self, update: object) -> None:
        if isinstance(update, schema.AgentThoughtChunk):
            self._muse(update.content)
            return
        await self._think()
        match update:
            case schema.AgentMessageChunk(content=schema.TextContentBlock(text=text)):
                await self._say(text)
            case schema.AgentMessageChunk(content=content):
                await self.note("content", _content(content))
            case schema.ToolCallStart() | schema.ToolCallProgress():
                await self._work(update)
            case schema.AgentPlanUpdate(entries=entries):
                await self._intend(entries)

    async def _say(self, text: str) -> None:
        """What is said before and after the use of a tool are two lines."""
        if self._interrupted and self._mid_line and not text.startswith("\n"):
            text = f"\n{text}"
        await self._transcript.say(text)
        self._mid_line = not text.endswith("\n") if text else self._mid_line
        self._interrupted = False

    def _muse(self, content: object) -> None:
        """A thought is told when it is whole: a secret that came in two pieces must be found in it."""
        if isinstance(content, schema.TextContentBlock) and sum(map(len, self._thought)) < LARGEST_EVENT:
            self._thought.append(content.text)

    async def _think(self) -> None:
        thought, self._thought = clean("".join(self._thought)).strip(), []
        if thought:
            await self.note("thought", {"text": thought})

    async def _work(self, news: schema.ToolCallStart | schema.ToolCallProgress) -> None:
        """A use of a tool is told when it begins and when it ends, with all that is known by then."""
        call = self._calls.setdefault(news.tool_call_id, Call())
        call.learn(news)
        ended = call.status in ENDED
        begins = call.told is None and (call.status == "in_progress" or call.input is not None)
        if (ended and call.told not in ENDED) or begins:
            call.told = call.status or "pending"
            await self.note(call.tool, call.shown())
        if ended:
            del self._calls[news.tool_call_id]

    async def _intend(self, entries: list[schema.PlanEntry]) -> None:
        plan = [{"step": clean(each.content), "status": each.status} for each in entries]
        if plan != self._plan:
            self._plan = plan
            await self.note("plan", {"steps": plan})

    async def _count(self, cost: schema.Cost | None) -> None:
        """Costs are the conversation's, from its beginning: only what is new is charged."""
        if cost is None or not 0 <= cost.amount < LARGEST_AMOUNT:
            return
        currency = clean(cost.currency)[:LONGEST_NAME]
        new = round(cost.amount - self.costs.get(currency, 0.0), DECIMALS)
        if new > 0:
            self.costs[currency] = cost.amount
            if self.listening:
                await self._spend("money", new)


def _tool_name(meta: Mapping[str, Any] | None) -> str | None:
    """Agents tell the names of their tools in extensions of their own, such as `claudeCode.toolName`."""
    for each in (meta or {}).values():
        name = each.get("toolName") if isinstance(each, Mapping) else None
        if isinstance(name, str) and name:
            return clean(name)[:LONGEST_NAME]
    return None


def _content(content: Any) -> dict[str, Any]:
    """A piece of content without what only a program could read."""
    told: dict[str, Any] = _plain(content.model_dump(mode="json", by_alias=True, exclude_none=True)) or {}
    inner = told.get("content")
    for each in (told, inner if isinstance(inner, dict) else {}):
        for name in ("data", "blob", "_meta"):
            each.pop(name, None)
    return told


def _plain(value: Any) -> Any:
    try:
        return clean_json(value, DEEPEST - WITHIN)
    except ValueError:
        return None


def _fitting(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the parts that are too large to be kept. They are not cut: half a secret would not be known as one."""
    if len(json.dumps(data)) <= LARGEST_EVENT:
        return data
    each = LARGEST_EVENT // (len(data) + 1)
    return {name: value if len(json.dumps(value)) <= each else "[too large to be kept]" for name, value in data.items()}
