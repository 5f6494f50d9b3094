"""Sessions and their log."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from rota.http.shapes.fields import In, Name, Out, Prompt
from rota.http.shapes.tasks import MOST_TASKS, RoleIn, TaskIn
from rota.model.session import MOST_ROLES


class SessionIn(In):
    """Interactive: an `agent` and perhaps a first `prompt`. Background: a `goal`, `roles` and `tasks`."""

    kind: Literal["interactive", "background"] = "interactive"
    title: Name | None = None
    agent: str | None = Field(default=None, description="Id or slug of an agent")
    prompt: Prompt | None = None
    input: Any = None
    goal: Prompt | None = None
    roles: list[RoleIn] = Field(default_factory=list, max_length=MOST_ROLES)
    tasks: list[TaskIn] = Field(default_factory=list, max_length=MOST_TASKS)
    draft: bool = Field(default=False, description="Start nothing until it is enabled")


class ImportIn(In):
    """The first lines of an export, each as JSON."""

    lines: list[Any] = Field(min_length=1, max_length=100_000)


class ImportMoreIn(ImportIn):
    """The next lines of an export."""

    first: int = Field(ge=2, le=2_000_000_000, description="The number of the first of these lines in the export")


class SessionOut(Out):
    id: UUID
    kind: str
    status: str
    origin: str
    title: str
    goal: str | None
    automation_id: UUID | None
    agent_id: UUID | None
    imported: dict[str, Any] | None
    last_seq: int
    created_at: datetime
    updated_at: datetime


class OriginOut(Out):
    automation_id: UUID
    automation_name: str
    run_id: UUID
    source: str
    slot: datetime | None
    started_at: datetime | None


class EventOut(Out):
    model_config = ConfigDict(from_attributes=True, extra="ignore")

    seq: int
    kind: str
    run_id: UUID | None
    attempt: int | None
    data: dict[str, Any]
    created_at: datetime


class LineOut(Out):
    model_config = ConfigDict(from_attributes=True, extra="ignore")

    seq: int = Field(description="The event it begins with")
    speaker: str = Field(description="`user`, `agent`, a role, `tool`, or `rota` itself")
    text: str = Field(description="What was said; of a tool, its name")
    run_id: UUID | None
    attempt: int | None
    data: dict[str, Any] = Field(description="The event, for who wants to know more of a tool, a message or a question")
    created_at: datetime = Field(validation_alias="at")
