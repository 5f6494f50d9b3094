"""What every shape is made of: fields that check themselves, and the two bases. Unknown fields are refused."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from rota.errors import Invalid
from rota.model import schedule, text
from rota.model.duration import format_duration, parse_duration
from rota.model.grant_scope import WORKSPACE_READ
from rota.model.message import ROLE

LONGEST_NAME, LONGEST_PROMPT = text.LONGEST_NAME, 200_000
LONGEST_REASON = 500
LONGEST_LASTING = timedelta(days=3660)
LEAST_YEAR, LAST_YEAR = schedule.LEAST_YEAR, schedule.LAST_YEAR


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(value)
    except Invalid as refused:
        raise ValueError(refused.message) from None


def _instant(value: datetime) -> datetime:
    if not LEAST_YEAR <= value.year <= LAST_YEAR:
        raise ValueError(f"Give a time of the years {LEAST_YEAR} to {LAST_YEAR}.")
    return value


def _said(value: str) -> str:
    if not value.strip():
        raise ValueError("The prompt is empty.")
    return value


def _reason(value: str) -> str:
    line = text.one_line(value)
    if not text.says_something(line):
        raise ValueError("Give a reason.")
    return line


_NUMBER = re.compile(r"[+-]?[0-9._]+(e[+-]?[0-9]+)?", re.IGNORECASE)


def _written(value: object) -> object:
    # pydantic would take a number as seconds or milliseconds since 1970, as it sees fit.
    if isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise ValueError("Give an instant with its offset, such as “2026-06-01T09:00:00Z”.")
    return value


def _lasting(value: timedelta) -> timedelta:
    if not timedelta() < value <= LONGEST_LASTING:
        raise ValueError("Give a duration of at most ten years, such as “90d”.")
    return value


def _email(value: str) -> str:
    local, at, domain = value.strip().lower().rpartition("@")
    if not (at and local and domain) or not value.isprintable() or " " in value.strip():
        raise ValueError("Give an e-mail address, such as “ada@example.org”.")
    return f"{local}@{domain}"


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration, json_schema_input_type=str),
    PlainSerializer(format_duration, return_type=str),
    Field(examples=["90s", "15m", "2h"]),
]
Instant = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written), AfterValidator(_instant)]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(text.named)]
Line = Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(text.one_line)]
Reason = Annotated[str, Field(min_length=1, max_length=LONGEST_REASON), AfterValidator(_reason)]
Prompt = Annotated[str, Field(max_length=LONGEST_PROMPT), AfterValidator(_said)]
Pattern = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
RoleName = Annotated[str, Field(pattern=f"^{ROLE.pattern}$")]
Uses = Annotated[dict[str, str], Field(examples=[{"API_KEY": "openai"}], description="Variables: names of credentials")]
Email = Annotated[str, Field(max_length=254, examples=["ada@example.org"]), AfterValidator(_email)]
GrantScopes = Annotated[
    list[str],
    Field(
        max_length=10,
        examples=[[WORKSPACE_READ]],
        description="What the grant allows beyond running the agent; `workspace:read` to read the whole workspace",
    ),
]
LevelName = Literal["viewer", "member", "admin"]
Overlap = Literal["skip", "queue_one", "queue_all", "allow", "replace"]


class In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)  # neither "5" nor true is a number

    def given(self) -> dict[str, Any]:
        """Only what the caller sent."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """As pydantic has it, but with default durations as they are written here."""
        described = handler(core)
        properties = handler.resolve_ref_schema(described).get("properties", {})
        for name, field in cls.model_fields.items():
            if isinstance(field.default, timedelta):
                properties[name]["default"] = format_duration(field.default)
        return described


class Patch(In):
    """Changes to something. A field that is left out stays as it is, so the description has no defaults: those of the
    class are placeholders, which `given` leaves out."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = super().__get_pydantic_json_schema__(core, handler)
        for field in handler.resolve_ref_schema(described).get("properties", {}).values():
            field.pop("default", None)
        return described


class Out(BaseModel):
    model_config = ConfigDict(extra="ignore")
