"""Artifacts."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import In, Out


class ArtifactIn(In):
    """Something outside."""

    uri: str = Field(examples=["https://example.org/pull/7"])
    name: str | None = None
    media_type: str | None = None


class ArtifactOut(Out):
    id: UUID
    session_id: UUID
    run_id: UUID | None
    attempt: int | None
    name: str
    media_type: str
    uri: str | None
    sha256: str | None
    size: int | None
    created_at: datetime
