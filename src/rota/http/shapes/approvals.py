"""What agents ask, and the answers."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import LONGEST_NAME, In, Out


class OptionOut(Out):
    id: str
    label: str
    approves: bool


class ApprovalOut(Out):
    id: UUID
    run_id: UUID
    session_id: UUID
    automation_id: UUID | None
    agent_id: UUID
    attempt: int
    key: str | None
    question: str
    detail: dict[str, Any] | None
    options: list[OptionOut]
    status: str
    option_id: str | None
    text: str | None
    answered_by: UUID | None
    answered_by_name: str | None
    created_at: datetime
    expires_at: datetime
    answered_at: datetime | None
    run_status: str


class AnswerIn(In):
    answer: str = Field(
        min_length=1, max_length=LONGEST_NAME, description="`approve`, `refuse` or an option's id", examples=["approve"]
    )
    text: str | None = Field(default=None, max_length=10_000, description="A note to the agent")
