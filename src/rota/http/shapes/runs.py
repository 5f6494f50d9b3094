"""Runs and their attempts."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ConfigDict, Field

from rota.http.shapes.fields import Out


class Missed(Out):
    count: int
    since: datetime


class RunOut(Out):
    id: UUID
    automation_id: UUID | None
    trigger_id: UUID | None
    session_id: UUID | None
    agent_id: UUID
    grant_id: UUID
    revision: int
    status: str
    source: str
    slot: datetime | None
    missed: Missed | None
    payload: Any
    retry_of: UUID | None
    created_by: UUID | None
    ready_at: datetime | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    tries: int
    rescues: int
    max_attempts: int
    worker_id: str | None
    skip_reason: str | None
    error_class: str | None
    error_detail: str | None
    summary: str | None
    usage: dict[str, float]
    trace_id: str
    cancel_requested_at: datetime | None
    refused_tasks: dict[str, int] = Field(
        description="Tasks that its agent could not add because of a limit, by error code"
    )


class AttemptOut(Out):
    model_config = ConfigDict(from_attributes=True, extra="ignore")

    attempt: int
    worker_id: str
    started_at: datetime
    ended_at: datetime | None
    ended_as: str | None = Field(
        description="`failed` if it failed, also where another attempt follows; else the status it led to: `queued` if "
        "its worker handed it back or was lost"
    )
    detail: str | None
    sandbox: str | None = Field(
        description="The sandbox that its agent ran in: `guard` (bubblewrap), `user` (an unprivileged user), `none` or "
        "`off`; null for a kind that has no process on the worker's machine"
    )


class RunStory(RunOut):
    attempts: list[AttemptOut]
