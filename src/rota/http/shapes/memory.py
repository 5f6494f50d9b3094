"""What automations remember."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field, JsonValue

from rota.http.shapes.fields import Duration, In, Out


class MemoryIn(In):
    value: JsonValue = Field(description="Any JSON of at most 65,536 bytes")
    ttl: Duration | None = Field(default=None, description="How long it is remembered; else for good")
    confidence: float | None = Field(default=None, ge=0, le=1)


class MemoryOut(Out):
    key: str
    value: Any
    confidence: float | None
    expires_at: datetime | None
    run_id: UUID | None
    created_at: datetime
    updated_at: datetime
