"""What each built-in kind of agent runs, what it needs besides Rota, and an agent of it, for those who choose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.model.agent_config import EXTRAS


@dataclass(frozen=True, slots=True)
class Guide:
    """`needs` is nothing for kinds that work as they are; `example` is what is posted to save such an agent."""

    kind: str
    runs: str
    needs: str
    example: Mapping[str, Any]

    @property
    def extra(self) -> str | None:
        """What is installed where its workers run."""
        return f"rota[{self.kind}]" if self.kind in EXTRAS else None


GUIDES = (
    Guide(
        "command",
        "any program; what it prints is the transcript",
        "",
        {"name": "Disk report", "executor": "command", "config": {"argv": ["df", "-h"], "stdin": "none"}},
    ),
    Guide(
        "python",
        "a function of yours",
        "",
        {"name": "Counter", "executor": "python", "config": {"function": "rota.starters.agents:count"}},
    ),
    Guide(
        "http",
        "a web service that is posted to",
        "a service that answers; a private address only if ROTA_HTTP_ALLOW names it",
        {"name": "Service", "executor": "http", "config": {"url": "https://agents.example.com/"}},
    ),
    Guide(
        "acp",
        "a coding agent of the Agent Client Protocol, such as Claude Code and Gemini CLI",
        "the agent's program where workers run, and for most of them a key as a credential",
        {
            "name": "Coder",
            "executor": "acp",
            "config": {"preset": "gemini"},
            "credentials": {"GEMINI_API_KEY": "gemini"},
        },
    ),
    Guide(
        "llm",
        "a language model, with the desk as its tools",
        "a provider's key as a credential, or the base_url of a model of your own",
        {
            "name": "Writer",
            "executor": "llm",
            "config": {"model": "openai-chat:gpt-5-mini"},
            "credentials": {"OPENAI_API_KEY": "openai"},
        },
    ),
    Guide(
        "langgraph",
        "a graph of LangGraph or LangChain",
        "",
        {
            "name": "Disk trend",
            "executor": "langgraph",
            "config": {"graph": "rota.starters.trend:graph", "result_key": "report"},
        },
    ),
    Guide(
        "kubernetes",
        "a container image, as a Job of a cluster",
        "a cluster: ROTA_KUBERNETES_CONFIG, or a worker inside it",
        {
            "name": "Hello",
            "executor": "kubernetes",
            "config": {"image": "busybox:1.37", "command": ["echo", "Hello from a pod"]},
        },
    ),
)


def guide_to(kind: str) -> Guide | None:
    """None for a kind that an installed package brings."""
    return next((each for each in GUIDES if each.kind == kind), None)
