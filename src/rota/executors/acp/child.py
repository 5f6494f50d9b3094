"""Speaks the Agent Client Protocol with one agent, in a process of its own: what it hears goes over a line to the desk.

Runs as `python child.py FD`. The first line of the socket is the brief; a line `leave` asks it to cancel the turn and
to end, as SIGTERM does and the end of the line.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
if _SOURCE not in sys.path:
    sys.path.append(_SOURCE)  # the same Rota as the worker's, wherever that was started

from rota.agent import PIECE  # noqa: E402
from rota.errors import Invalid  # noqa: E402
from rota.executors.process import Spec, start  # noqa: E402
from rota.executors.python_child import Line  # noqa: E402
from rota.model.agent_config import McpServer, missing_extra, read_acp  # noqa: E402
from rota.model.approval import Answer  # noqa: E402
from rota.model.executor import STDERR, Assignment, Desk, Turn  # noqa: E402
from rota.model.ids import ApprovalId, RunId, SessionId, UserId, WorkspaceId  # noqa: E402
from rota.model.outcome import ErrorClass, Failed, Outcome, Parked, Succeeded  # noqa: E402


class LineDesk:
    """As much of the desk as an agent of the protocol uses, at the other end of the line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def say(self, text: str, *, voice: str = "") -> None:
        kind = "stderr" if voice == STDERR else "say"
        for at in range(0, len(text), PIECE):
            self._line.send({"type": kind, "text": text[at : at + PIECE]})

    async def tool(self, name: str, data: Mapping[str, Any]) -> None:
        self._line.send({"type": "noted", "name": name, "data": data})

    async def usage(self, unit: str, amount: float) -> None:
        self._line.send({"type": "usage", "unit": unit, "amount": amount})

    async def checkpoint(self, data: bytes) -> None:
        await self._request({"type": "checkpoint", "data": base64.b64encode(data).decode()})

    async def ask(self, question: str, **about: Any) -> Answer:
        return _answer(await self._request(_question("ask", question, **about)))

    async def park(self, question: str, **about: Any) -> Answer | Parked:
        answer = await self._request(_question("park", question, **about))
        return Parked(answer["parked"]) if "parked" in answer else _answer(answer)

    async def _request(self, message: Mapping[str, Any]) -> Any:
        try:
            return await self._line.request(message)
        except RuntimeError as refusal:
            raise Invalid(str(refusal)) from refusal


class LeavingLine(Line):
    """Hears all the time, and calls `leave` when it is told to or when nobody is left at the other end."""

    def hear(self, leave: Callable[[], object]) -> None:
        self._leave = leave
        self._begin_to_listen()

    def _listen(self) -> None:
        for line in self._answers:
            message = json.loads(line)
            if "leave" in message:
                self._leave()
            else:
                self._hand_out(message)
        self._leave()


def _question(how: str, question: str, *, options: Any, detail: Any, key: str | None) -> dict[str, Any]:
    told = [{"id": each.id, "label": each.label, "approves": each.approves} for each in options]
    return {"type": how, "question": question, "options": told, "detail": detail, "key": key}


def _answer(told: Mapping[str, Any]) -> Answer:
    by = told["answered_by"]
    return Answer(
        ApprovalId(told["approval_id"]), told["option_id"], told["approved"], told["text"], UserId(by) if by else None
    )


def assignment_of(told: Mapping[str, Any], config: Mapping[str, Any]) -> Assignment:
    """What the worker has told as JSON."""
    checkpoint, answer = told["checkpoint"], told["answer"]
    return Assignment(
        workspace_id=WorkspaceId(told["workspace_id"]),
        run_id=RunId(told["run_id"]),
        session_id=SessionId(told["session_id"]),
        attempt=told["attempt"],
        source=told["source"],
        slot=None,
        missed=told["missed"],
        payload=told["payload"],
        config=config,
        instructions=told["instructions"],
        prompt=told["prompt"],
        input=told["input"],
        transcript=[Turn(turn["speaker"], turn["text"]) for turn in told["transcript"]],
        timeout=timedelta(seconds=told["timeout_seconds"]),
        idempotency_key=told["idempotency_key"],
        directory=Path(told["directory"]),
        checkpoint=None if checkpoint is None else base64.b64decode(checkpoint),
        answer=_answer(answer) if answer else None,
    )


async def work(brief: Mapping[str, Any], desk: Desk) -> Outcome:
    """One turn of the agent, from its start until nothing of it is left."""
    gc.disable()  # nothing that an import makes is garbage
    try:
        from rota.executors.acp.attempt import Attempt  # noqa: PLC0415 - it needs the library, which may be missing
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "acp":
            raise
        return Failed(ErrorClass.EXECUTOR_ERROR, f"executor: {missing_extra('acp')}", retryable=False)
    finally:
        gc.enable()
    assignment, config = assignment_of(brief["assignment"], brief["config"]), read_acp(brief["config"])
    grace, politeness = timedelta(seconds=brief["grace"]), timedelta(seconds=brief["politeness"])
    spec = Spec(config.argv, brief["env"], assignment.directory.resolve(), config.limits, grace)
    servers = [McpServer(**server) for server in brief["servers"]]
    try:
        program = start(spec)
    except OSError as shortage:
        return Failed(ErrorClass.EXECUTOR_ERROR, f"cannot prepare a process: {shortage}")
    return await Attempt(assignment, config, desk, spec, servers=servers, politeness=politeness).attend(program)


async def main(line: LeavingLine) -> None:
    brief = line.receive()
    loop, working = asyncio.get_running_loop(), asyncio.create_task(work(brief, LineDesk(line)))  # type: ignore[arg-type]
    asked = False

    def leave() -> None:
        """Once: whoever is asked twice would make haste, and the agent has its time."""
        nonlocal asked
        if not asked:
            asked = True
            working.cancel()

    loop.add_signal_handler(signal.SIGTERM, leave)
    line.hear(lambda: loop.call_soon_threadsafe(leave))
    match await working:
        case Succeeded():
            line.send({"type": "succeeded"})
        case Failed(error_class, detail, retryable):
            line.send({"type": "failed", "error_class": error_class, "detail": detail, "retryable": retryable})


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        asyncio.run(main(LeavingLine(int(sys.argv[1]))))
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
    os._exit(0)  # the line is still being heard
