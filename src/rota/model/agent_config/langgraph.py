"""An agent that is a graph."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.errors import Invalid
from rota.model.agent_config.prices import Prices, read_prices
from rota.model.agent_config.programs import Limits, Which, read_function, read_limits
from rota.model.config_fields import (
    OUTPUT_LIMIT,
    Fields,
    open_secrets,
    otherwise,
    read_absolute,
    read_count,
    read_env,
    read_name,
    read_object,
    read_size,
)

_ENTRY_POINT = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class LanggraphConfig:
    """`graph` is `module:graph`, or without a colon a name in the group `rota.graphs`.

    The prompt goes to `prompt_key` of its state, and `result_key` is its answer."""

    graph: str
    prompt_key: str | None
    result_key: str | None
    recursion_limit: int | None
    context: Mapping[str, Any] | None
    prices: Prices | None
    path: str | None
    env: Mapping[str, str]
    limits: Limits
    output_limit: int


def read_langgraph(config: Mapping[str, Any]) -> LanggraphConfig:
    fields = Fields(config, "graph prompt_key result_key recursion_limit context prices path env limits output_limit")
    graph = fields.read("graph", _graph)
    if graph is None:
        raise Invalid("must name a graph, such as poet or poems:graph", field="config.graph")
    return LanggraphConfig(
        graph=graph,
        prompt_key=fields.read("prompt_key", read_name),
        result_key=fields.read("result_key", read_name),
        recursion_limit=fields.read("recursion_limit", read_count),
        context=fields.read("context", read_object),
        prices=fields.read("prices", read_prices),
        path=fields.read("path", read_absolute),
        env=fields.read("env", read_env) or {},
        limits=fields.read("limits", read_limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def check_langgraph(config: Mapping[str, Any], _which: Which | None) -> list[str]:
    return open_secrets(read_langgraph(config).env)


def _graph(value: object, at: str) -> str:
    """`poet` or `poems:graph`, and the same behind `langgraph:`, as other systems call them."""
    text = read_name(value, at).removeprefix("langgraph:")
    if _ENTRY_POINT.fullmatch(text):
        return text
    try:
        return read_function(text, at, "graph")
    except Invalid as mistake:
        raise Invalid("must be the name of an installed graph, or look like module:graph", field=at) from mistake
