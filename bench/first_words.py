"""How soon an agent of each Python kind is heard: in a new Python, and forked by one that has its libraries loaded;
without a sandbox, and in one."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.goals import Goal
from bench.stage import Stage
from rota.executors.langgraph import LanggraphExecutor
from rota.executors.llm import LlmExecutor
from rota.executors.nursery import nursery_in
from rota.executors.python import PythonExecutor
from rota.executors.sandbox import UNCONFINED, Sandbox, choose
from rota.model.executor import Assignment
from rota.model.ids import RunId, SessionId, WorkspaceId, new_id

AGENTS = """
def function(context):
    context.say("Here.")

async def model(messages, info):
    yield "Here."

def graph():
    from typing import TypedDict
    from langchain_core.runnables import RunnableConfig
    from langgraph.graph import START, StateGraph

    def speak(state: dict, config: RunnableConfig):
        config["configurable"]["rota"].say("Here.")

    made = StateGraph(TypedDict("State", {}))
    made.add_node("speak", speak)
    made.add_edge(START, "speak")
    return made
"""
KINDS: Mapping[str, tuple[type[PythonExecutor], Mapping[str, Any]]] = {
    "a function": (PythonExecutor, {"function": "agents:function"}),
    "a model": (LlmExecutor, {"model": "function:agents:model"}),
    "a graph": (LanggraphExecutor, {"graph": "agents:graph"}),
}
ANEW = {"env": {"OWN": "1"}}  # who has variables of its own begins in a new Python


class Ear:
    """A desk that hears when the first word comes, and takes everything else."""

    handed_on = False

    def __init__(self) -> None:
        self.heard = 0.0

    async def say(self, text: str, *, voice: str = "") -> None:
        self.heard = self.heard or time.perf_counter()

    async def _nothing(self, *args: object, **options: object) -> None:
        pass

    tool = usage = stored = checkpoint = _nothing


async def measure(_stage: Stage, *, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    figures = {}
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as home:
        code = Path(home) / "code"
        code.mkdir()
        (code / "agents.py").write_text(AGENTS)
        (Path(home) / "home").mkdir()
        sandboxes = (UNCONFINED, choose("guard", required=False, home=Path(home) / "home"))
        for name, (kind, config) in KINDS.items():
            given = {**config, "path": str(code)}
            executors = [kind(sandbox=each) for each in sandboxes]
            for sandbox, executor in zip(sandboxes, executors, strict=True):
                await _heard(executor, given, home)  # the first of its kind: others will be forked
                await _until_forked(executor, sandbox, given, home)
            heard: dict[tuple[str, str], list[float]] = {}
            for _ in range(3 if quick else 9):
                for sandbox, executor in zip(sandboxes, executors, strict=True):
                    heard.setdefault((sandbox.name, "new"), []).append(await _heard(executor, {**given, **ANEW}, home))
                    heard.setdefault((sandbox.name, "forked"), []).append(await _heard(executor, given, home))
            for sandbox in sandboxes:
                new, forked = (statistics.median(heard[sandbox.name, how]) for how in ("new", "forked"))
                figures[f"first word of {name}, sandbox {sandbox.name}, new / forked, ms"] = f"{new:.0f} / {forked:.0f}"
    return figures, []


async def _until_forked(executor: PythonExecutor, sandbox: Sandbox, config: Mapping[str, Any], home: str) -> None:
    assignment = _assignment(config, home)
    while executor._nursery(assignment, executor.child(assignment)) is nursery_in(sandbox):  # noqa: SLF001
        await asyncio.sleep(0.05)


async def _heard(executor: PythonExecutor, config: Mapping[str, Any], home: str) -> float:
    ear, began = Ear(), time.perf_counter()
    await executor.execute(_assignment(config, home), ear)  # type: ignore[arg-type]
    assert ear.heard
    return 1000 * (ear.heard - began)


def _assignment(config: Mapping[str, Any], home: str) -> Assignment:
    return Assignment(
        workspace_id=WorkspaceId(new_id()), run_id=RunId(new_id()), session_id=SessionId(new_id()), attempt=1,
        source="run_now", slot=None, missed=None, payload=None, config=config, instructions="", prompt="Speak.",
        input=None, transcript=[], timeout=timedelta(minutes=5), idempotency_key="key",
        directory=Path(home) / "home" / "sessions" / "workspace" / "session",
    )  # fmt: skip
