"""A DAG of ten thousand tasks finishes with every task exactly once."""

from typing import Any

import pytest

from support.house import House
from support.task_graphs import assert_finishes, deep, lattice, wide
from support.workshop import crew, workshop  # noqa: F401 — fixtures


@pytest.mark.timeout(900)
async def test_a_dag_of_ten_thousand_tasks_finishes_with_every_task_exactly_once(
    workshop: Any,  # noqa: F811
    crew: Any,  # noqa: F811
    house: House,
) -> None:
    forms = [*wide(4000), *deep(100, 30), *lattice(30, 100)]
    assert len(forms) == 10_000
    await assert_finishes(workshop, crew, house, forms, within=600)
