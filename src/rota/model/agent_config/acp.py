"""An agent that speaks the Agent Client Protocol, and the MCP servers that it is given."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from rota.errors import Invalid
from rota.model.acp_presets import PRESETS, Preset, find_preset
from rota.model.address import read_target
from rota.model.agent_config.headers import HEADER_NAME, fill, read_header_value
from rota.model.agent_config.programs import Limits, Which, missing_program, read_limits, read_words
from rota.model.config_fields import (
    OUTPUT_LIMIT,
    Fields,
    did_you_mean,
    open_secrets,
    otherwise,
    read_argv,
    read_env,
    read_name,
    read_object,
    read_size,
    read_text,
    read_texts,
    read_wait,
)
from rota.model.duration import parse_duration

START_TIMEOUT = timedelta(minutes=2)
PARK_AFTER, LONGEST_PARK_AFTER = timedelta(minutes=10), timedelta(days=7)
MOST_SERVERS = 50
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class McpServer:
    """Tools that an agent is given. `type` is stdio (then `command`), http or sse (then `url`)."""

    name: str
    type: str
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    values: Mapping[str, str] = field(default_factory=dict)  # environment, or headers


@dataclass(frozen=True, slots=True)
class AcpConfig:
    """`argv` is whole: the preset's, and `args` behind it."""

    preset: Preset | None
    argv: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    mode: str | None
    auth_method: str | None
    mcp_servers: tuple[McpServer, ...]
    start_timeout: timedelta
    park_after: timedelta
    limits: Limits
    output_limit: int

    @property
    def known(self) -> Preset | None:
        """The preset, also of an agent that is started by words of its own."""
        return self.preset or find_preset(self.argv)


def read_acp(config: Mapping[str, Any]) -> AcpConfig:
    fields = Fields(
        config, "preset argv command args env mode auth_method mcp_servers start_timeout park_after limits output_limit"
    )
    fields.exactly_one("preset", "argv", "command")
    preset = fields.read("preset", _preset)
    argv = fields.read("argv", read_argv) or fields.read("command", read_words) or (preset.argv if preset else ())
    args = fields.read("args", read_texts) or ()
    return AcpConfig(
        preset=preset,
        argv=(*argv, *args),
        args=args,
        env=fields.read("env", read_env) or {},
        mode=fields.read("mode", read_name),
        auth_method=fields.read("auth_method", read_name),
        mcp_servers=fields.read("mcp_servers", _mcp_servers) or (),
        start_timeout=fields.read("start_timeout", read_wait) or START_TIMEOUT,
        park_after=otherwise(fields.read("park_after", _park_after), PARK_AFTER),
        limits=fields.read("limits", read_limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def check_acp(config: Mapping[str, Any], which: Which | None) -> list[str]:
    read = read_acp(config)
    secrets = [
        warning
        for number, server in enumerate(read.mcp_servers)
        for warning in open_secrets(
            server.values, f"mcp_servers[{number}].{'env' if server.type == 'stdio' else 'headers'}"
        )
    ]
    missing = missing_program(read.argv, read.env, which, named="preset" if read.preset else "argv")
    return [*missing, *open_secrets(read.env), *secrets]


def _park_after(value: object, at: str) -> timedelta:
    """A duration, or `0s` to park at once."""
    if value == "0s":
        return timedelta()
    if not isinstance(value, str):
        raise Invalid("must be a duration such as 10m, or 0s to park at once", field=at)
    wait = parse_duration(value, field=at)
    if wait > LONGEST_PARK_AFTER:
        raise Invalid("must be at most 7d: the agent keeps its place while it waits", field=at)
    return wait


def _preset(value: object, at: str) -> Preset:
    if not isinstance(value, str) or value not in PRESETS:
        raise Invalid(f"{value!r} is unknown{did_you_mean(str(value), PRESETS)}", field=at)
    return PRESETS[value]


def _mcp_servers(value: object, at: str) -> tuple[McpServer, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_SERVERS:
        raise Invalid(f"must be a list of at most {MOST_SERVERS} servers", field=at)
    servers = tuple(_mcp_server(each, f"{at}[{number}]") for number, each in enumerate(value))
    if len({server.name for server in servers}) < len(servers):
        raise Invalid("each server needs a name of its own", field=at)
    return servers


def _mcp_server(value: object, at: str) -> McpServer:
    fields = Fields(value, "name type command args env url headers", at)
    name = fields.read("name", read_name)
    if name is None:
        raise Invalid("a server needs a name", field=f"{at}.name")
    fields.exactly_one("command", "url")
    command, url, kind = fields.read("command", read_name), fields.read("url", _url), fields.read("type", _mcp_type)
    if command is not None:
        fields.none_of("type", "headers", because="a server with a command has none")
        values = fields.read("env", _variables) or {}
        return McpServer(name, "stdio", command, fields.read("args", read_texts) or (), values=values)
    fields.none_of("args", "env", because="a server with a url has none")
    return McpServer(name, kind or "http", url=url or "", values=fields.read("headers", _plain_headers) or {})


def _mcp_type(value: object, at: str) -> str:
    if value not in ("http", "sse"):
        raise Invalid("must be http or sse", field=at)
    return str(value)


def _url(value: object, at: str) -> str:
    """An agent may reach servers that Rota cannot, so that any host is right."""
    text = read_name(value, at)
    read_target(text, at)
    return text


def _variables(value: object, at: str) -> dict[str, str]:
    """The environment of somebody else's program: Rota's own names may be handed on."""
    values = {name: read_text(text, f"{at}.{name}") for name, text in read_object(value, at).items()}
    for name in values:
        if not _ENV_NAME.fullmatch(name):
            raise Invalid(f"{name!r} is not the name of a variable", field=at)
    return values


def _plain_headers(value: object, at: str) -> dict[str, str]:
    headers = {name: read_header_value(text, f"{at}.{name}") for name, text in read_object(value, at).items()}
    for name in headers:
        if not HEADER_NAME.fullmatch(name):
            raise Invalid(f"{name!r} is not the name of a header", field=at)
    return headers


def fill_server(server: McpServer, values: Mapping[str, str], at: str) -> McpServer:
    """A server with credentials in the place of `${NAME}`."""
    return replace(server, values={name: fill(text, values, f"{at}.{name}") for name, text in server.values.items()})
