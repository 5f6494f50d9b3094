"""What stands in the form of an agent: every field as text, and what it means to the API."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import field_validator

from rota.errors import Refused
from rota.http.bodies import check
from rota.http.shapes.agents import AgentIn
from rota.http.ui.rendering import pretty
from rota.model.agent_guide import guide_to

# What the form shows. A field that is not here is left as it is.
SHOWN = ("name", "executor", "config", "instructions", "credentials", "pool", "max_concurrent")
POOL, WHOLE = re.compile("[a-z0-9][a-z0-9-]{0,62}"), re.compile("[0-9]{1,9}")


def blank(kind: str) -> dict[str, str]:
    """A new agent of a kind, with the configuration of its example."""
    guide = guide_to(kind)
    given = {"config": guide.example["config"] if guide else {}, "executor": kind}
    return of({"name": "", "instructions": "", "credentials": {}, "pool": "default", "max_concurrent": None, **given})


def of(agent: Mapping[str, Any]) -> dict[str, str]:
    """An agent that is saved, as the form shows it."""
    return {
        "name": agent["name"],
        "executor": agent["executor"],
        "config": pretty(agent["config"]),
        "instructions": agent["instructions"],
        "credentials": "\n".join(f"{variable}={name}" for variable, name in agent["credentials"].items()),
        "pool": agent["pool"],
        "max_concurrent": "" if agent["max_concurrent"] is None else str(agent["max_concurrent"]),
    }


class AgentTyped(AgentIn):
    """An agent as the API takes it, read from the text of each field."""

    @field_validator("name", mode="before")
    @classmethod
    def _name(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("Give it a name.")
        return text.strip()

    @field_validator("config", mode="before")
    @classmethod
    def _config(cls, text: str) -> Any:
        try:
            return check(text.encode()) if text.strip() else {}
        except Refused as refused:
            raise ValueError(refused.message.replace("The body", "This")) from None

    @field_validator("credentials", mode="before")
    @classmethod
    def _credentials(cls, text: str) -> dict[str, str]:
        uses: dict[str, str] = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            variable, _, name = (part.strip() for part in line.partition("="))
            if not variable or not name:
                raise ValueError("Write VARIABLE=credential, one on each line, such as OPENAI_API_KEY=openai.")
            if variable in uses:
                raise ValueError(f"{variable[:64]} stands there twice; give it once.")
            uses[variable] = name
        return uses

    @field_validator("pool", mode="before")
    @classmethod
    def _pool(cls, text: str) -> str:
        pool = text.strip() or "default"
        if not POOL.fullmatch(pool):
            raise ValueError("Give 1 to 63 small letters, digits and hyphens, such as default.")
        return pool

    @field_validator("max_concurrent", mode="before")
    @classmethod
    def _cap(cls, text: str) -> int | None:
        typed = text.strip()
        if typed and not WHOLE.fullmatch(typed):
            raise ValueError("Give a whole number from 1 on, or nothing for no limit.")
        return int(typed) if typed else None


def read(typed: Mapping[str, str]) -> dict[str, Any]:
    """The fields as the API takes them; `ValidationError` with all that are wrong."""
    body = AgentTyped.model_validate({name: typed[name] for name in SHOWN})
    return {name: getattr(body, name) for name in SHOWN}
