"""Grants, and what they were used for."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from rota.http.shapes.fields import Duration, In, Out


class RenewGrantIn(In):
    lasts: Duration | None = Field(default=None, description="For good unless told", examples=["90d"])
    account: Annotated[UUID, Field(strict=False)] | None = Field(
        default=None, description="Which to charge; the one before unless an admin names another"
    )


class GrantOut(Out):
    id: UUID
    user_id: UUID
    user: str
    account_id: UUID
    scopes: list[str] = Field(examples=[["agent:run:01a1e0db-2cd9-7826-809d-0931e0e98709"]])
    status: str = Field(description="valid, revoked or expired")
    automation_id: UUID | None
    replaces: UUID | None = Field(description="The grant that this one took the place of")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: UUID | None


class GrantUse(Out):
    id: UUID
    slug: str
    name: str


class GrantStory(GrantOut):
    automations: list[GrantUse] = Field(description="That run on it now")
    runs: int
    last_run_at: datetime | None
