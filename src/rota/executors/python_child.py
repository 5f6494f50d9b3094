"""Runs one Python agent in a process of its own: the agent's code is imported here and never in a worker.

A socket leads to the desk: lines of JSON, first the assignment, then the agent's messages. One with an `id`
is answered by `{"id", "result"}` or `{"id", "error"}`. `done` is sent once the function has returned.
"""

from __future__ import annotations

import binascii
import gc
import importlib
import json
import os
import signal
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Generator, Mapping
    from importlib.machinery import ModuleSpec
    from typing import Any, NoReturn

_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if _SOURCE not in sys.path:
    sys.path.append(_SOURCE)  # the same Rota as the worker's, wherever that was started

from rota.agent import (  # noqa: E402
    LONGEST_MESSAGE,
    Answer,
    Context,
    GiveUp,
    NotApproved,
    Parked,
    Said,
    TryAgain,
    Turn,
    Unusable,
)

GROUP = "rota.agents"
MOST_BRACKETS = 60  # a message with fewer cannot be nested too deep
loaded_ahead: frozenset[str] = frozenset()  # modules that a new Python would not have, if a nursery has loaded them
_GIVEN = (
    *("prompt", "input", "payload", "instructions", "source", "missed"),
    *("attempt", "idempotency_key", "session_id", "run_id", "automation_id"),
)


class Line:
    """The child's end of the socket. Messages are whole and in order, from whichever thread."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._answers = open(fd, "rb", closefd=False)  # noqa: SIM115 - open as long as the process
        self._lock = threading.Lock()
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._last_id = 0
        self._listening: threading.Thread | None = None

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._answers.readline())
        return message

    def send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        if len(line) > LONGEST_MESSAGE:
            raise ValueError(f"a message of {len(line):,} bytes is too long: {LONGEST_MESSAGE:,} is the most")
        if line.count(b"[") + line.count(b"{") > MOST_BRACKETS:
            _check_depth(message)
        with self._lock:
            while line:
                line = line[os.write(self._fd, line) :]

    def request(self, message: Mapping[str, Any]) -> Reply:
        from concurrent.futures import Future  # noqa: PLC0415 - only for agents that ask

        future: Future[Any] = Future()
        self.send({**message, "id": self._expect(future)})
        return Reply(future)

    def _expect(self, future: concurrent.futures.Future[Any]) -> int:
        with self._lock:
            self._begin_to_listen()
            self._last_id += 1
            self._waiting[self._last_id] = future
            return self._last_id

    def _begin_to_listen(self) -> None:
        if self._listening is None:
            self._listening = threading.Thread(target=self._listen, daemon=True)
            self._listening.start()

    def _listen(self) -> None:
        for line in self._answers:
            self._hand_out(json.loads(line))

    def _hand_out(self, answer: dict[str, Any]) -> None:
        future = self._waiting.pop(answer["id"])
        if not future.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        if "error" in answer:
            future.set_exception(RuntimeError(answer["error"]))
        else:
            future.set_result(answer.get("result"))


class Reply:
    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio  # noqa: PLC0415 - who awaits has loaded it

        return asyncio.wrap_future(self._future).__await__()

    def result(self, timeout: float | None = None) -> Any:
        return self._future.result(timeout)


def main(fd: int) -> int:
    line = Line(fd)
    brief = line.receive()
    signal.signal(signal.SIGTERM, _leave)
    try:
        result = _call(_find(brief["agent"]), _context(brief["assignment"], line))
        last_message = _as_text(result, brief["agent"])
    except Unusable as failure:
        line.send({"type": "unusable", "detail": str(failure)})
    except Parked:
        return 0
    except NotApproved as refusal:
        told = {"type": "error", "detail": str(refusal), "retryable": False, "error_class": "approval_refused"}
        line.send(told)
    except (GiveUp, TryAgain) as failure:
        again = isinstance(failure, TryAgain)
        line.send({"type": "error", "detail": str(failure) or type(failure).__name__, "retryable": again})
    except Exception as failure:  # the agent's code may raise anything
        _print_traceback(failure)
        line.send({"type": "error", "detail": _tell(failure)})
    else:
        _finish(line, last_message)
        return 0
    return 1


def _as_text(result: Any, agent: Mapping[str, Any]) -> str | None:
    if isinstance(result, str) or result is None:
        return result
    returned = f"{agent['function'] or agent['entry_point']!r} returned a {type(result).__name__}"
    if hasattr(result, "__next__") or hasattr(result, "__anext__"):
        told = f"{returned}, of which nothing is done before somebody asks for its items."
        raise GiveUp(f"{told} Say them, or return a list of them: where a function has yield, nothing of it runs.")
    try:
        return json.dumps(result, default=str)
    except Exception as failure:  # also of what its own __str__ raises
        told = f"{returned} that cannot be written as JSON: {_tell(failure)[:500]}."
        raise GiveUp(f"{told} Return None, text, or what json.dumps() takes.") from failure


def _finish(line: Line, message: str | None) -> None:
    if message and not isinstance(message, Said):
        Context(line=line).say(message)
    line.send({"type": "done", "summary": message[:10_000] if message else None})


def _leave(_number: int, _frame: object) -> NoReturn:
    """Let `finally` and `async with` do their work."""
    sys.exit(128 + signal.SIGTERM)


def _call(function: Callable[[Context], Any], context: Context) -> Any:
    result = function(context)
    if not hasattr(result, "__await__"):
        return result
    import asyncio  # noqa: PLC0415 - takes longer than everything else here, and not every agent needs it

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited())


def _context(assignment: Mapping[str, Any], line: Line) -> Context:
    from datetime import datetime  # noqa: PLC0415

    slot, answer, checkpoint = assignment["slot"], assignment["answer"], assignment["checkpoint"]
    return Context(
        **{name: assignment[name] for name in _GIVEN},
        slot=datetime.fromisoformat(slot) if slot else None,
        last_checkpoint=None if checkpoint is None else binascii.a2b_base64(checkpoint),
        resumed_with=Answer(**answer) if answer else None,
        transcript=[Turn(turn["speaker"], turn["text"]) for turn in assignment["transcript"]],
        line=line,
    )


def _check_depth(message: Mapping[str, Any]) -> None:
    """By the measure of the desk, which would take it for nonsense."""
    from rota.model.text import clean_json  # noqa: PLC0415 - only for who sends much

    clean_json(message)


def _find(agent: Mapping[str, Any]) -> Callable[[Context], Any]:
    if agent["path"]:
        sys.path.insert(0, agent["path"])
        _forget_namesakes(agent["path"])
    target = agent["function"] or _installed(agent["entry_point"])
    module, _, name = target.partition(":")
    found = _import(module)
    for part in name.split("."):
        found = _attribute(found, part, target)
    if not callable(found):
        raise Unusable(f"{target!r} is not a function")
    function: Callable[[Context], Any] = found if agent.get("given") is None else found(agent["given"])
    return function


def _forget_namesakes(path: str) -> None:
    """An agent's own modules come first, as in a new Python: also `copy.py`, although a nursery has loaded `copy`."""
    listed = os.listdir(path) if os.path.isdir(path) else []
    for name in loaded_ahead.intersection(each.partition(".")[0] for each in listed):
        if _origin(_would_be_found(name)) not in ("", _origin(getattr(sys.modules[name], "__spec__", None))):
            for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[each]


def _would_be_found(name: str) -> ModuleSpec | None:
    return next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, None))), None)


def _origin(spec: ModuleSpec | None) -> str:
    """The file itself: a path to installed packages may be a link."""
    return os.path.realpath(spec.origin) if spec is not None and spec.origin else ""


def _import(module: str) -> Any:
    gc.disable()  # nothing that an import makes is garbage: large libraries load a seventh faster
    try:
        return importlib.import_module(module)
    except Exception as failure:
        _print_traceback(failure)
        raise Unusable(f"the module {module!r} cannot be imported: {_tell(failure)}") from failure
    finally:
        gc.enable()


def _attribute(owner: Any, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as missing:
        raise Unusable(f"there is no {name!r} in {owner.__name__!r}, so {target!r} cannot run") from missing


def _installed(name: str) -> str:
    from rota.executors.named import installed  # noqa: PLC0415 - with a package that other agents need not load

    return installed(name, GROUP)


def _print_traceback(failure: Exception) -> None:
    """From where the agent's code begins: how it was called is the same for all."""
    import traceback  # noqa: PLC0415 - when all goes well nobody waits for it

    shown = failure.__traceback__
    while shown is not None and _calls_agents(shown.tb_frame.f_code.co_filename):
        shown = shown.tb_next
    traceback.print_exception(failure.with_traceback(shown))


def _calls_agents(file: str) -> bool:
    libraries = (os.path.dirname(each.__file__ or "") for each in (importlib, sys.modules.get("asyncio", importlib)))
    return file.startswith("<frozen importlib") or os.path.dirname(file) in (os.path.dirname(__file__), *libraries)


def _tell(failure: BaseException) -> str:
    try:
        message = str(failure)
    except Exception:  # its own __str__ may fail too
        message = ""
    return f"{type(failure).__name__}: {message}"[:2000] if message else type(failure).__name__


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
