"""Agents that are known to speak the Agent Client Protocol: how each is started, installed and signed in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Preset:
    """`keys` are the variables that may hold an API key. Each has the ids of the sign-in methods that read it, in all
    versions of the agent; none where the agent reads the variable without signing in."""

    name: str
    argv: tuple[str, ...]
    install: str
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = MappingProxyType({
    "claude": Preset(
        "Claude Code",
        ("claude-agent-acp",),
        "npm install -g @agentclientprotocol/claude-agent-acp",
        {"ANTHROPIC_API_KEY": (), "CLAUDE_CODE_OAUTH_TOKEN": ()},
    ),
    "codex": Preset(
        "Codex",
        ("codex-acp",),
        "npm install -g @agentclientprotocol/codex-acp",
        {"OPENAI_API_KEY": ("api-key", "openai-api-key"), "CODEX_API_KEY": ("api-key", "codex-api-key")},
    ),
    "copilot": Preset(
        "GitHub Copilot CLI",
        ("copilot", "--acp", "--stdio"),
        "npm install -g @github/copilot",
        {"GH_TOKEN": ()},
    ),
    "cursor": Preset(
        "Cursor CLI",
        ("cursor-agent", "acp"),
        "see https://cursor.com/cli",
        {"CURSOR_API_KEY": ()},
    ),
    "gemini": Preset(
        "Gemini CLI",
        ("gemini", "--acp"),
        "npm install -g @google/gemini-cli",
        {"GEMINI_API_KEY": ("gemini-api-key",)},
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
        {"ANTHROPIC_API_KEY": (), "OPENAI_API_KEY": ()},
    ),
    "qwen": Preset(
        "Qwen Code",
        ("qwen", "--acp"),
        "npm install -g @qwen-code/qwen-code",
        {"OPENAI_API_KEY": ("openai",)},
    ),
})  # fmt: skip


def find_preset(argv: Sequence[str]) -> Preset | None:
    """The preset of a program that is started in another way, such as by its path or by `npx -y PACKAGE@VERSION`."""
    words = [argv[0], *[word for word in argv[1:] if not word.startswith("-")][:1]]
    names = {PurePath(word).name.partition("@")[0] for word in words}
    return next((preset for preset in PRESETS.values() if names & {preset.argv[0], _package(preset)}), None)


def _package(preset: Preset) -> str:
    """The name of its npm package without the scope."""
    command, _, package = preset.install.rpartition(" ")
    return PurePath(package).name if command.startswith("npm ") else preset.argv[0]


def installing(program: str) -> str | None:
    """How a program is installed, if it is one of these."""
    return next((preset.install for preset in PRESETS.values() if preset.argv[0] == program), None)
