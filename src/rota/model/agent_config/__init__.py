"""What the configuration of each kind of agent may say, a module for each: read when it is saved, and when it runs."""

from rota.model.agent_config.acp import AcpConfig, McpServer, fill_server, read_acp
from rota.model.agent_config.command import CommandConfig, Stdin, read_command
from rota.model.agent_config.headers import fill, fill_header
from rota.model.agent_config.http import HttpConfig, read_http
from rota.model.agent_config.kinds import BARRED, EXTRAS, KINDS, LOCAL_KINDS, PROMPTLESS_KINDS, check, missing_extra
from rota.model.agent_config.kubernetes import KubernetesConfig, Toleration, read_kubernetes
from rota.model.agent_config.langgraph import LanggraphConfig, read_langgraph
from rota.model.agent_config.llm import DESK_TOOLS, LlmConfig, LlmTool, read_llm
from rota.model.agent_config.prices import Prices
from rota.model.agent_config.programs import Limits, how_to_install
from rota.model.agent_config.python import PythonConfig, read_python

__all__ = (
    "BARRED",
    "DESK_TOOLS",
    "EXTRAS",
    "KINDS",
    "LOCAL_KINDS",
    "PROMPTLESS_KINDS",
    "AcpConfig",
    "CommandConfig",
    "HttpConfig",
    "KubernetesConfig",
    "LanggraphConfig",
    "Limits",
    "LlmConfig",
    "LlmTool",
    "McpServer",
    "Prices",
    "PythonConfig",
    "Stdin",
    "Toleration",
    "check",
    "fill",
    "fill_header",
    "fill_server",
    "how_to_install",
    "missing_extra",
    "read_acp",
    "read_command",
    "read_http",
    "read_kubernetes",
    "read_langgraph",
    "read_llm",
    "read_python",
)  # fmt: skip
