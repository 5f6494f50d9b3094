"""A large DAG, wide, deep and full of diamonds, finishes with every task exactly once."""

from collections import Counter
from typing import Any

from rota.model.task import TaskForm
from support.house import House
from support.waiting import until


def task(key: str, *depends_on: str) -> TaskForm:
    return TaskForm("worker", key, "Go.", depends_on=depends_on)


def wide(count: int) -> list[TaskForm]:
    """One, then many at once, then one that waits for them all."""
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


async def finishes(workshop: Any, crew: Any, house: House, forms: list[TaskForm], *, within: float = 110) -> Any:
    """Three workers carry out all of it; what the agents were given, in order."""
    session = await workshop.goal(*forms, draft=True)
    async with crew(workers=3, places=400) as agents:
        await workshop.change(session, "enable")
        await until(workshop.is_(session, "done", "failed"), within=within)
    begun = Counter(each.payload["task"]["key"] for each in agents.assignments)
    assert set(begun) == {form.key for form in forms}
    assert set(begun.values()) == {1}
    assert Counter((await workshop.tasks(session)).values()) == {"done": len(forms)}
    assert await house.value("SELECT count(*) FROM runs WHERE status = 'succeeded' AND attempt = 1") == len(forms)
    place = {each.payload["task"]["key"]: at for at, each in enumerate(agents.assignments)}
    assert all(place[needed] < place[form.key or ""] for form in forms for needed in form.depends_on)
    return agents.assignments


async def test_a_large_dag_finishes_with_every_task_exactly_once(workshop: Any, crew: Any, house: House) -> None:
    """Over a thousand here; `make soak` does ten thousand."""
    assignments = await finishes(workshop, crew, house, [*wide(1102), *deep(10, 12), *lattice(10, 12)])
    [last] = [each for each in assignments if each.payload["task"]["key"] == "wide-last"]
    assert (len(last.payload["dependencies"]), last.payload["dependencies_left_out"]) == (1000, 100)
