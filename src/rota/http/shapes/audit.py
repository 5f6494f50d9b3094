"""The audit log."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import Out


class AuditOut(Out):
    id: UUID
    created_at: datetime
    user_id: UUID | None = Field(description="Null: whoever runs the server")
    user: str | None
    token_id: UUID | None
    run_id: UUID | None = Field(description="Set if an agent at work asked")
    ip: str | None
    action: str = Field(examples=["automation.pause"])
    object_kind: str
    object_id: str | None
    status: int = Field(description="200, or that of the refusal")
    code: str | None = Field(description="Of the refusal; null if it was done")
    before: dict[str, Any] | None = Field(description="The fields that changed, as they were")
    after: dict[str, Any] | None = Field(description="The fields that changed, as they are")
