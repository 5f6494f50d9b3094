"""Agents that are known to speak the Agent Client Protocol: how each is started, installed and signed in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Preset:
    """`keys` are the variables that an API key may be given as, each with the sign-in method it is for."""

    name: str
    argv: tuple[str, ...]
    install: str
    keys: Mapping[str, str] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = MappingProxyType({
    "claude": Preset(
        "Claude Code",
        ("claude-agent-acp",),
        "npm install -g @agentclientprotocol/claude-agent-acp",
        {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": ""},
    ),
    "codex": Preset(
        "Codex",
        ("codex-acp",),
        "npm install -g @agentclientprotocol/codex-acp",
        {"OPENAI_API_KEY": "openai-api-key", "CODEX_API_KEY": "codex-api-key"},
    ),
    "copilot": Preset(
        "GitHub Copilot CLI",
        ("copilot", "--acp", "--stdio"),
        "npm install -g @github/copilot",
        {"GH_TOKEN": ""},
    ),
    "cursor": Preset(
        "Cursor CLI",
        ("cursor-agent", "acp"),
        "see https://cursor.com/cli",
        {"CURSOR_API_KEY": ""},
    ),
    "gemini": Preset(
        "Gemini CLI",
        ("gemini", "--acp"),
        "npm install -g @google/gemini-cli",
        {"GEMINI_API_KEY": "gemini-api-key"},
    ),
    "goose": Preset(
        "Goose",
        ("goose", "acp"),
        "see https://block.github.io/goose/docs/getting-started/installation",
    ),
    "opencode": Preset(
        "opencode",
        ("opencode", "acp"),
        "npm install -g opencode-ai",
        {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": ""},
    ),
    "qwen": Preset(
        "Qwen Code",
        ("qwen", "--acp"),
        "npm install -g @qwen-code/qwen-code",
        {"OPENAI_API_KEY": "openai"},
    ),
})  # fmt: skip


def installing(program: str) -> str | None:
    """How a program is installed, if it is one of these."""
    return next((preset.install for preset in PRESETS.values() if preset.argv[0] == program), None)
