"""The tasks of a session as a picture: a column for each step, lines for what waits for what; drawn on the server."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rota.http.ui.words import TASK_PILLS, TASK_WORDS
from rota.model.task import levels

DRAWN = 60  # of more tasks no eye makes anything; they are in the table
WIDE, TALL, ACROSS, DOWN, EDGE = 156, 48, 40, 16, 4
LETTERS, SMALL_LETTERS = 16, 21
SHORT = {"asking": "Asks"}  # where the words of the table are too long


@dataclass(frozen=True, slots=True)
class Node:
    x: int
    y: int
    key: str
    role: str
    tone: str
    told: str


@dataclass(frozen=True, slots=True)
class Graph:
    width: int
    height: int
    nodes: Sequence[Node]
    lines: Sequence[tuple[str, str]]
    told: str


def graph(tasks: Sequence[Mapping[str, Any]]) -> Graph | None:
    """None where nothing waits for anything, or too much is to be drawn."""
    if len(tasks) > DRAWN or not any(each["depends_on"] for each in tasks):
        return None
    by_id = {each["id"]: each for each in tasks}
    places = _places(tasks)
    nodes = [_node(each, *places[each["id"]]) for each in tasks]
    lines = [
        (_line(places[needed], places[each["id"]]), "met" if by_id[needed]["status"] == "done" else "unmet")
        for each in tasks
        for needed in each["depends_on"]
    ]
    width = max(node.x for node in nodes) + WIDE + EDGE
    height = max(node.y for node in nodes) + TALL + EDGE
    return Graph(width, height, nodes, lines, _told(tasks))


def _places(tasks: Sequence[Mapping[str, Any]]) -> dict[UUID, tuple[int, int]]:
    """Each in the column of its level, beside what it waits for where it can be."""
    needs = {each["id"]: each["depends_on"] for each in tasks}
    columns: dict[int, list[UUID]] = defaultdict(list)
    for task, level in levels(needs).items():
        columns[level].append(task)
    order = {each["id"]: at for at, each in enumerate(tasks)}
    tallest = max(map(len, columns.values()))
    row: dict[UUID, float] = {}
    for level in sorted(columns):
        column = sorted(columns[level], key=lambda task: (_middle(needs[task], row), order[task]))
        start = (tallest - len(column)) / 2
        row |= {task: start + at for at, task in enumerate(column)}
    return {
        task: (EDGE + level * (WIDE + ACROSS), EDGE + round(row[task] * (TALL + DOWN)))
        for level, column in columns.items()
        for task in column
    }


def _middle(needed: Sequence[UUID], row: Mapping[UUID, float]) -> float:
    return sum(row[each] for each in needed) / len(needed) if needed else 0.0


def _node(task: Mapping[str, Any], x: int, y: int) -> Node:
    words = TASK_WORDS[task["status"]]
    told = f"{task['key']}, {task['role']}: {words}"
    under = f"{task['role']} · {SHORT.get(task['status'], words)}"
    return Node(x, y, _cut(task["key"]), _cut(under, SMALL_LETTERS), TASK_PILLS[task["status"]], told)


def _cut(text: str, most: int = LETTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + WIDE, start[1] + TALL // 2
    to_x, to_y = end[0], end[1] + TALL // 2
    bend = ACROSS // 2
    return f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"


def _told(tasks: Sequence[Mapping[str, Any]]) -> str:
    """The picture in words, for who cannot see it."""
    keys = {each["id"]: each["key"] for each in tasks}
    return "; ".join(
        f"{each['key']}: {TASK_WORDS[each['status']].lower()}"
        + (f", after {', '.join(keys[needed] for needed in each['depends_on'])}" if each["depends_on"] else "")
        for each in tasks
    )
