"""What a Python agent imports: the mark for its function, what it is given to work with, and how it declines.

from rota.agent import Context, agent

@agent
async def digest(context: Context) -> str:
    context.say("Reading the inbox …")
    return f"Nothing new for {context.prompt!r}"
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False  # as typing has it; an agent's start should not wait for that module
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from datetime import datetime
    from os import PathLike
    from typing import Any, Protocol, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

    class Line(Protocol):
        """The way to the desk."""

        def send(self, message: Mapping[str, Any]) -> None: ...

        def request(self, message: Mapping[str, Any]) -> Reply: ...

    class Reply(Protocol):
        """The desk's answer: `await` it, or call `result()` where there is no event loop."""

        def __await__(self) -> Generator[Any, None, Any]: ...

        def result(self, timeout: float | None = None) -> Any: ...


PIECE = 65536
LONGEST_MESSAGE = 4_000_000


class GiveUp(Exception):
    """The agent cannot do it, and trying again would not help."""


class Refuse(GiveUp):
    """The agent will not do it."""


class NotApproved(GiveUp):
    """Somebody refused it; unless the agent knows another way, its run fails `approval_refused`."""


class TryAgain(Exception):
    """The agent could not do it now; another attempt may."""


class Unusable(Exception):
    """There is no such agent here."""


class Parked(BaseException):
    """The agent waits for an answer and its process ends here. Not to be caught: `finally` and `with` do their work."""


class Said(str):
    """A last message that was said already."""


class Option:
    """One way to answer a question; `approves` tells whether the agent may go ahead."""

    __slots__ = ("approves", "id", "label")

    def __init__(self, id: str, label: str, *, approves: bool) -> None:  # noqa: A002 - as the API calls it
        self.id, self.label, self.approves = id, label, approves


class Answer:
    """What somebody answered; true if the agent may go ahead. Nobody is named when it was approved beforehand."""

    __slots__ = ("answered_by", "approval_id", "approved", "option_id", "text")

    def __init__(
        self, approval_id: str, option_id: str, approved: bool, text: str | None = None, answered_by: str | None = None
    ) -> None:
        self.approval_id, self.option_id, self.approved = approval_id, option_id, approved
        self.text, self.answered_by = text, answered_by

    def __bool__(self) -> bool:
        return self.approved

    def required(self) -> Answer:
        """Itself, if it approves; otherwise the run ends here, `approval_refused`."""
        if not self.approved:
            raise NotApproved(self.text or f"The answer was “{self.option_id}”.")
        return self


def agent(function: Function) -> Function:
    """Mark a function as an agent. It takes a `Context`, may be `async`, returns None or its last message."""
    if not callable(function):
        raise TypeError(f"@agent stands before a function, not before {function!r}")
    return function


class Turn:
    """One line of the transcript so far."""

    __slots__ = ("speaker", "text")

    def __init__(self, speaker: str, text: str) -> None:
        self.speaker, self.text = speaker, text

    def __repr__(self) -> str:
        return f"Turn({self.speaker!r}, {self.text!r})"


class Context:
    """One attempt: what is asked, and the desk. `idempotency_key` is the same for every attempt of the run.

    Made by hand, `Context(prompt="…")`, it prints what would go to the desk: an agent can be tried anywhere.
    """

    def __init__(
        self,
        *,
        prompt: str | None = None,
        input: Any = None,  # noqa: A002 - as an automation calls it
        payload: Any = None,
        instructions: str = "",
        source: str = "run_now",
        slot: datetime | None = None,
        missed: Mapping[str, Any] | None = None,
        transcript: Sequence[Turn] = (),
        attempt: int = 1,
        idempotency_key: str = "",
        session_id: str = "",
        run_id: str = "",
        automation_id: str | None = None,
        last_checkpoint: bytes | None = None,
        resumed_with: Answer | None = None,
        line: Line | None = None,
    ) -> None:
        self.prompt, self.input, self.payload, self.instructions = prompt, input, payload, instructions
        self.source, self.slot, self.missed = source, slot, missed
        self.transcript, self.attempt = transcript, attempt
        self.idempotency_key, self.session_id, self.run_id = idempotency_key, session_id, run_id
        self.automation_id, self.last_checkpoint, self.resumed_with = automation_id, last_checkpoint, resumed_with
        self.spoke = False
        self._line = line or _Printer()

    def say(self, text: str) -> Sent:
        """Stream a piece of text into the transcript."""
        text = str(text)
        self.spoke = self.spoke or bool(text)
        for at in range(0, len(text), PIECE):
            self._line.send({"type": "say", "text": text[at : at + PIECE]})
        return Sent()

    def tool(self, name: str, /, **data: Any) -> Sent:
        """Record the use of a tool."""
        self._line.send({**data, "type": "tool", "name": _named(name)})
        return Sent()

    def usage(self, unit: str, amount: float) -> Sent:
        """Charge the account: `usage("tokens", 1200)`."""
        if not 0 <= amount < float("inf"):
            raise ValueError(f"an amount of usage is a number of 0 or more, not {amount!r}")
        self._line.send({"type": "usage", "unit": _named(unit), "amount": amount})
        return Sent()

    def checkpoint(self, data: bytes) -> Reply:
        """Keep this for the attempt that goes on from here, in place of what was kept before. `await` tells when it is
        stored; without an event loop, `.result()` does."""
        from base64 import b64encode  # noqa: PLC0415 - only for agents that need it

        return self._line.request({"type": "checkpoint", "data": b64encode(data).decode()})

    def ask(
        self,
        question: str,
        *,
        options: Sequence[Option] = (),
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Asked:
        """Ask a person and wait in this process: `await` it, or call `.result()` where there is no event loop."""
        return Asked(self._line.request(_question("ask", question, options, detail, key)))

    def park(
        self,
        question: str,
        *,
        options: Sequence[Option] = (),
        detail: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Asked:
        """Ask a person, and end the process until there is an answer. Then the function is called again, with
        `last_checkpoint` and `resumed_with`; asked again with its key, the question has its answer at once."""
        return Asked(self._line.request(_question("park", question, options, detail, key)))

    def message(self, body: Any, *, to: str = "all", key: str | None = None) -> Reply:
        """Send a message to another role, to the person (`user`), or to all."""
        return self._line.request({"type": "message", "body": body, "to": to, "key": key})

    def inbox(self, *, after: int = 0, wait: float = 0) -> Reply:
        """Messages that were not acknowledged, oldest first; waits so many seconds for the first."""
        return self._line.request({"type": "inbox", "after": after, "wait": wait})

    def ack(self, *ids: int) -> Reply:
        """Take messages off the inbox for good."""
        return self._line.request({"type": "ack", "ids": list(ids)})

    def task(self, *tasks: Mapping[str, Any]) -> Reply:
        """Add tasks to the session: each with `role`, `prompt` or `input`, and `key`, `depends_on` as needed."""
        return self._line.request({"type": "task", "tasks": [dict(each) for each in tasks]})

    def event(self, name: str, data: Any = None, *, key: str | None = None) -> Reply:
        """Post a named event, which fires the triggers that wait for it: `{"runs": […]}`."""
        return self._line.request({"type": "event", "name": name, "data": data, "key": key})

    def artifact(
        self,
        name: str | None = None,
        content: bytes | str | None = None,
        *,
        path: str | PathLike[str] | None = None,
        uri: str | None = None,
        media_type: str | None = None,
    ) -> Reply:
        """Keep a content, or a file of the working directory (`path`, which may be large), or tell of a `uri`."""
        from base64 import b64encode  # noqa: PLC0415 - only for agents that need it

        data = content.encode() if isinstance(content, str) else content
        file = None if path is None else str(path)
        name = name or (file.rpartition("/")[2] if file else None)
        given = {"name": name, "path": file, "uri": uri, "media_type": media_type}
        encoded = None if data is None else b64encode(data).decode()
        return self._line.request({"type": "artifact", "data": encoded, **given})

    def remember(self, key: str, value: Any, *, ttl: str | None = None, confidence: float | None = None) -> Reply:
        """Keep a value for later runs of the automation, for a time (`"7d"`) or for good."""
        given = {"key": key, "value": value, "ttl": ttl, "confidence": confidence}
        return self._line.request({"type": "remember", **given})

    def recall(self, key: str) -> Reply:
        """What an earlier run remembered: `{"value": …}`, or None if nothing, or no longer."""
        return self._line.request({"type": "recall", "key": key})

    def forget(self, key: str) -> Reply:
        """Forget what is under a key."""
        return self._line.request({"type": "forget", "key": key})


class Asked:
    """A question on its way; its result is the `Answer`."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __await__(self) -> Generator[Any, None, Answer]:
        return _answer((yield from self._reply.__await__()))

    def result(self, timeout: float | None = None) -> Answer:
        return _answer(self._reply.result(timeout))


def _question(
    kind: str, question: str, options: Sequence[Option], detail: Mapping[str, Any] | None, key: str | None
) -> dict[str, Any]:
    given = [{"id": each.id, "label": each.label, "approves": each.approves} for each in options]
    return {"type": kind, "question": question, "options": given or None, "detail": detail, "key": key}


def _answer(told: Mapping[str, Any]) -> Answer:
    if "parked" in told:
        raise Parked(told["parked"])
    return Answer(**told)


class Sent:
    """It is on its way; `await` only lets others go on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _Printer:
    """What is said as it is said; all else on lines of its own."""

    def __init__(self) -> None:
        self._within_a_line = False

    def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "say":
            text = message["text"]
        else:
            text = ("\n" if self._within_a_line else "") + json.dumps(message) + "\n"
        self._within_a_line = not text.endswith("\n")
        sys.stdout.write(text)

    def request(self, message: Mapping[str, Any]) -> Reply:
        raise RuntimeError(f"nobody is at the desk to answer {message['type']!r}: this agent was not started by Rota")


def _named(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ValueError(f"a name is a text of 1 to 200 characters, not {name!r}")
    return name
