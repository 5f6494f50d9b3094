"""An agent that is a program."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rota.errors import Invalid
from rota.model.agent_config.programs import Limits, Which, missing_program, read_limits, read_words
from rota.model.config_fields import (
    OUTPUT_LIMIT,
    Fields,
    did_you_mean,
    open_secrets,
    otherwise,
    read_argv,
    read_env,
    read_exit_codes,
    read_size,
)


class Stdin(StrEnum):
    """What a program finds on its standard input."""

    PROMPT = "prompt"
    JSON = "json"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CommandConfig:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: Stdin
    limits: Limits
    output_limit: int
    success_exit_codes: frozenset[int]


def read_command(config: Mapping[str, Any]) -> CommandConfig:
    fields = Fields(config, "argv command env stdin limits output_limit success_exit_codes")
    fields.exactly_one("argv", "command")
    return CommandConfig(
        argv=fields.read("argv", read_argv) or fields.read("command", read_words) or (),
        env=fields.read("env", read_env) or {},
        stdin=fields.read("stdin", _stdin) or Stdin.PROMPT,
        limits=fields.read("limits", read_limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
        success_exit_codes=fields.read("success_exit_codes", read_exit_codes) or frozenset({0}),
    )


def check_command(config: Mapping[str, Any], which: Which | None) -> list[str]:
    read = read_command(config)
    return [*missing_program(read.argv, read.env, which), *open_secrets(read.env)]


def _stdin(value: object, at: str) -> Stdin:
    choices = [choice.value for choice in Stdin]
    if value not in choices:
        raise Invalid(f"{value!r} is unknown{did_you_mean(str(value), choices)}", field=at)
    return Stdin(value)
