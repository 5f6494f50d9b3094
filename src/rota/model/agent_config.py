"""What the configuration of each kind of agent may say: read when it is saved, and when it runs."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from rota.errors import Invalid
from rota.model.acp_presets import PRESETS, Preset, installing
from rota.model.address import SETTING, AllowList, Target, read_target
from rota.model.config_fields import (
    BLANK,
    OUTPUT_LIMIT,
    Fields,
    did_you_mean,
    open_secrets,
    otherwise,
    read_absolute,
    read_argv,
    read_count,
    read_env,
    read_exit_codes,
    read_name,
    read_object,
    read_size,
    read_text,
    read_texts,
    read_wait,
)
from rota.model.kubernetes_config import check_kubernetes

KINDS = ("command", "python", "http", "acp", "llm", "langgraph", "kubernetes")
LOCAL_KINDS = frozenset({"command", "python", "acp", "llm", "langgraph"})  # they run programs on the worker's machine
BARRED = "Agents of the kind “{kind}” run programs on this server, and it does not allow that (ROTA_LOCAL_AGENTS)."
DESK_TOOLS = (
    *("message", "task", "artifact", "remember", "recall", "forget", "ask"),
    *("list_files", "read_file", "write_file"),
)
MAX_TURNS = 50
MAX_RETRIES = 5
MILLION = 1_000_000
CONNECT_TIMEOUT = timedelta(seconds=10)
START_TIMEOUT = timedelta(minutes=2)
MOST_SERVERS = 50

Which = Callable[[str], str | None]
Has = Callable[[str], bool]

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")
# What says who is called, how the body is framed, or what Rota itself says about the attempt.
_OUR_HEADERS = re.compile(
    r"host|content-(length|type|encoding)|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|accept-encoding|idempotency-key|traceparent|(webhook|proxy)-.*"
)
_NOT_IN_HTTP = {
    "allow_private": f"an operator decides which private targets are called, by {SETTING}",
    "secret": "a secret does not belong here; give the agent a credential named ROTA_HTTP_SECRET",
}
_MODEL = re.compile(r"[a-z][a-z0-9_/-]*:\S+")
_ENTRY_POINT = re.compile(r"\w[\w.-]*")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Stdin(StrEnum):
    """What a program finds on its standard input."""

    PROMPT = "prompt"
    JSON = "json"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process may use. Sizes are in bytes."""

    memory: int | None = None
    cpu_seconds: int | None = None
    open_files: int | None = None
    file_size: int | None = None


@dataclass(frozen=True, slots=True)
class CommandConfig:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: Stdin
    limits: Limits
    output_limit: int
    success_exit_codes: frozenset[int]


@dataclass(frozen=True, slots=True)
class PythonConfig:
    """`function` is `module:function`; otherwise `entry_point` is a name in the group `rota.agents`."""

    function: str | None
    entry_point: str | None
    path: str | None
    env: Mapping[str, str]
    limits: Limits
    output_limit: int


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
    limits: Limits
    output_limit: int


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """`timeout` is for the connection; the others are the worker's own unless given. Header names are lower case."""

    target: Target
    headers: Mapping[str, str]
    timeout: timedelta
    header_timeout: timedelta | None
    idle_timeout: timedelta | None
    output_limit: int


@dataclass(frozen=True, slots=True)
class LlmTool:
    """A tool of the desk by name, or a Python function; used only after a person's approval, if so told."""

    name: str
    function: str | None = None
    approval: bool = False


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a million tokens. What was read from the provider's cache costs as other input unless told."""

    input: float
    output: float
    cached_input: float | None = None

    def cost(self, given: int, taken: int, cached: int = 0) -> float:
        """Money for one answer, of whose input so much was cached."""
        of_cached = self.input if self.cached_input is None else self.cached_input
        cached = min(cached, given)
        return ((given - cached) * self.input + cached * of_cached + taken * self.output) / MILLION


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """`model` is `provider:name`, or `function:module:function`; `path` is where modules are searched first."""

    model: str
    base_url: str | None
    settings: Mapping[str, Any]
    tools: tuple[LlmTool, ...]
    max_turns: int
    max_retries: int
    prices: Prices | None
    path: str | None
    env: Mapping[str, str]
    limits: Limits
    output_limit: int


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


def check(
    kind: str,
    config: Mapping[str, Any],
    *,
    which: Which | None = None,
    has: Has | None = None,
    also: Iterable[str] = (),
) -> list[str]:
    """Warnings for a configuration that may not work; `Invalid`, with the field, for one that cannot.

    `which` finds programs on this machine, and `has` tells whether a module is installed. `also` are kinds that
    workers serve and this file doesn't know: their own workers check them.
    """
    if kind in _CHECKS:
        return [*_CHECKS[kind](config, which), *_missing_extra(kind, has)]
    if kind in also:
        return []
    known = list(dict.fromkeys([*KINDS, *also]))
    raise Invalid(
        f"There is no executor {kind!r}{did_you_mean(kind, known)}", code="unknown_executor", field="executor"
    )


def read_command(config: Mapping[str, Any]) -> CommandConfig:
    fields = Fields(config, "argv command env stdin limits output_limit success_exit_codes")
    fields.exactly_one("argv", "command")
    argv = fields.read("argv", read_argv) if "argv" in config else fields.read("command", _words)
    return CommandConfig(
        argv=argv or (),
        env=fields.read("env", read_env) or {},
        stdin=fields.read("stdin", _stdin) or Stdin.PROMPT,
        limits=fields.read("limits", _limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
        success_exit_codes=fields.read("success_exit_codes", read_exit_codes) or frozenset({0}),
    )


def read_python(config: Mapping[str, Any]) -> PythonConfig:
    fields = Fields(config, "function entry_point path env limits output_limit")
    fields.exactly_one("function", "entry_point")
    return PythonConfig(
        function=fields.read("function", _function),
        entry_point=fields.read("entry_point", read_name),
        path=fields.read("path", read_absolute),
        env=fields.read("env", read_env) or {},
        limits=fields.read("limits", _limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def read_http(config: Mapping[str, Any]) -> HttpConfig:
    for name in read_object(config, "config"):
        if name in _NOT_IN_HTTP:
            raise Invalid(_NOT_IN_HTTP[name], field=f"config.{name}")
    fields = Fields(config, "url headers timeout header_timeout idle_timeout output_limit")
    return HttpConfig(
        target=read_target(config.get("url", ""), "config.url"),
        headers=fields.read("headers", _headers) or {},
        timeout=fields.read("timeout", read_wait) or CONNECT_TIMEOUT,
        header_timeout=fields.read("header_timeout", read_wait),
        idle_timeout=fields.read("idle_timeout", read_wait),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def read_acp(config: Mapping[str, Any]) -> AcpConfig:
    fields = Fields(
        config, "preset argv command args env mode auth_method mcp_servers start_timeout limits output_limit"
    )
    fields.exactly_one("preset", "argv", "command")
    preset = fields.read("preset", _preset)
    argv = fields.read("argv", read_argv) or fields.read("command", _words) or (preset.argv if preset else ())
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
        limits=fields.read("limits", _limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def read_llm(config: Mapping[str, Any]) -> LlmConfig:
    fields = Fields(config, "model base_url settings tools max_turns max_retries prices path env limits output_limit")
    model = fields.read("model", _model)
    if model is None:
        raise Invalid("must name a model, such as openai:gpt-5-mini", field="config.model")
    return LlmConfig(
        model=model,
        base_url=fields.read("base_url", _base_url),
        settings=fields.read("settings", read_object) or {},
        tools=otherwise(fields.read("tools", _tools), tuple(map(LlmTool, DESK_TOOLS))),
        max_turns=otherwise(fields.read("max_turns", read_count), MAX_TURNS),
        max_retries=otherwise(fields.read("max_retries", _retries), MAX_RETRIES),
        prices=fields.read("prices", _prices),
        path=fields.read("path", read_absolute),
        env=fields.read("env", read_env) or {},
        limits=fields.read("limits", _limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


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
        prices=fields.read("prices", _prices),
        path=fields.read("path", read_absolute),
        env=fields.read("env", read_env) or {},
        limits=fields.read("limits", _limits) or Limits(),
        output_limit=otherwise(fields.read("output_limit", read_size), OUTPUT_LIMIT),
    )


def _check_command(config: Mapping[str, Any], which: Which | None) -> list[str]:
    read = read_command(config)
    return [*_missing_program(read, which), *open_secrets(read.env)]


def _check_python(config: Mapping[str, Any], _which: Which | None) -> list[str]:
    return open_secrets(read_python(config).env)


def _check_http(config: Mapping[str, Any], _which: Which | None) -> list[str]:
    read = read_http(config)
    return [*_unopened(read.target), *open_secrets(read.headers, "headers")]


def _check_acp(config: Mapping[str, Any], which: Which | None) -> list[str]:
    read = read_acp(config)
    secrets = [
        warning
        for number, server in enumerate(read.mcp_servers)
        for warning in open_secrets(
            server.values, f"mcp_servers[{number}].{'env' if server.type == 'stdio' else 'headers'}"
        )
    ]
    return [*_missing_program(read, which), *open_secrets(read.env), *secrets]


def _check_llm(config: Mapping[str, Any], _which: Which | None) -> list[str]:
    return open_secrets(read_llm(config).env)


def _check_langgraph(config: Mapping[str, Any], _which: Which | None) -> list[str]:
    return open_secrets(read_langgraph(config).env)


_CHECKS: dict[str, Callable[[Mapping[str, Any], Which | None], list[str]]] = {
    "command": _check_command,
    "python": _check_python,
    "http": _check_http,
    "acp": _check_acp,
    "llm": _check_llm,
    "langgraph": _check_langgraph,
    "kubernetes": lambda config, _which: check_kubernetes(config),
}
# Kinds that need more than Rota itself, each with a module that its extra brings.
EXTRAS = {"acp": "acp", "llm": "pydantic_ai", "langgraph": "langgraph", "kubernetes": "kubernetes"}


def missing_extra(kind: str) -> str:
    """What to do where the library of a kind is not installed."""
    return f"the kind {kind!r} needs more packages where its workers run: pip install 'rota[{kind}]'"


def _missing_extra(kind: str, has: Has | None) -> list[str]:
    lacks = kind in EXTRAS and has is not None and not has(EXTRAS[kind])
    return [f"executor: {missing_extra(kind)}"] if lacks else []


def _missing_program(config: CommandConfig | AcpConfig, which: Which | None) -> list[str]:
    program = config.argv[0]
    in_the_session = "/" in program and not PurePath(program).is_absolute()
    if which is None or in_the_session or "PATH" in config.env or which(program):
        return []
    named = "preset" if isinstance(config, AcpConfig) and config.preset else "argv"
    return [f"config.{named}: the program {program!r} was not found on this machine{how_to_install(program)}"]


def how_to_install(program: str) -> str:
    """The end of a sentence about a program that is not there."""
    install = installing(program)
    return f"; to install it: {install}" if install else ""


def _unopened(target: Target) -> list[str]:
    """Only a warning: which targets are open is known to the workers alone."""
    objection = AllowList().objection(target)
    if objection is None:
        return []
    return [f"config.url: only workers whose {SETTING} includes {target.host} call it: {objection}"]


def _words(value: object, at: str) -> tuple[str, ...]:
    try:
        words = shlex.split(read_text(value, at))
    except ValueError as mistake:
        raise Invalid(f"cannot be split into words: {mistake}", field=at) from mistake
    if not words or not words[0].strip():
        raise Invalid("names no program", field=at)
    return tuple(words)


def _stdin(value: object, at: str) -> Stdin:
    choices = [choice.value for choice in Stdin]
    if value not in choices:
        raise Invalid(f"{value!r} is unknown{did_you_mean(str(value), choices)}", field=at)
    return Stdin(value)


def _limits(value: object, at: str) -> Limits:
    fields = Fields(value, "memory cpu_seconds open_files file_size", at)
    return Limits(
        memory=fields.read("memory", read_size),
        cpu_seconds=fields.read("cpu_seconds", read_count),
        open_files=fields.read("open_files", read_count),
        file_size=fields.read("file_size", read_size),
    )


def _function(value: object, at: str, like: str = "function") -> str:
    text = read_name(value, at)
    module, _, name = text.partition(":")
    if not _DOTTED.fullmatch(module) or not _DOTTED.fullmatch(name):
        raise Invalid(f"must look like module:{like}", field=at)
    return text


def _graph(value: object, at: str) -> str:
    """`poet` or `poems:graph`, and the same behind `langgraph:`, as other systems call them."""
    text = read_name(value, at).removeprefix("langgraph:")
    if _ENTRY_POINT.fullmatch(text):
        return text
    try:
        return _function(text, at, "graph")
    except Invalid as mistake:
        raise Invalid("must be the name of an installed graph, or look like module:graph", field=at) from mistake


def _headers(value: object, at: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, text in read_object(value, at).items():
        headers[_header_name(name, at, headers)] = _header_value(text, f"{at}.{name}")
    return headers


def _header_name(name: str, at: str, already: Mapping[str, str]) -> str:
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise Invalid(f"{name!r} is not the name of a header", field=at)
    if _OUR_HEADERS.fullmatch(lower):
        raise Invalid("this header is set by Rota", field=f"{at}.{name}")
    if lower in already:
        raise Invalid("this header is given twice", field=f"{at}.{name}")
    return lower


def _header_value(value: object, at: str) -> str:
    text = read_text(value, at).strip()
    if not _HEADER_VALUE.fullmatch(text):
        raise Invalid("must be one line of ASCII characters", field=at)
    return text


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
    text = read_name(value, at)
    if not text.startswith(("http://", "https://")):
        raise Invalid("must begin with http:// or https://", field=at)
    return text


def _variables(value: object, at: str) -> dict[str, str]:
    """The environment of somebody else's program: Rota's own names may be handed on."""
    values = {name: read_text(text, f"{at}.{name}") for name, text in read_object(value, at).items()}
    for name in values:
        if not _ENV_NAME.fullmatch(name):
            raise Invalid(f"{name!r} is not the name of a variable", field=at)
    return values


def _plain_headers(value: object, at: str) -> dict[str, str]:
    headers = {name: _header_value(text, f"{at}.{name}") for name, text in read_object(value, at).items()}
    for name in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise Invalid(f"{name!r} is not the name of a header", field=at)
    return headers


def fill_server(server: McpServer, values: Mapping[str, str], at: str) -> McpServer:
    """A server with credentials in the place of `${NAME}`."""
    return replace(server, values={name: fill(text, values, f"{at}.{name}") for name, text in server.values.items()})


def fill(text: str, values: Mapping[str, str], at: str) -> str:
    """A text with values in the place of `${NAME}`. No refusal repeats any of them."""
    for name in BLANK.findall(text):
        if name not in values:
            raise Invalid(f"the agent is given no credential as {name}", field=at)
    return BLANK.sub(lambda blank: values[blank[1]].strip(), text)


def fill_header(text: str, values: Mapping[str, str], at: str) -> str:
    """A header with values in the place of `${NAME}`."""
    return _header_value(fill(text, values, at), at)


def _model(value: object, at: str) -> str:
    text = read_name(value, at)
    if not _MODEL.fullmatch(text):
        raise Invalid("must be provider:model, such as openai:gpt-5-mini", field=at)
    if text.startswith("function:"):
        _function(text.removeprefix("function:"), at)
    return text


def _base_url(value: object, at: str) -> str:
    text = read_name(value, at)
    read_target(text, at)
    return text


def _tools(value: object, at: str) -> tuple[LlmTool, ...]:
    if not isinstance(value, list | tuple):
        raise Invalid("must be a list of tools", field=at)
    tools = tuple(_tool(each, f"{at}[{number}]") for number, each in enumerate(value))
    names = [tool.name for tool in tools]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise Invalid(f"there are two tools {name!r}", field=f"{at}[{number}]")
    return tools


def _tool(value: object, at: str) -> LlmTool:
    if isinstance(value, str):
        return LlmTool(_desk_tool(value, at))
    fields = Fields(value, "name function approval", at)
    fields.exactly_one("name", "function")
    approval = fields.read("approval", _flag) or False
    if function := fields.read("function", _function):
        return LlmTool(function.rpartition(":")[2].rpartition(".")[2], function, approval)
    return LlmTool(fields.read("name", _desk_tool) or "", None, approval)


def _desk_tool(value: object, at: str) -> str:
    name = read_name(value, at)
    if name not in DESK_TOOLS:
        raise Invalid(f"there is no tool {name!r} at the desk{did_you_mean(name, DESK_TOOLS)}", field=at)
    return name


def _flag(value: object, at: str) -> bool:
    if not isinstance(value, bool):
        raise Invalid("must be true or false", field=at)
    return value


def _retries(value: object, at: str) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else read_count(value, at)


def _prices(value: object, at: str) -> Prices:
    fields = Fields(value, "input output cached_input", at)
    given, taken = fields.read("input", _price), fields.read("output", _price)
    if given is None or taken is None:
        raise Invalid("give the price of a million tokens as input and as output", field=at)
    return Prices(given, taken, fields.read("cached_input", _price))


def _price(value: object, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise Invalid("must be a number of 0 or more", field=at)
    return float(value)
