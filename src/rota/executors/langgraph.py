"""The kind `langgraph`: a graph, in a child process that alone loads the libraries and keeps its state at the desk."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rota.executors.python import Child, PythonExecutor
from rota.model import agent_config
from rota.model.agent_config import LanggraphConfig, PythonConfig
from rota.model.executor import Assignment

THREAD = "rota.executors.langgraph_thread:agent"


class LanggraphExecutor(PythonExecutor):
    """A Python agent of ours: its function runs the graph of the configuration."""

    kind = "langgraph"

    def child(self, assignment: Assignment) -> Child:
        config = agent_config.read_langgraph(assignment.config)
        function = PythonConfig(THREAD, None, config.path, config.env, config.limits, config.output_limit)
        return Child(function, _given(config), (THREAD.partition(":")[0],))


def _given(config: LanggraphConfig) -> Mapping[str, Any]:
    return {
        "graph": config.graph,
        "prompt_key": config.prompt_key,
        "result_key": config.result_key,
        "recursion_limit": config.recursion_limit,
        "context": config.context,
        "prices": asdict(config.prices) if config.prices else None,
    }
