"""Messages and turns of a session."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from rota.errors import Invalid
from rota.http.shapes.fields import In, Out, Prompt, RoleName
from rota.model.message import ALL, USER


class TurnIn(In):
    """A message to the session's agent: `prompt` or `input` is required."""

    prompt: Prompt | None = None
    input: Any = None

    @model_validator(mode="before")
    @classmethod
    def _is_no_message(cls, given: Any) -> Any:
        if isinstance(given, dict) and "body" in given:
            told = "prompt" if "prompt" in given else "input"
            raise Invalid(f"Give a `{told}` to the session's agent, or a `body` to a role; not both.", field="body")
        return given


class MessageIn(In):
    body: JsonValue = Field(description="Text, or any JSON, of at most 524,288 bytes")
    to: RoleName = Field(default=ALL, description="A role of the session, `user`, or `all` others")
    sender: RoleName = Field(default=USER, alias="from", description="Who it comes from: `user`, who may leave it out")


def _which(given: Any) -> str:
    turn = isinstance(given, TurnIn) or (isinstance(given, dict) and not given.keys().isdisjoint({"prompt", "input"}))
    return "one-of-turn" if turn else "one-of-message"


MessageOrTurn = Annotated[
    Annotated[MessageIn, Tag("one-of-message")] | Annotated[TurnIn, Tag("one-of-turn")], Discriminator(_which)
]


class DeliveryOut(Out):
    role: str
    acked_at: datetime | None


class MessageOut(Out):
    """`id` is its number in the session's sequence. `deliveries` says who got it, and who acknowledged it when."""

    id: int
    sender: str = Field(alias="from")
    to: str
    body: Any
    run_id: UUID | None
    attempt: int | None
    created_at: datetime
    deliveries: list[DeliveryOut]


class AckIn(In):
    role: RoleName = Field(default=USER, description="Whose inbox it is taken from")
