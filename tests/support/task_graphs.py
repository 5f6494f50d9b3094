"""Large graphs of tasks, and a check that workers carry out each task once and in order."""

from collections import Counter
from typing import Any

from rota.model.task import TaskForm
from support.house import House
from support.waiting import until


def task(key: str, *depends_on: str) -> TaskForm:
    return TaskForm("worker", key, "Go.", depends_on=depends_on)


def wide(count: int) -> list[TaskForm]:
    """One task, then many at once, then one that waits for them all."""
    many = [f"wide-{each}" for each in range(count - 2)]
    return [task("wide-first"), *(task(key, "wide-first") for key in many), task("wide-last", *many)]


def deep(chains: int, length: int) -> list[TaskForm]:
    return [
        task(f"deep-{chain}-{link}", *([f"deep-{chain}-{link - 1}"] if link else []))
        for chain in range(chains)
        for link in range(length)
    ]


def lattice(columns: int, rows: int) -> list[TaskForm]:
    """Every task waits for two of the column before: diamonds everywhere."""
    return [
        task(
            f"knot-{column}-{row}",
            *({f"knot-{column - 1}-{row}", f"knot-{column - 1}-{(row + 1) % rows}"} if column else []),
        )
        for column in range(columns)
        for row in range(rows)
    ]


async def assert_finishes(workshop: Any, crew: Any, house: House, forms: list[TaskForm], *, within: float = 110) -> Any:
    """Have three workers carry out all of it, check the result and return the assignments, in order."""
    session = await workshop.goal(*forms, draft=True)
    async with crew(workers=3, places=400) as agents:
        await workshop.change(session, "enable")
        await until(workshop.is_(session, "done", "failed"), within=within)
    begun = Counter(each.payload["task"]["key"] for each in agents.assignments)
    assert set(begun) == {form.key for form in forms}
    assert set(begun.values()) == {1}
    assert Counter((await workshop.tasks(session)).values()) == {"done": len(forms)}
    assert await house.has_runs(len(forms), status="succeeded", attempt=1)
    place = {each.payload["task"]["key"]: at for at, each in enumerate(agents.assignments)}
    assert all(place[needed] < place[form.key or ""] for form in forms for needed in form.depends_on)
    return agents.assignments
