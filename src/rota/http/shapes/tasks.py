"""Roles and tasks of a session."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import Duration, In, Out, Prompt
from rota.model.task import TaskForm

MOST_TASKS = 10_000


class RoleIn(In):
    name: str = Field(max_length=63, examples=["planner"])
    agent: str = Field(description="Id or slug of an agent")


class RoleOut(Out):
    name: str
    agent_id: UUID | None = Field(description="Null in an imported session, whose agents are elsewhere")
    agent: str
    created_at: datetime


class TaskIn(In):
    """`prompt` or `input` is required. `depends_on` names tasks of this request by key, earlier ones by key or id."""

    key: str | None = Field(default=None, max_length=100, examples=["collect"])
    role: str = Field(max_length=63, examples=["worker"])
    prompt: Prompt | None = None
    input: Any = None
    depends_on: list[str] = Field(default_factory=list, max_length=MOST_TASKS)
    timeout: Duration | None = None
    max_attempts: int = Field(default=1, ge=1, le=100)

    def form(self) -> TaskForm:
        return TaskForm(
            self.role, self.key, self.prompt, self.input, tuple(self.depends_on), self.timeout, self.max_attempts
        )


class TasksIn(In):
    tasks: list[TaskIn] = Field(min_length=1, max_length=MOST_TASKS)


class TaskOut(Out):
    id: UUID
    key: str
    role: str
    status: str
    prompt: str | None
    input: Any
    depends_on: list[UUID]
    run_id: UUID | None
    reason: str | None
    summary: str | None
    error_class: str | None
    error_detail: str | None
    timeout: Duration
    max_attempts: int
    added_by_run: UUID | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
