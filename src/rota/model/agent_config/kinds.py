"""Which kinds of agents there are, what each needs, and whether a configuration may work."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rota.errors import Invalid
from rota.model.address import PUBLIC_ONLY, AllowList
from rota.model.agent_config.acp import check_acp
from rota.model.agent_config.command import check_command
from rota.model.agent_config.http import check_http
from rota.model.agent_config.kubernetes import check_kubernetes
from rota.model.agent_config.langgraph import check_langgraph
from rota.model.agent_config.llm import check_llm
from rota.model.agent_config.programs import Which
from rota.model.agent_config.python import check_python
from rota.model.config_fields import did_you_mean

KINDS = ("command", "python", "http", "acp", "llm", "langgraph", "kubernetes")
LOCAL_KINDS = frozenset({"command", "python", "acp", "llm", "langgraph"})  # they run programs on the worker's machine
# Their configuration may say all that is to be done. The others are told by a prompt or an input.
PROMPTLESS_KINDS = frozenset({"command", "python", "http", "kubernetes"})
BARRED = "Agents of the kind “{kind}” run programs on this server, and it does not allow that (ROTA_LOCAL_AGENTS)."
# Kinds that need more than Rota itself, each with a module that its extra brings.
EXTRAS = {"acp": "acp", "llm": "pydantic_ai", "langgraph": "langgraph", "kubernetes": "kubernetes"}
Has = Callable[[str], bool]
_CHECKS: dict[str, Callable[[Mapping[str, Any], Which | None], list[str]]] = {
    "command": check_command,
    "python": check_python,
    "acp": check_acp,
    "llm": check_llm,
    "langgraph": check_langgraph,
    "kubernetes": lambda config, _which: check_kubernetes(config),
}


def check(
    kind: str,
    config: Mapping[str, Any],
    *,
    which: Which | None = None,
    has: Has | None = None,
    also: Iterable[str] = (),
    allow: AllowList = PUBLIC_ONLY,
) -> list[str]:
    """Warnings for a configuration that may not work; `Invalid`, with the field, for one that cannot.

    `which` finds programs on this machine, and `has` tells whether a module is installed. `also` are kinds that
    workers serve and this file doesn't know: their own workers check them. `allow` are the targets that agents of the
    kind `http` may call.
    """
    if kind == "http":
        return check_http(config, allow)
    if kind in _CHECKS:
        return [*_CHECKS[kind](config, which), *_missing_extra(kind, has)]
    if kind in also:
        return []
    known = list(dict.fromkeys([*KINDS, *also]))
    raise Invalid(
        f"There is no executor {kind!r}{did_you_mean(kind, known)}", code="unknown_executor", field="executor"
    )


def missing_extra(kind: str) -> str:
    """What to do where the library of a kind is not installed."""
    return f"the kind {kind!r} needs more packages where its workers run: pip install 'rota[{kind}]'"


def _missing_extra(kind: str, has: Has | None) -> list[str]:
    lacks = kind in EXTRAS and has is not None and not has(EXTRAS[kind])
    return [f"executor: {missing_extra(kind)}"] if lacks else []
