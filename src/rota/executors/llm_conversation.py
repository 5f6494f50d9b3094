"""A model at work: asked, heard while it answers, given what its tools found, until it is done.

Everything it has gone through is the list of its messages. That list is the checkpoint, stored after each answer and
after each tool, so that a later attempt, in whichever process, goes on behind the last thing that was finished.
"""

import asyncio
import json
import time
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rota.agent import Answer, Context, GiveUp, NotApproved, Said, TryAgain, Turn

try:
    from pydantic import ValidationError
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelResponse,
        PartDeltaEvent,
        PartStartEvent,
        TextPart,
        TextPartDelta,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.models.function import FunctionModel
    from pydantic_core import to_jsonable_python
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; the kind 'llm' needs pip install 'rota[llm]'") from missing

from rota.executors.llm_models import may_pass, model_named, price
from rota.executors.llm_tools import Declined, DeskTools, Toolbox
from rota.model.text import DEEPEST, clean_json

ModelMessagesTypeAdapter.rebuild()  # now, when a nursery has it for all, and not at the first checkpoint

FORMAT = "rota-llm-1"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LONGEST_SHOWN = 2000


def agent(given: Mapping[str, Any]) -> Callable[[Context], Coroutine[Any, Any, Said]]:
    """The agent of a configuration, to be called with its context."""

    async def conversing(context: Context) -> Said:
        return Said(await Conversation(context, given, Path.cwd()).finish())

    return conversing


class Cut(Exception):
    """The answer ended before its end."""


class Progress:
    """What was said and done so far. It begins with what the run was given, which every attempt is given anew."""

    def __init__(self, given: Sequence[ModelMessage], since: Sequence[ModelMessage] = (), turns: int = 0) -> None:
        self.messages, self.turns = [*given, *since], turns
        self._given = len(given)

    def open_calls(self) -> list[ToolCallPart]:
        """What the last answer asked for and has not got. Calls are carried out in order, one after the other."""
        response = next((each for each in reversed(self.messages) if isinstance(each, ModelResponse)), None)
        return response.tool_calls[len(self._returns()) :] if response and not self._behind_prompt() else []

    def number_of_next(self) -> int:
        return len(self._returns())

    def add(self, result: ToolReturnPart, instructions: str | None) -> None:
        self.messages[-1:] = [
            *([] if self._returns() else self.messages[-1:]),
            ModelRequest([*self._returns(), result], instructions=instructions),
        ]

    def last_answer(self) -> ModelResponse | None:
        last = self.messages[-1]
        return last if isinstance(last, ModelResponse) else None

    def finished_tools(self) -> list[str]:
        parts = [part for each in self.messages if isinstance(each, ModelRequest) for part in each.parts]
        return [part.tool_name for part in parts if isinstance(part, ToolReturnPart)]

    def _returns(self) -> list[ToolReturnPart]:
        last = self.messages[-1]
        parts = last.parts if isinstance(last, ModelRequest) else []
        return [part for part in parts if isinstance(part, ToolReturnPart)]

    def _behind_prompt(self) -> bool:
        return isinstance(self.messages[-1], ModelRequest) and not self._returns()

    def stored(self, run_id: str) -> bytes:
        told = {"format": FORMAT, "run_id": run_id, "turns": self.turns}
        told["messages"] = ModelMessagesTypeAdapter.dump_python(self.messages[self._given :], mode="json")
        return zlib.compress(json.dumps(told).encode())

    @classmethod
    def of(cls, stored: bytes | None, run_id: str, given: Sequence[ModelMessage]) -> "Progress | None":
        """What an earlier attempt of this run stored. What another run left is told by the transcript."""
        try:
            told = json.loads(zlib.decompress(stored or b""))
        except (zlib.error, ValueError):
            return None
        if not isinstance(told, dict) or (told.get("format"), told.get("run_id")) != (FORMAT, run_id):
            return None
        return cls(given, ModelMessagesTypeAdapter.validate_python(told["messages"]), told["turns"])


class Conversation:
    """One attempt at it."""

    def __init__(self, context: Context, given: Mapping[str, Any], directory: Path) -> None:
        self._context, self._given = context, given
        self._until = time.monotonic() + given["seconds"]
        self._model = model_named(given["model"], given["base_url"])
        has_memory = context.automation_id is not None
        self._tools = Toolbox(DeskTools(context, directory), given["tools"], has_memory=has_memory)
        # The library's own clients would try again unseen; here the trace tells of it.
        self._settings: Any = {"max_retries": 0, **given["settings"]}
        self._instructions = context.instructions or None
        self._within_line = False
        given_now = opening(context)
        found = Progress.of(context.last_checkpoint, context.run_id, given_now)
        self._progress = found or Progress(given_now)
        if found:
            context.tool("resume", turns=found.turns, finished=found.finished_tools())

    async def finish(self) -> str:
        """The model's last words."""
        while True:
            for call in self._progress.open_calls():
                await self._carry_out(call)
            if (last := self._progress.last_answer()) is not None:
                return _ended_well(last)
            if self._progress.turns >= self._given["max_turns"]:
                raise GiveUp(f"The model was not done after {self._progress.turns} turns, which is max_turns.")
            await self._take_turn()

    async def _take_turn(self) -> None:
        response = await self._answer()
        self._progress.messages.append(response)
        self._progress.turns += 1
        await self._keep()

    async def _answer(self) -> ModelResponse:
        """An answer of the model, asked for again while its provider is away."""
        for tried in count():
            try:
                return await self._hear()
            except (ModelAPIError, UnexpectedModelBehavior, Cut) as failure:
                if not isinstance(failure, Cut) and not may_pass(failure):
                    raise GiveUp(f"The model cannot be asked: {_told(failure)}") from failure
                await self._pause(tried, failure)
        raise AssertionError("never")

    async def _pause(self, tried: int, failure: Exception) -> None:
        asked_for = getattr(failure, "retry_after", None)
        pause = min(FIRST_PAUSE * 2**tried, LONGEST_PAUSE) if asked_for is None else float(asked_for)
        if tried >= self._given["max_retries"] or time.monotonic() + pause >= self._until:
            raise TryAgain(f"The model could not be reached, tried {tried + 1} times: {_told(failure)}") from failure
        self._context.tool("retry", error=_told(failure), seconds=pause)
        await self._keep()  # nothing new; but then what broke off is counted, and who is over budget stopped
        await asyncio.sleep(pause)

    async def _hear(self) -> ModelResponse:
        asked = ModelRequestParameters(function_tools=self._tools.definitions)
        messages = self._progress.messages
        async with model_request_stream(
            self._model, messages, model_settings=self._settings, model_request_parameters=asked
        ) as stream:
            try:
                await self._repeat(stream)
            finally:  # also what broke off may have cost something
                self._charge(stream.get())
        response = stream.get()
        if not isinstance(self._model, FunctionModel) and response.finish_reason is None:
            raise Cut("the answer ended before its end")
        return response

    async def _repeat(self, stream: StreamedResponse) -> None:
        """Say what the model says, as it says it."""
        if self._within_line:
            self._say("\n")
        async for event in stream:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    self._say(text)

    def _say(self, text: str) -> None:
        if text:
            self._context.say(text)
            self._within_line = not text.endswith("\n")

    def _charge(self, response: ModelResponse) -> None:
        """The desk hears in order: once it has the next checkpoint this is counted, and who is over is stopped."""
        usage = response.usage
        if isinstance(self._model, FunctionModel) or not usage.total_tokens:
            return
        for unit, amount in (("input_tokens", usage.input_tokens), ("output_tokens", usage.output_tokens)):
            self._context.usage(unit, amount)
        cost = price(response, self._given["prices"])
        if cost is not None:
            self._context.usage("money", cost)
        self._context.usage("tokens", usage.total_tokens)

    async def _carry_out(self, call: ToolCallPart) -> None:
        key = f"turn-{self._progress.turns}-call-{self._progress.number_of_next() + 1}"
        arguments = call.args if call.args not in (None, "") else {}
        content, outcome = await self._use(call.tool_name, arguments, key)
        used = {"arguments": _recorded(_plain(arguments)), "result": _recorded(_shown(content))}
        self._context.tool(call.tool_name, **used, outcome=outcome)
        result = ToolReturnPart(call.tool_name, content, call.tool_call_id, outcome=outcome)
        self._progress.add(result, self._instructions)
        await self._keep()

    async def _use(self, name: str, arguments: Any, key: str) -> tuple[Any, Any]:
        try:
            if self._tools.needs_approval(name):
                (await self._approval(name, arguments, key)).required()
            return to_jsonable_python(await self._tools.use(name, arguments, key), fallback=str), "success"
        except NotApproved as refusal:
            return f"A person refused this: {refusal}", "denied"
        except (GiveUp, TryAgain):
            raise
        except ValidationError as mistakes:
            return f"The arguments do not fit: {mistakes}", "retried"
        except Declined as reason:
            return str(reason), "failed"
        except Exception as failure:  # a tool may raise anything; the model may know another way
            return f"{type(failure).__name__}: {failure}", "failed"

    async def _approval(self, name: str, arguments: Any, key: str) -> Answer:
        detail = {"tool": name, "arguments": _plain(arguments)}
        return await self._context.park(f"May the agent use {name}?", detail=detail, key=key)

    async def _keep(self) -> None:
        try:
            await self._context.checkpoint(self._progress.stored(self._context.run_id))
        except (RuntimeError, ValueError) as refusal:
            raise GiveUp(f"The conversation cannot be kept any longer: {refusal}") from refusal


def opening(context: Context) -> list[ModelMessage]:
    """What was said before, and what is asked now."""
    prompt = ModelRequest([UserPromptPart(prompt_of(context))], instructions=context.instructions or None)
    return [*(_heard(turn) for turn in context.transcript if turn.text.strip()), prompt]


def _heard(turn: Turn) -> ModelMessage:
    if turn.speaker == "agent":
        return ModelResponse([TextPart(turn.text)])
    return ModelRequest([UserPromptPart(turn.text)])


def prompt_of(context: Context) -> str:
    """The prompt, with everything else that was given."""
    parts = [context.prompt] if context.prompt else []
    for title, value in (("Input", context.input), ("What came with it", context.payload)):
        if value is not None:
            parts.append(f"{title}:\n{json.dumps(value, ensure_ascii=False, indent=2)}")
    if context.missed:
        parts.append(f"This run also stands for {context.missed['count']} missed since {context.missed['since']}.")
    return "\n\n".join(parts)


def _ended_well(response: ModelResponse) -> str:
    if response.finish_reason == "length":
        raise GiveUp("The model's answer was cut off at its limit of tokens; see settings.max_tokens.")
    if response.finish_reason in {"content_filter", "error"}:
        raise GiveUp(f"The model ended its answer with {response.finish_reason!r}.")
    return (response.text or "").strip()


def _told(failure: Exception) -> str:
    return (str(failure).strip() or type(failure).__name__)[:LONGEST_SHOWN]


def _plain(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _shown(content: Any) -> Any:
    """A result as the trace shows it."""
    text = content if isinstance(content, str) else json.dumps(content)
    return content if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} …"


def _recorded(value: Any) -> Any:
    """As the desk can keep it: what is no number is nothing there, and what is nested too deep is a text."""
    text = json.dumps(value)
    try:
        return clean_json(json.loads(text, parse_constant=lambda _: None), DEEPEST - 1)
    except ValueError:
        return f"{text[:LONGEST_SHOWN]} …"
