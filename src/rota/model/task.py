"""Tasks: nodes of a session's DAG. What a batch of them must be like, and how they are drawn."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from uuid import UUID

from rota.errors import Conflict, Invalid
from rota.model.ids import RunId, TaskId, as_uuid, new_id

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TIMEOUT = timedelta(hours=1)
SHOWN_OF_CYCLE = 20
MAX_TASK_DEPTH = 8  # unless the automation says otherwise
MAX_TASKS = 100  # that one run adds, likewise
TOO_DEEP, TOO_MANY_OF_RUN = "task_depth", "too_many_tasks_of_run"  # codes


class Known(NamedTuple):
    """A task that the session has already."""

    id: TaskId
    key: str
    status: str
    added_by: RunId | None = None


class Standing(NamedTuple):
    """Where a run stands that adds tasks: its limits, the depth that they would have, and how many it has added."""

    max_depth: int
    max_tasks: int
    depth: int
    added: int


def refuse_over_limit(standing: Standing, more: int) -> None:
    """Refuse tasks that would be deeper, or more, than a run may add. Its history counts how many were `refused`."""
    if more and standing.depth > standing.max_depth:
        raise Conflict(
            f"These tasks would have depth {standing.depth}; tasks that add tasks may go {standing.max_depth} deep "
            "(policy `max_task_depth`).",
            code="task_depth", field="tasks", limit=standing.max_depth, refused=more,
        )  # fmt: skip
    if more and standing.added + more > standing.max_tasks:
        raise Conflict(
            f"One run may add {standing.max_tasks} tasks (policy `max_tasks`); this one has added {standing.added}, "
            f"and {more} more would be too many.",
            code="too_many_tasks_of_run", field="tasks", limit=standing.max_tasks, refused=more,
        )  # fmt: skip


def is_over_limit(refusal: Conflict) -> bool:
    return refusal.code in {TOO_DEEP, TOO_MANY_OF_RUN}


@dataclass(frozen=True, slots=True)
class TaskForm:
    """A task as somebody asks for it. `depends_on` names tasks of the batch by key, earlier ones by key or id."""

    role: str
    key: str | None = None
    prompt: str | None = None
    input: Any = None
    depends_on: tuple[str, ...] = ()
    timeout: timedelta | None = None
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task as it is about to be written. `unmet` counts the dependencies that are not done."""

    id: TaskId
    key: str
    role: str
    prompt: str | None
    input: Any
    depends_on: tuple[TaskId, ...]
    unmet: int
    timeout: timedelta
    max_attempts: int


def references(forms: Iterable[TaskForm]) -> set[str]:
    """What a batch says of tasks that may exist already: its own keys, and what it depends on."""
    return {ref for form in forms for ref in (*form.depends_on, *([form.key] if form.key else []))}


def added_before(forms: Iterable[TaskForm], known: Iterable[Known], attempt: tuple[RunId, int]) -> list[Known]:
    """Those of a batch that an earlier attempt of the same run has added: who begins anew may say the same again."""
    run_id, number = attempt
    keys = {form.key for form in forms}
    return [each for each in known if number > 1 and each.added_by == run_id and each.key in keys]


def plan(forms: Sequence[TaskForm], known: Iterable[Known], roles: Iterable[str]) -> list[NewTask]:
    """Check a batch against itself and the tasks it refers to; the tasks to write, in the order given."""
    by_key = {each.key: each for each in known}
    by_id = {each.id: each for each in by_key.values()}
    keys = _keys(forms, by_key)
    ids = {key: TaskId(new_id()) for key in keys}
    _refuse_unknown_roles(forms, set(roles))
    needs: dict[str, list[str]] = {}
    planned = []
    for at, (key, form) in enumerate(zip(keys, forms, strict=True)):
        if form.prompt is None and form.input is None:
            raise Invalid("Give a prompt, an input, or both.", code="nothing_to_do", field=f"tasks.{at}.prompt")
        inside = [ref for ref in dict.fromkeys(form.depends_on) if ref in ids]
        outside = [_known(ref, by_key, by_id, f"tasks.{at}.depends_on") for ref in form.depends_on if ref not in ids]
        needs[key] = inside
        depends_on = dict.fromkeys([*(ids[ref] for ref in inside), *(each.id for each in outside)])
        unmet = len(inside) + len({each.id for each in outside if each.status != "done"})
        planned.append(
            NewTask(
                ids[key], key, form.role, form.prompt, form.input, tuple(depends_on), unmet,
                form.timeout or TIMEOUT, form.max_attempts,
            )
        )  # fmt: skip
    _refuse_cycles(needs)
    return planned


def _keys(forms: Sequence[TaskForm], known: Mapping[str, Known]) -> list[str]:
    keys: dict[str, None] = {}
    for at, form in enumerate(forms):
        key = form.key if form.key is not None else f"task-{new_id().hex[-12:]}"
        field = f"tasks.{at}.key"
        if not KEY.fullmatch(key):
            raise Invalid(
                "A key has 1 to 100 letters, digits, dots, dashes and underscores, and starts with a letter or digit.",
                code="invalid_task_key",
                field=field,
            )
        if key in keys:
            raise Invalid(f"The key {key!r} stands twice among these tasks.", code="task_exists", field=field)
        if key in known:
            raise Conflict(f"This session has a task {key!r} already.", code="task_exists", field=field)
        keys[key] = None
    return list(keys)


def _refuse_unknown_roles(forms: Sequence[TaskForm], roles: set[str]) -> None:
    for at, form in enumerate(forms):
        if form.role not in roles:
            has = f"it has {', '.join(sorted(roles))}" if roles else "it has none; give it roles first"
            raise Invalid(
                f"This session has no role {form.role[:80]!r}: {has}.", code="unknown_role", field=f"tasks.{at}.role"
            )


def _known(ref: str, by_key: Mapping[str, Known], by_id: Mapping[TaskId, Known], field: str) -> Known:
    identity = as_uuid(ref)
    found = by_key.get(ref) or (by_id.get(TaskId(identity)) if identity else None)
    if not found:
        raise Invalid(
            f"There is no task {ref[:100]!r}, neither in this session nor among those you add.",
            code="unknown_task",
            field=field,
        )
    return found


def _refuse_cycles(needs: Mapping[str, Sequence[str]]) -> None:
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as found:
        path: list[str] = found.args[1][::-1]  # each waits for the next
        shown = path if len(path) <= SHOWN_OF_CYCLE else [*path[: SHOWN_OF_CYCLE - 1], "…", path[-1]]
        raise Invalid(
            f"These tasks wait for each other: {' → '.join(shown)}.",
            code="task_cycle",
            field="tasks",
            path=shown,
        ) from None


def levels(needs: Mapping[UUID, Iterable[UUID]]) -> dict[UUID, int]:
    """How far each task stands from those that wait for nobody: the column in which it is drawn."""
    found: dict[UUID, int] = {}
    for task in TopologicalSorter(needs).static_order():
        found[task] = 1 + max((found[each] for each in needs.get(task, ())), default=-1)
    return found
