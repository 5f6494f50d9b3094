"""Credentials, never their values."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field, SecretStr

from rota.http.shapes.fields import In, Line, Out, Patch


class CredentialIn(In):
    name: str = Field(max_length=63, examples=["openai"])
    value: SecretStr = Field(description="Never shown again")
    description: Line = ""
    usable_by: Literal["admin", "member"] = Field(default="admin", description="Who may name it in automations")


class CredentialPatch(Patch):
    value: SecretStr = Field(default=SecretStr(""), description="The next attempt gets it; left out, it stays")
    description: Line = ""
    usable_by: Literal["admin", "member"] = "admin"


class UseOut(Out):
    kind: Literal["agent", "automation"]
    id: UUID
    slug: str


class CredentialOut(Out):
    """Never the value."""

    id: UUID
    name: str
    description: str
    usable_by: str
    key_id: str
    used_by: list[UseOut]
    created_by: str
    created_at: datetime
    updated_at: datetime
    last_used_at: datetime | None
