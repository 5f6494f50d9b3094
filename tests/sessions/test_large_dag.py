"""A large DAG, wide, deep and full of diamonds, finishes with every task exactly once."""

from typing import Any

from support.house import House
from support.task_graphs import assert_finishes, deep, lattice, wide


async def test_a_large_dag_finishes_with_every_task_exactly_once(workshop: Any, crew: Any, house: House) -> None:
    """Over a thousand here; `make soak` does ten thousand."""
    assignments = await assert_finishes(workshop, crew, house, [*wide(1102), *deep(10, 12), *lattice(10, 12)])
    [last] = [each for each in assignments if each.payload["task"]["key"] == "wide-last"]
    assert (len(last.payload["dependencies"]), last.payload["dependencies_left_out"]) == (1000, 100)
