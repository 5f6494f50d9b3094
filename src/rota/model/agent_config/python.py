"""An agent that is a Python function."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.model.agent_config.programs import Limits, Which, read_function, read_limits
from rota.model.config_fields import (
    OUTPUT_LIMIT,
    Fields,
    open_secrets,
    otherwise,
    read_absolute,
    read_env,
    read_name,
    read_size,
)


@dataclass(frozen=True, slots=True)
class PythonConfig:
    """`function` is `module:function`; otherwise `entry_point` is a name in the group `rota.agents`."""

    function: str | None
    entry_point: str | None
    path: str | None
    env: Mapping[str, str]
    limits: Limits
    output_limit: int


def read_python(config: Mapping[str, Any]) -> PythonConfig:
    fields = Fields(config, "function entry_point path env limits output_limit")
    fields.exactly_one("function", "entry_point")
    return PythonConfig(
        function=fields.read("function", read_function),
        entry_point=fields.read("entry_point", read_name),
        path=fields.read("path", read_absolute),
        env=fields.read("env", read_env) or {},
        limits=fields.read("limits", read_limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def check_python(config: Mapping[str, Any], _which: Which | None) -> list[str]:
    return open_secrets(read_python(config).env)
