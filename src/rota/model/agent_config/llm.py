"""An agent that is a language model with tools."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.errors import Invalid
from rota.model.address import read_target
from rota.model.agent_config.prices import Prices, read_prices
from rota.model.agent_config.programs import Limits, Which, read_function, read_limits
from rota.model.config_fields import (
    OUTPUT_LIMIT,
    Fields,
    did_you_mean,
    open_secrets,
    otherwise,
    read_absolute,
    read_count,
    read_env,
    read_name,
    read_object,
    read_size,
)

DESK_TOOLS = (
    *("message", "task", "event", "artifact", "remember", "recall", "forget", "ask"),
    *("list_files", "read_file", "write_file"),
)
MAX_TURNS = 50
MAX_RETRIES = 5
_MODEL = re.compile(r"[a-z][a-z0-9_/-]*:\S+")


@dataclass(frozen=True, slots=True)
class LlmTool:
    """A tool of the desk by name, or a Python function; used only after a person's approval, if so told."""

    name: str
    function: str | None = None
    approval: bool = False


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """`model` is `provider:name`, or `function:module:function`; `path` is where modules are searched first."""

    model: str
    base_url: str | None
    settings: Mapping[str, Any]
    tools: tuple[LlmTool, ...]
    max_turns: int
    max_retries: int
    prices: Prices | None
    path: str | None
    env: Mapping[str, str]
    limits: Limits
    output_limit: int


def read_llm(config: Mapping[str, Any]) -> LlmConfig:
    fields = Fields(config, "model base_url settings tools max_turns max_retries prices path env limits output_limit")
    model = fields.read("model", _model)
    if model is None:
        raise Invalid("must name a model, such as openai:gpt-5-mini", field="config.model")
    return LlmConfig(
        model=model,
        base_url=fields.read("base_url", _base_url),
        settings=fields.read("settings", read_object) or {},
        tools=otherwise(fields.read("tools", _tools), tuple(map(LlmTool, DESK_TOOLS))),
        max_turns=otherwise(fields.read("max_turns", read_count), MAX_TURNS),
        max_retries=otherwise(fields.read("max_retries", _retries), MAX_RETRIES),
        prices=fields.read("prices", read_prices),
        path=fields.read("path", read_absolute),
        env=fields.read("env", read_env) or {},
        limits=fields.read("limits", read_limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def check_llm(config: Mapping[str, Any], _which: Which | None) -> list[str]:
    return open_secrets(read_llm(config).env)


def _model(value: object, at: str) -> str:
    text = read_name(value, at)
    if not _MODEL.fullmatch(text):
        raise Invalid("must be provider:model, such as openai:gpt-5-mini", field=at)
    if text.startswith("function:"):
        read_function(text.removeprefix("function:"), at)
    return text


def _base_url(value: object, at: str) -> str:
    text = read_name(value, at)
    read_target(text, at)
    return text


def _tools(value: object, at: str) -> tuple[LlmTool, ...]:
    if not isinstance(value, list | tuple):
        raise Invalid("must be a list of tools", field=at)
    tools = tuple(_tool(each, f"{at}[{number}]") for number, each in enumerate(value))
    names = [tool.name for tool in tools]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise Invalid(f"there are two tools {name!r}", field=f"{at}[{number}]")
    return tools


def _tool(value: object, at: str) -> LlmTool:
    if isinstance(value, str):
        return LlmTool(_desk_tool(value, at))
    fields = Fields(value, "name function approval", at)
    fields.exactly_one("name", "function")
    approval = fields.read("approval", _flag) or False
    if function := fields.read("function", read_function):
        return LlmTool(function.rpartition(":")[2].rpartition(".")[2], function, approval)
    return LlmTool(fields.read("name", _desk_tool) or "", None, approval)


def _desk_tool(value: object, at: str) -> str:
    name = read_name(value, at)
    if name not in DESK_TOOLS:
        raise Invalid(f"there is no tool {name!r} at the desk{did_you_mean(name, DESK_TOOLS)}", field=at)
    return name


def _flag(value: object, at: str) -> bool:
    if not isinstance(value, bool):
        raise Invalid("must be true or false", field=at)
    return value


def _retries(value: object, at: str) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else read_count(value, at)
