"""Permission requests of an agent as questions to a person, with the agent's own options."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from acp import RequestError, schema

from rota.errors import Refused
from rota.executors.acp.opening import Bookmark, digest
from rota.executors.acp.story import Call, Story
from rota.model.approval import LONGEST_NAME, Answer, Option
from rota.model.executor import Desk
from rota.model.outcome import Parked
from rota.model.text import clean

LARGEST_DETAIL = 20_000
LONGEST_TITLE = 150

CANCELLED = schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))

# An answer given beforehand takes the first that approves: it holds once.
_ORDER = ("allow_once", "allow_always", "reject_once", "reject_always")


class Permissions:
    """One question at a time. The process waits for the answer for `park_after`; then `parked` is done, and the run
    waits without it. Without a bookmark the process waits for as long as it takes."""

    def __init__(
        self, desk: Desk, story: Story, mark: Callable[[Bookmark], Awaitable[None]], park_after: timedelta
    ) -> None:
        self._desk, self._story, self._mark, self._park_after = desk, story, mark, park_after
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Task[Answer]] = set()
        self._withdrawn = False
        self.bookmark: Bookmark | None = None  # of a conversation that can be gone on with
        self.parked: asyncio.Future[Parked] = asyncio.get_running_loop().create_future()
        self._asked: dict[str, int] = {}

    async def request(
        self, tool_call: schema.ToolCallUpdate, options: Sequence[schema.PermissionOption]
    ) -> schema.RequestPermissionResponse:
        call = await self._story.about(tool_call)
        offered = sorted(options, key=lambda each: _ORDER.index(each.kind))
        async with self._turn:
            if self._withdrawn or self.parked.done():
                return CANCELLED
            try:
                answer = await self._ask(call, offered)
            except Refused as refusal:
                raise RequestError(-32602, refusal.message) from refusal
        return CANCELLED if answer is None else _chosen(answer, offered)

    def withdraw(self) -> None:
        """The turn is being cancelled: nobody need answer any more."""
        self._withdrawn = True
        for task in self._waiting:
            task.cancel()

    async def _ask(self, call: Call, offered: Sequence[schema.PermissionOption]) -> Answer | None:
        """The same question has the same key in every attempt of the run, and another one each time it was
        answered: what was allowed once is allowed once."""
        about: dict[str, Any] = {"options": _options(offered), "detail": _detail(call)}
        question = f"Allow {_title(call)}?"
        mark = digest(question, about["detail"], [option.id for option in about["options"]])
        times = (self.bookmark.answered if self.bookmark else self._asked).get(mark, 0)
        about["key"] = f"{_named(call)}#{mark}.{times + 1}"
        if self.bookmark is None:
            answer = await self._wait(question, about)
            self._asked[mark] = times + 1
            return answer
        return await self._wait_or_park(self.bookmark, question, about, mark, times + 1)

    async def _wait(self, question: str, about: dict[str, Any], within: timedelta | None = None) -> Answer | None:
        """The answer, or None if the question was withdrawn or had no answer in time."""
        task = asyncio.ensure_future(self._desk.ask(question, **about))
        self._waiting.add(task)
        try:
            await asyncio.wait({task}, timeout=within.total_seconds() if within else None)
            return task.result() if task.done() and not task.cancelled() else None
        finally:
            task.cancel()
            self._waiting.discard(task)

    async def _wait_or_park(
        self, bookmark: Bookmark, question: str, about: dict[str, Any], mark: str, times: int
    ) -> Answer | None:
        await self._mark(replace(bookmark, asked=question))  # before the answer, which is newer then
        answer = await self._wait(question, about, self._park_after) if self._park_after else None
        if answer is None:
            if self._withdrawn:
                return None
            parked = await self._desk.park(question, **about)  # by its key it is the question that was asked above
            if isinstance(parked, Parked):
                self.parked.set_result(parked)
                return None
            answer = parked
        # Before the agent has it: whoever goes on after a crash here asks again rather than act on it twice.
        await self._mark(replace(bookmark, asked=None, answered={**bookmark.answered, mark: times}))
        return answer


def _title(call: Call) -> str:
    return f"“{call.title[:LONGEST_TITLE]}”" if call.title else call.tool


def _named(call: Call) -> str:
    """What a pre-approval may call it, such as `execute:npm test`."""
    return f"{call.tool[:20]}:{call.title.strip('`')}"[:LONGEST_TITLE]


def _detail(call: Call) -> dict[str, Any]:
    told = {"tool": call.tool, "kind": call.kind, **call.shown()}
    told.pop("status", None)
    fits = len(repr(told)) <= LARGEST_DETAIL
    return {name: value for name, value in told.items() if value is not None and (fits or isinstance(value, str))}


def _options(offered: Sequence[schema.PermissionOption]) -> list[Option]:
    return [
        Option(clean(each.option_id), clean(each.name)[:LONGEST_NAME] or each.kind, each.kind.startswith("allow"))
        for each in offered
    ]


def _chosen(answer: Answer, offered: Sequence[schema.PermissionOption]) -> schema.RequestPermissionResponse:
    """The option by its id, or the first of the same meaning where a new process calls it otherwise."""
    alike = [each for each in offered if each.kind.startswith("allow") == answer.approved]
    option = next((each for each in alike if each.option_id == answer.option_id), alike[0] if alike else None)
    if option is None:
        return CANCELLED
    outcome = schema.AllowedOutcome(outcome="selected", option_id=option.option_id)
    return schema.RequestPermissionResponse(outcome=outcome)
