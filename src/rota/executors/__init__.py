"""The kinds of agents this process can run, by name; each is imported when it is asked for."""

import logging
from collections.abc import Container, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rota.errors import Invalid
from rota.executors.barred import BarredExecutor
from rota.model.agent_config import EXTRAS, missing_extra
from rota.model.config_fields import did_you_mean
from rota.model.executor import Executor

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rota.executors"
BUILT_IN = {
    "command": "rota.executors.command:CommandExecutor",
    "python": "rota.executors.python:PythonExecutor",
    "http": "rota.executors.http:HttpExecutor",
    "acp": "rota.executors.acp:AcpExecutor",
    "llm": "rota.executors.llm:LlmExecutor",
    "langgraph": "rota.executors.langgraph:LanggraphExecutor",
    "kubernetes": "rota.executors.kubernetes:KubernetesExecutor",
}

log = logging.getLogger(__name__)


def _usable() -> list[str]:
    return [kind for kind in BUILT_IN if not _lacks_library(kind)]


def _lacks_library(kind: str) -> bool:
    return kind in EXTRAS and find_spec(EXTRAS[kind]) is None


def load(
    kinds: Iterable[str] | None = None, *, barred: Container[str] = (), **options: Mapping[str, Any]
) -> dict[str, Executor]:
    """An executor for each kind, or for all known. A broken third party is left out, with a warning; in place of those
    that are barred stands one that says so.

    `options` are what the operator has set for built-in kinds, by kind."""
    installed = _installed()
    wanted = list(dict.fromkeys(kinds)) if kinds is not None else [*_usable(), *sorted(installed)]
    executors = {
        kind: BarredExecutor(kind) if kind in barred else _made(kind, installed, options.get(kind, {}))
        for kind in wanted
    }
    return {kind: executor for kind, executor in executors.items() if executor is not None}


def _made(kind: str, installed: "dict[str, EntryPoint]", options: Mapping[str, Any]) -> Executor | None:
    if kind in BUILT_IN:
        return _built_in(kind, options)
    if kind in installed:
        return _third_party(installed[kind])
    raise Invalid(f"there is no executor kind {kind!r}{did_you_mean(kind, [*BUILT_IN, *installed])}", field="kind")


def _built_in(kind: str, options: Mapping[str, Any]) -> Executor:
    if _lacks_library(kind):
        raise Invalid(missing_extra(kind), field="kind")
    module, _, name = BUILT_IN[kind].partition(":")
    executor: Executor = getattr(import_module(module), name)(**options)
    return executor


def _third_party(entry_point: "EntryPoint") -> Executor | None:
    try:
        executor: Executor = entry_point.load()()
        lacking = [name for name in ("check", "execute", "abandon") if not callable(getattr(executor, name, None))]
    except Exception as failure:  # somebody else's code: whatever it raises must not take the other kinds along
        _warn(entry_point, f"{type(failure).__name__}: {failure}")
        return None
    if lacking:
        _warn(entry_point, f"lacks {', '.join(lacking)}")
    return None if lacking else executor


def _warn(entry_point: "EntryPoint", error: str) -> None:
    log.warning("executor.broken", extra={"kind": entry_point.name, "from": entry_point.value, "error": error})


def _installed() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and only a worker needs it

    return {each.name: each for each in entry_points(group=GROUP) if each.name not in BUILT_IN}
