"""The kind `llm`: a language model with the desk as its tools, in a child process that alone loads the libraries."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rota.executors.python import Child, PythonExecutor
from rota.executors.warm import Libraries
from rota.model import agent_config
from rota.model.agent_config import LlmConfig, PythonConfig
from rota.model.executor import Assignment

CONVERSATION = "rota.executors.llm_conversation:agent"
LIBRARIES = (CONVERSATION.partition(":")[0], "?anyio._backends._asyncio", "?genai_prices.data")


class LlmExecutor(PythonExecutor):
    """A Python agent of ours: its function is made of the configuration."""

    kind = "llm"

    def child(self, assignment: Assignment) -> Child:
        config = agent_config.read_llm(assignment.config)
        function = PythonConfig(CONVERSATION, None, config.path, config.env, config.limits, config.output_limit)
        return Child(function, _given(config, assignment), _libraries(config.model))


def _libraries(model: str) -> Libraries:
    """What every model needs, and that of its provider as far as its modules are called like it."""
    provider = model.partition(":")[0].replace("-", "_")
    own = (f"?pydantic_ai.providers.{provider}", f"?pydantic_ai.models.{provider}") if provider.isidentifier() else ()
    return (*LIBRARIES, *own)


def _given(config: LlmConfig, assignment: Assignment) -> Mapping[str, Any]:
    """Nothing secret: keys reach the child by its environment."""
    return {
        "model": config.model,
        "base_url": config.base_url,
        "settings": config.settings,
        "tools": [asdict(tool) for tool in config.tools],
        "max_turns": config.max_turns,
        "max_retries": config.max_retries,
        "prices": asdict(config.prices) if config.prices else None,
        "seconds": assignment.timeout.total_seconds(),
    }
