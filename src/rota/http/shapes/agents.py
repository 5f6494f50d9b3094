"""Agents and their revisions."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import LONGEST_PROMPT, Duration, GrantScopes, In, Name, Out, Patch, Prompt, Uses


class _Settings(In):
    config: dict[str, Any] = Field(default_factory=dict)
    instructions: str = Field(default="", max_length=LONGEST_PROMPT)
    credentials: Uses = Field(default_factory=dict)
    pool: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000)
    status: Literal["active", "paused"] = "active"


class AgentIn(_Settings):
    name: Name
    slug: str | None = None
    executor: str = Field(max_length=64, examples=["command"])


class AgentPatch(Patch, _Settings):
    name: Name = ""
    slug: str = ""
    executor: str = Field(default="", max_length=64)


class AgentOut(Out):
    id: UUID
    slug: str
    name: str
    executor: str
    config: dict[str, Any]
    instructions: str
    credentials: dict[str, str]
    pool: str
    max_concurrent: int | None
    status: str
    revision: int
    created_at: datetime
    updated_at: datetime
    warnings: list[str] = Field(default_factory=list)


class RunAgentIn(In):
    prompt: Prompt | None = None
    input: Any = None
    timeout: Duration | None = None
    scopes: GrantScopes = Field(default=[])


class RevisionOut(Out):
    revision: int
    created_at: datetime
    created_by: str
    spec: dict[str, Any]
    changed: dict[str, Any]
