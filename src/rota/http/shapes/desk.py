"""What agents at work send and are told."""

from typing import Annotated
from uuid import UUID

from pydantic import Field, JsonValue

from rota.http.shapes.fields import LONGEST_NAME, In, Out, RoleName
from rota.model.message import ALL


class SayIn(In):
    text: str = Field(min_length=1)


class ToolIn(In):
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    data: dict[str, JsonValue] = Field(default_factory=dict)


class UsageIn(In):
    unit: str = Field(min_length=1, max_length=LONGEST_NAME, examples=["tokens"])
    amount: float = Field(ge=0, lt=1e15, allow_inf_nan=False)


class DeskMessageIn(In):
    body: JsonValue = Field(description="Text, or any JSON, of at most 524,288 bytes")
    to: RoleName = Field(default=ALL, description="A role of the session, `user`, or `all` others")


class DeskEventIn(In):
    event: str = Field(max_length=128, examples=["invoice.paid"])
    data: JsonValue = None


class AckAllIn(In):
    ids: list[Annotated[int, Field(ge=1, lt=2**63)]] = Field(min_length=1, max_length=1000)


class OptionIn(In):
    id: str = Field(min_length=1, max_length=LONGEST_NAME)
    label: str = Field(min_length=1, max_length=LONGEST_NAME)
    approves: bool


class AskIn(In):
    question: str = Field(min_length=1, max_length=10_000)
    options: list[OptionIn] | None = Field(default=None, description="Else approve and refuse")
    detail: dict[str, JsonValue] | None = None
    key: str | None = Field(default=None, max_length=LONGEST_NAME, description="Asked again with it, it is the same")


class AskOut(Out):
    approval_id: UUID
    status: str
    approved: bool | None
    option_id: str | None
    text: str | None
