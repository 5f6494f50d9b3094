"""The starter for graphs: how the disk fills over time, by a graph that needs no model.

Its session is its thread, so each run finds the measurements of those before it in the state.
"""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

GB = 1_000_000_000
MOST = 100
TIGHT = 0.05


class Measured(TypedDict):
    at: str
    free: int
    total: int


class State(TypedDict, total=False):
    folder: str
    tight: float  # the share that should at least be free
    measured: list[Measured]
    report: str


def measure(state: State) -> State:
    """How much is free now, behind what was measured before."""
    disk = shutil.disk_usage(Path(state.get("folder", ".")).expanduser())
    now = Measured(at=datetime.now(UTC).isoformat(timespec="seconds"), free=disk.free, total=disk.total)
    return {"measured": [*state.get("measured", []), now][-MOST:]}


def warn(state: State) -> State:
    """Wait until a person has seen it."""
    now = state["measured"][-1]
    answer = interrupt({"question": f"Only {now['free'] / GB:.1f} GB are free. Have you seen it?", "measured": now})
    return {"report": "It was seen." if answer["approved"] else "It was seen, and is to stay so."}


def compare(state: State) -> State:
    """What became of it since the first and since the last time."""
    first, now = state["measured"][0], state["measured"][-1]
    last = state["measured"][-2] if len(state["measured"]) > 1 else now
    told = f"{now['free'] / GB:.1f} GB of {now['total'] / GB:.1f} GB are free"
    return {"report": f"{told}: {_change(last, now)} since the last time, {_change(first, now)} in all."}


def _change(then: Measured, now: Measured) -> str:
    return f"{(now['free'] - then['free']) / GB:+.1f} GB"


def is_tight(state: State) -> str:
    now = state["measured"][-1]
    return "warn" if now["free"] < state.get("tight", TIGHT) * now["total"] else "compare"


graph = (
    StateGraph(State)
    .add_node(measure)
    .add_node(warn)
    .add_node(compare)
    .add_edge(START, "measure")
    .add_conditional_edges("measure", is_tight, ["warn", "compare"])
    .compile()
)
