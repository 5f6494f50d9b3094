"""How each kind of executor is made to behave: one body of Python for those that can run it."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, Protocol

import pytest

from rota.executors.acp import AcpExecutor
from rota.executors.command import CommandExecutor
from rota.executors.http import HttpExecutor
from rota.executors.kubernetes import KubernetesExecutor
from rota.executors.langgraph import LanggraphExecutor
from rota.executors.llm import LlmExecutor
from rota.executors.python import PythonExecutor
from rota.model.executor import Executor
from support import clusters
from support.http_agent import END, Answer, Request, Server, chunk, chunked, line, response
from support.stand_ins import RecordingDesk

FLOOD, SMALL_FLOOD = 1_000_000_000, 199_000_000
EVERY_KIND = bool(os.environ.get("ROTA_TEST_EVERY_KIND"))  # shows everything itself, however long it takes

GRAPHS = "from langchain_core.runnables import RunnableConfig\nfrom langgraph.graph import START, StateGraph\nfrom typing import TypedDict\n"
IMPORTS = "import json, os, signal, subprocess, sys, time\n"

FLOODING = """
line = b"the same line again and again\\n" * 10_000
for _ in range({} // len(line)):
    os.write(1, line) == len(line) or sys.exit("a short write")
usage("tokens", 7)
"""

FORKING = """
        def fork(prepare=lambda: None):
            reader, writer = os.pipe()
            if os.fork() == 0:
                prepare()
                os.write(writer, str(os.getpid()).encode())
                while True:
                    time.sleep(600)
            return os.read(reader, 20).decode()

        def leave_twice():
            os.setsid()
            if os.fork():
                os._exit(0)

        pids = [
            str(os.getpid()),
            fork(),
            fork(os.setsid),
            fork(leave_twice),
            fork(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
        ]
        open("pids.new", "w").write(" ".join(pids))
        os.rename("pids.new", "pids")
        while True:
            signal.pause()
"""

BEHAVIOURS = {
    "completes": 'say("A poem.")',
    "streams": """
        say("first")
        open("go").read()
        say(" last")
    """,
    "fails": 'raise ValueError("no ink")',
    "hangs": """
        open("pids.new", "w").write(str(os.getpid()))
        os.rename("pids.new", "pids")
        signal.pause()
    """,
    "ignores TERM": """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("pids.new", "w").write(str(os.getpid()))
        os.rename("pids.new", "pids")
        while True:
            time.sleep(600)
    """,
    "forks": FORKING,
    "forks and ignores TERM": f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        {FORKING}
    """,
    "leaves a child": """
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("pids.new", "w").write(str(child.pid))
        os.rename("pids.new", "pids")
        child.returncode = 0
    """,
    "floods": FLOODING.format(FLOOD),
    "floods a little": FLOODING.format(SMALL_FLOOD),
    "dies": "os.kill(os.getpid(), signal.SIGSEGV)",
    "shows its key": 'say(f"{key} {attempt}")',
    "shows its environment": "say(json.dumps(dict(os.environ)))",
    "shows its directory": "say(os.getcwd() + oct(os.stat('.').st_mode & 0o777))",
    "closes stdout": """
        os.close(1)
        usage("tokens", 7) if kind == "python" else None
        os.open("/dev/null", os.O_WRONLY)
    """,
    "writes garbage": """
        sys.stdout.flush()
        os.write(1, bytes(range(256)) * 50 + "é".encode()[:1])
    """,
    "writes in halves": """
        os.write(1, "half of é".encode()[:-1])
        open("go").read()
        os.write(1, "é".encode()[1:])
    """,
    "reports": """
        say("Looking …")
        tool("search", query="rhymes")
        usage("tokens", 12)
    """,
    "uses too much memory": "bytearray(2_000_000_000)",
}


class Kind(Protocol):
    """One kind under test. `crowd` is how many of its agents are started at once.

    With `runs_as`, its processes are started, heard and stopped by the code of another kind: what concerns nothing else
    is shown there. `left_to_soak` is what others show by much the same code, and takes a second each time.
    """

    name: str
    crowd: int

    def executor(self, grace: timedelta) -> Executor: ...

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        """The configuration of an agent that behaves so."""
        ...

    def missing(self) -> tuple[Mapping[str, Any], str]:
        """The configuration of an agent that doesn't exist, and the word that its failure names."""
        ...


def describe_tool_use(kind: Kind, name: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
    """How the use of a tool stands in the log."""
    how = getattr(kind, "describe_tool_use", None)
    found: tuple[Any, ...] = how(name, data) if how else ("tool", name, data)
    return found


def events(kind: Kind, desk: RecordingDesk) -> list[tuple[Any, ...]]:
    """What the agent itself told, without what its kind adds."""
    own = getattr(kind, "own", lambda _: False)
    return [each for each in desk.events if not own(each)]


class Command:
    name = "command"
    crowd = 20
    prelude = """
        kind, key, attempt = "command", os.environ["ROTA_IDEMPOTENCY_KEY"], os.environ["ROTA_ATTEMPT"]
        def event(**fields):
            print(json.dumps(fields), flush=True)
        def say(text):
            sys.stdout.write(text)
            sys.stdout.flush()
            text.startswith("Looking") and print(flush=True)
        def tool(name, **data):
            event(type="tool", name=name, **data)
        def usage(unit, amount):
            event(type="usage", unit=unit, amount=amount)
    """

    def executor(self, grace: timedelta) -> Executor:
        return CommandExecutor(grace=grace)

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        body = dedent(BEHAVIOURS.get(how, how))
        return {"argv": [sys.executable, "-c", IMPORTS + dedent(self.prelude) + body], **config}

    def missing(self) -> tuple[Mapping[str, Any], str]:
        return {"argv": ["no-such-program-here"]}, "no-such-program-here"


class Python:
    name = "python"
    crowd = 20
    prelude = """
        kind, key, attempt = "python", context.idempotency_key, context.attempt
        say, tool, usage = context.say, context.tool, context.usage
    """

    def executor(self, grace: timedelta) -> Executor:
        return PythonExecutor(grace=grace)

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        directory.mkdir(exist_ok=True, parents=True)
        body = indent(dedent(self.prelude) + dedent(BEHAVIOURS.get(how, how)), "    ")
        (directory / "behaving.py").write_text(f"{IMPORTS}\nasync def agent(context):\n{body}\n")
        return {"function": "behaving:agent", "path": str(directory), **config}

    def missing(self) -> tuple[Mapping[str, Any], str]:
        return {"function": "no_such_module_here:agent"}, "no_such_module_here"


class Http:
    """Its agent lives elsewhere: what is promised about processes and directories does not concern it."""

    name = "http"
    crowd = 20

    def executor(self, grace: timedelta) -> Executor:
        return HttpExecutor(grace=grace, allow=["127.0.0.1:*"])

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        answers: dict[str, Answer | bytes] = {
            "completes": _completes,
            "streams": Waiting(directory.with_name("session"), b"first", b" last"),
            "fails": _fails,
            "floods": _floods,
            "floods a little": _floods,
            "hangs": Hanging(directory.with_name("session")),
            "shows its key": _shows_its_key,
            "writes garbage": response(body=bytes(range(256)) * 50 + "é".encode()[:1]),
            "writes in halves": Waiting(directory.with_name("session"), "half of é".encode()[:-1], "é".encode()[1:]),
            "reports": _reports,
        }
        answer = answers.get(how)
        if answer is None:
            pytest.skip("says nothing about an agent that lives elsewhere")
        return {"url": Server(answer).url, **config}

    def missing(self) -> tuple[Mapping[str, Any], str]:
        return {"url": "http://metadata.google.internal/"}, "metadata.google.internal"


class Acp:
    """Its agent writes the protocol by hand: it starts in no time, and shows that others than our library are heard."""

    name = "acp"
    left_to_soak = frozenset(
        {
            "test_what_failed_is_in_the_transcript",
            "test_an_agent_that_hangs_is_gone_when_the_cancellation_arrives",
            "test_an_agent_that_dies_by_a_signal_has_failed_with_its_name",
            "test_the_loop_goes_on_turning_during_a_flood",
            "test_a_long_prompt_that_nobody_reads_does_not_hold_up_the_agent",
            "test_an_agent_cannot_use_more_memory_than_it_may",
            "test_a_machine_without_room_for_the_directory_is_tried_again",
            "test_many_agents_work_at_once",
        }
    )
    crowd = 20 if EVERY_KIND else 2  # each loads the protocol's library
    prelude = """
        import traceback
        kind, key, attempt = "acp", os.environ["ROTA_IDEMPOTENCY_KEY"], os.environ["ROTA_ATTEMPT"]
        def send(**message):
            data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n"
            while data:
                data = data[os.write(1, data):]
        def update(what, **fields):
            send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": what, **fields}})
        def say(text):
            update("agent_message_chunk", content={"type": "text", "text": text})
        def tool(name, **data):
            update("tool_call", toolCallId="1", title=name, kind=name, status="completed", rawInput=data)
        turn = {"stopReason": "end_turn"}
        def usage(unit, amount):
            if at_once:
                update("usage_update", used=1, size=2, cost={"amount": amount, "currency": "EUR"})
            turn["usage"] = {"totalTokens": amount, "inputTokens": amount, "outputTokens": 0}
        def answer(method):
            if method == "session/prompt":
                work()
            return {
                "initialize": {"protocolVersion": 1}, "session/new": {"sessionId": "s"}, "session/prompt": turn,
            }[method]
        def serve():
            for line in sys.stdin.buffer:
                message = json.loads(line)
                try:
                    send(id=message["id"], result=answer(message["method"]))
                except Exception as failure:
                    traceback.print_exc()
                    told = f"{type(failure).__name__}: {failure}".removesuffix(": ")
                    error = {"code": -32603, "message": "Internal error", "data": {"details": told}}
                    send(id=message["id"], error=error)
    """

    def executor(self, grace: timedelta) -> Executor:
        return AcpExecutor(grace=grace)

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        if how in {"closes stdout", "writes garbage", "writes in halves"}:
            pytest.skip("its standard output is a line to its client: see test_acp.py")
        body = indent(dedent(BEHAVIOURS.get(how, how)), "    ")
        at_once = f"at_once = {how not in BEHAVIOURS}\n"  # tokens are told at the end of a turn, money before
        program = f"{IMPORTS}{at_once}{dedent(self.prelude)}def work():\n    global key, attempt\n{body}\nserve()\n"
        return {"argv": [sys.executable, "-c", program], **config}

    def missing(self) -> tuple[Mapping[str, Any], str]:
        return {"argv": ["no-such-program-here"]}, "no-such-program-here"

    def describe_tool_use(self, name: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
        return ("tool", name, {"title": name, "status": "completed", "input": data})


class Llm:
    """Its behaviours are those of its model, a function in the child: what that says is what it yields."""

    name = "llm"
    runs_as = "python"
    crowd = 20 if EVERY_KIND else 2  # each loads large libraries
    prelude = """
        kind, key, attempt = "llm", os.environ["ROTA_IDEMPOTENCY_KEY"], os.environ["ROTA_ATTEMPT"]
    """

    def executor(self, grace: timedelta) -> Executor:
        return LlmExecutor(grace=grace)

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        if how in {"reports", "floods", "floods a little"}:
            pytest.skip("What a model uses, its provider tells: see test_llm_wire.py")
        directory.mkdir(exist_ok=True, parents=True)
        said = re.sub(r"\bsay\(", "yield (", dedent(BEHAVIOURS.get(how, how)))
        body = indent(f"{dedent(self.prelude)}{said}\nyield ''", "    ")
        (directory / "behaving.py").write_text(f"{IMPORTS}\nasync def model(messages, info):\n{body}\n")
        return {"model": "function:behaving:model", "path": str(directory), **config}

    def missing(self) -> tuple[Mapping[str, Any], str]:
        return {"model": "no-such-provider:model"}, "no-such-provider"


class Langgraph:
    """Its behaviours are those of a node."""

    name = "langgraph"
    runs_as = "python"
    crowd = 20 if EVERY_KIND else 2  # each loads large libraries
    prelude = """
        context = config["configurable"]["rota"]
        kind, key, attempt = "langgraph", context.idempotency_key, context.attempt
        say, tool, usage = context.say, context.tool, context.usage
    """

    def executor(self, grace: timedelta) -> Executor:
        return LanggraphExecutor(grace=grace)

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        directory.mkdir(exist_ok=True, parents=True)
        body = indent(dedent(self.prelude) + dedent(BEHAVIOURS.get(how, how)), "    ")
        node = f"async def node(state, config: RunnableConfig):\n{body}\n"
        made = 'graph = StateGraph(TypedDict("State", {"words": str})).add_node(node).add_edge(START, "node")\n'
        (directory / "behaving.py").write_text(f"{IMPORTS}{GRAPHS}{node}{made}")
        return {"graph": "behaving:graph", "path": str(directory), **config}

    def missing(self) -> tuple[Mapping[str, Any], str]:
        return {"graph": "no_such_module_here:graph"}, "no_such_module_here"

    def own(self, event: tuple[Any, ...]) -> bool:
        return event[0] == "checkpoint" or event[:2] == ("tool", "node")


class Kubernetes:
    """Its agent is a pod, which outlives its worker, has a home of its own, and whose log is known line by line."""

    name = "kubernetes"
    crowd = 10
    longest_prompt = 900_000
    prelude = Command.prelude.replace(
        """
            sys.stdout.write(text)
            sys.stdout.flush()
            text.startswith("Looking") and print(flush=True)
""",
        """
            event(type="say", text=text)
""",
    ).replace('kind, key, attempt = "command"', 'kind, key, attempt = "kubernetes"')

    def executor(self, grace: timedelta) -> Executor:
        return KubernetesExecutor(
            kubeconfig=clusters.shared().kubeconfig, grace=grace, patience=timedelta(seconds=0.05)
        )

    def behave(self, how: str, directory: Path, **config: Any) -> Mapping[str, Any]:
        if how in {"shows its environment", "shows its directory", "uses too much memory", "writes in halves"}:
            pytest.skip("A pod has a home and limits of its own, and its log has whole lines: see test_kubernetes.py")
        most = 200_000_000 if EVERY_KIND else 10_000_000  # a kubelet keeps 10 MB of a log
        flood = {"floods": most, "floods a little": most // 2}.get(how)
        body = dedent(FLOODING.format(flood) if flood else BEHAVIOURS.get(how, how))
        program = IMPORTS + dedent(self.prelude) + body
        place = {"working_dir": str(directory.with_name("session"))}
        return {"image": "agents/python:3", "command": [sys.executable, "-c", program], **place, **config}

    def missing(self) -> tuple[Mapping[str, Any], str]:
        return {"image": "missing/no-such-agent:1"}, "no-such-agent"


class Waiting:
    """Says something, waits at a pipe, and says the rest."""

    def __init__(self, directory: Path, first: bytes, last: bytes) -> None:
        self._gate, self._first, self._last = directory / "go", first, last

    async def __call__(self, _: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked("text/plain") + chunk(self._first))
        await asyncio.to_thread(self._gate.read_bytes)
        writer.write(chunk(self._last) + END)


class Hanging:
    """Says nothing, for ever; notes that it was asked, and that whoever asked has gone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self._directory.mkdir(exist_ok=True)
        (self._directory / "asked").touch()
        try:
            while not writer.transport.is_closing():  # noqa: ASYNC110 — there is no event for it
                await asyncio.sleep(0.005)
        finally:
            (self._directory / "left").touch()


async def _completes(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(response(body="A poem."))


async def _fails(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(chunked("application/x-ndjson") + chunk("Traceback …\n"))
    writer.write(line(type="error", detail="ValueError: no ink") + END)


async def _floods(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(chunked("application/x-ndjson"))
    lines = b"the same line again and again\n" * 10_000
    for _number in range(SMALL_FLOOD // len(lines)):  # a longer answer is ended: over 100 times its limit
        writer.write(chunk(lines))
        await writer.drain()
    writer.write(line(type="usage", unit="tokens", amount=7) + line(type="done") + END)


async def _shows_its_key(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(response(body=f"{request.headers['idempotency-key']} {request.json['attempt']}"))


async def _reports(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(chunked("application/x-ndjson") + line(type="say", text="Looking …"))
    writer.write(line(type="tool", name="search", query="rhymes") + line(type="usage", unit="tokens", amount=12))
    writer.write(line(type="done") + END)


def find_process_kind(kind: Kind) -> Kind:
    """The kind whose code runs its processes."""
    runs_as = getattr(kind, "runs_as", kind.name)
    found = next(each for each in KINDS if each.name == runs_as)
    assert type(kind.executor(timedelta())).execute is type(found.executor(timedelta())).execute
    return found


KINDS: list[Kind] = [Command(), Python(), Http(), Acp(), Llm(), Langgraph(), Kubernetes()]
