"""Configurations are refused when saved, with the field named, or accepted with warnings."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rota.errors import Invalid
from rota.model.agent_config import (
    DESK_TOOLS,
    Limits,
    LlmTool,
    Prices,
    Stdin,
    check,
    read_acp,
    read_command,
    read_langgraph,
    read_llm,
    read_python,
)

ARGV = {"argv": ["echo"]}
FUNCTION = {"function": "poems:poet"}


def test_a_command_has_sensible_defaults() -> None:
    config = read_command(ARGV)
    assert (config.argv, config.env, config.stdin, config.limits) == (("echo",), {}, Stdin.PROMPT, Limits())
    assert (config.output_limit, config.success_exit_codes) == (10_000_000, frozenset({0}))


def test_a_command_line_is_split_as_a_shell_would() -> None:
    assert read_command({"command": "echo 'a b' c"}).argv == ("echo", "a b", "c")
    assert read_command({"argv": None, "command": "echo"}).argv == ("echo",), "null is as if it were not there"


def test_sizes_are_numbers_or_have_units() -> None:
    limits = {"memory": "512MB", "file_size": "1.5 GiB", "cpu_seconds": 5, "open_files": 64}
    assert read_command({**ARGV, "limits": limits}).limits == Limits(512_000_000, 5, 64, 1_610_612_736)
    assert read_command({**ARGV, "output_limit": 1000}).output_limit == 1000
    assert read_command({**ARGV, "output_limit": "64k"}).output_limit == 64_000


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "config.command"),
        ({"argv": ["a"], "command": "a"}, "config.command"),
        ({"argv": []}, "config.argv"),
        ({"argv": "echo"}, "config.argv"),
        ({"argv": [""]}, "config.argv[0]"),
        ({"argv": ["echo", 1]}, "config.argv[1]"),
        ({"argv": ["echo", "a\0b"]}, "config.argv[1]"),
        ({"argv": ["echo", "\ud800"]}, "config.argv[1]"),
        ({"command": ""}, "config.command"),
        ({"command": "echo 'a"}, "config.command"),
        ({**ARGV, "argvv": 1}, "config.argvv"),
        ({**ARGV, "env": ["A"]}, "config.env"),
        ({**ARGV, "env": {"A=B": ""}}, "config.env"),
        ({**ARGV, "env": {"A": 1}}, "config.env.A"),
        ({**ARGV, "env": {"ROTA_URL": "x"}}, "config.env.ROTA_URL"),
        ({**ARGV, "stdin": "promt"}, "config.stdin"),
        ({**ARGV, "stdin": ["prompt"]}, "config.stdin"),
        ({**ARGV, "limits": {"memory": "lots"}}, "config.limits.memory"),
        ({**ARGV, "limits": {"memory": 0}}, "config.limits.memory"),
        ({**ARGV, "limits": {"cpu_seconds": True}}, "config.limits.cpu_seconds"),
        ({**ARGV, "limits": {"cpu_seconds": 1.5}}, "config.limits.cpu_seconds"),
        ({**ARGV, "limits": {"open_files": 10**30}}, "config.limits.open_files"),
        ({**ARGV, "limits": {"cpus": 1}}, "config.limits.cpus"),
        ({**ARGV, "output_limit": "9" * 39 + "T"}, "config.output_limit"),
        ({**ARGV, "success_exit_codes": []}, "config.success_exit_codes"),
        ({**ARGV, "success_exit_codes": [256]}, "config.success_exit_codes"),
        ({**ARGV, "success_exit_codes": [[]]}, "config.success_exit_codes"),
    ],
)
def test_a_wrong_command_is_refused_with_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        check("command", config)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "config.entry_point"),
        ({"function": "poems"}, "config.function"),
        ({"function": "poems:"}, "config.function"),
        ({"function": "../poems:poet"}, "config.function"),
        ({"function": "poems:poet()"}, "config.function"),
        ({"entry_point": " "}, "config.entry_point"),
        ({**FUNCTION, "entry_point": "bard"}, "config.entry_point"),
        ({**FUNCTION, "path": "src"}, "config.path"),
        ({**FUNCTION, "argv": []}, "config.argv"),
    ],
)
def test_a_wrong_function_is_refused_with_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        check("python", config)
    assert refusal.value.field == field


def test_a_function_may_be_named_in_two_ways() -> None:
    assert read_python({"function": "my.poems:Club.poet", "path": "/srv"}).function == "my.poems:Club.poet"
    assert read_python({"entry_point": "bard"}).entry_point == "bard"


def test_a_misspelt_key_is_answered_with_the_right_one() -> None:
    with pytest.raises(Invalid, match="did you mean 'stdin'"):
        check("command", {**ARGV, "sdtin": "none"})


def test_a_missing_program_is_only_a_warning() -> None:
    assert check("command", {"argv": ["poet"]}, which=lambda _: "/bin/poet") == []
    [warning] = check("command", {"argv": ["poet"]}, which=lambda _: None)
    assert "'poet' was not found" in warning


@pytest.mark.parametrize("config", [{"argv": ["./poet"]}, {"argv": ["poet"], "env": {"PATH": "/opt"}}])
def test_a_program_that_cannot_be_looked_for_here_is_no_warning(config: dict[str, Any]) -> None:
    assert check("command", config, which=lambda _: None) == []


@pytest.mark.parametrize(("kind", "config"), [("command", ARGV), ("python", FUNCTION)])
def test_a_secret_in_the_open_is_a_warning(kind: str, config: dict[str, Any]) -> None:
    [warning] = check(kind, {**config, "env": {"API_KEY": "x"}})
    assert "config.env.API_KEY" in warning
    assert "credential" in warning


def test_a_header_that_names_a_credential_is_no_secret_in_the_open() -> None:
    config = {"url": "https://example.com", "headers": {"Authorization": "Bearer ${API_KEY}"}}
    assert check("http", config) == []
    assert len(check("http", {**config, "headers": {"Authorization": "Bearer $API_KEY"}})) == 1


def test_an_unknown_kind_is_refused_unless_a_worker_serves_it() -> None:
    assert check("http2", {"url": "x"}, also=["http2"]) == []
    with pytest.raises(Invalid, match="did you mean 'python'") as refusal:
        check("pyton", {})
    assert (refusal.value.field, refusal.value.code) == ("executor", "unknown_executor")


@pytest.mark.parametrize("config", [None, [], "echo"])
def test_a_configuration_is_an_object(config: Any) -> None:
    with pytest.raises(Invalid) as refusal:
        check("command", config)
    assert refusal.value.field == "config"


SERVER = {"name": "notes", "command": "notes-mcp"}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "config.command"),
        ({"preset": "gemini", "argv": ["gemini"]}, "config.argv"),
        ({"preset": "gemni"}, "config.preset"),
        ({"preset": ["gemini"]}, "config.preset"),
        *[({**ARGV, "park_after": wrong}, "config.park_after") for wrong in ("0", "", "soon", "-1s", "8d")],
        *[({**ARGV, "park_after": wrong}, "config.park_after") for wrong in (0, 600)],
        ({**ARGV, "args": "--model"}, "config.args"),
        ({**ARGV, "args": [1]}, "config.args[0]"),
        ({**ARGV, "mode": ""}, "config.mode"),
        ({**ARGV, "start_timeout": "2h"}, "config.start_timeout"),
        ({**ARGV, "mcp_servers": SERVER}, "config.mcp_servers"),
        ({**ARGV, "mcp_servers": [{"command": "a"}]}, "config.mcp_servers[0].name"),
        ({**ARGV, "mcp_servers": [{"name": "a"}]}, "config.mcp_servers[0].url"),
        ({**ARGV, "mcp_servers": [{**SERVER, "headers": {}}]}, "config.mcp_servers[0].headers"),
        *[
            ({**ARGV, "mcp_servers": [{"name": "a", "url": url}]}, "config.mcp_servers[0].url")
            for url in (
                "ftp://a",
                "https://",
                "https://a b/",
                "https://me:secret@a/",
                "https://a:65536/",
                "https://a\\b/",
            )
        ],
        ({**ARGV, "mcp_servers": [{"name": "a", "url": "https://a", "env": {}}]}, "config.mcp_servers[0].env"),
        ({**ARGV, "mcp_servers": [{"name": "a", "url": "https://a", "type": "ws"}]}, "config.mcp_servers[0].type"),
        ({**ARGV, "mcp_servers": [SERVER, SERVER]}, "config.mcp_servers"),
        ({**ARGV, "mcp_servers": [{**SERVER, "env": {"A=": ""}}]}, "config.mcp_servers[0].env"),
    ],
)
def test_a_wrong_acp_agent_is_refused_with_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        check("acp", config)
    assert refusal.value.field == field


def test_a_preset_is_all_that_a_person_writes() -> None:
    assert read_acp({"preset": "gemini"}).argv == ("gemini", "--acp")
    assert read_acp({"preset": "gemini", "args": ["-m", "x"]}).argv == ("gemini", "--acp", "-m", "x")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/opt/bin/claude-agent-acp"], "Claude Code"),
        (["npx", "-y", "@agentclientprotocol/claude-agent-acp@latest"], "Claude Code"),
        (["npx", "@google/gemini-cli", "--acp"], "Gemini CLI"),
        (["python3", "agent.py", "gemini"], None),
        (["cli"], None),
    ],
)
def test_an_agent_is_known_by_its_program_or_its_package(argv: list[str], name: str | None) -> None:
    known = read_acp({"argv": argv}).known
    assert (known.name if known else None) == name


@pytest.mark.parametrize(("given", "read"), [(None, 600), ("0s", 0), ("90s", 90), ("7d", 604_800)])
def test_an_agent_waits_in_its_process_for_ten_minutes_or_as_long_as_it_says(given: Any, read: int) -> None:
    assert read_acp({"preset": "claude", "park_after": given}).park_after == timedelta(seconds=read)


def test_a_missing_agent_is_a_warning_that_says_how_to_install_it() -> None:
    [warning] = check("acp", {"preset": "gemini"}, which=lambda _: None)
    assert warning.startswith("config.preset: the program 'gemini' was not found")
    assert warning.endswith("npm install -g @google/gemini-cli")


def test_a_missing_extra_is_a_warning_that_says_which() -> None:
    assert check("acp", {"preset": "gemini"}, has=lambda _: True) == []
    [warning] = check("acp", {"preset": "gemini"}, has=lambda _: False)
    assert "rota[acp]" in warning
    assert check("command", ARGV, has=lambda _: False) == []


def test_a_secret_of_a_server_is_a_warning_unless_it_is_a_credential() -> None:
    servers = [{**SERVER, "env": {"API_KEY": "x", "OTHER_KEY": "${K}"}}]
    [warning] = check("acp", {**ARGV, "mcp_servers": servers})
    assert "config.mcp_servers[0].env.API_KEY" in warning


def test_a_model_has_the_whole_desk_unless_told() -> None:
    config = read_llm({"model": "openai:gpt-5-mini"})
    assert [tool.name for tool in config.tools] == list(DESK_TOOLS)
    assert (config.max_turns, config.max_retries, config.prices, config.settings) == (50, 5, None, {})


def test_tools_are_named_or_are_functions_and_may_need_approval() -> None:
    tools = ["ask", {"name": "write_file", "approval": True}, {"function": "mail.tools:Box.send", "approval": True}]
    config = read_llm({"model": "openai:x", "tools": tools, "max_retries": 0, "prices": {"input": 1, "output": 2.5}})
    assert config.tools == (
        LlmTool("ask"),
        LlmTool("write_file", None, True),
        LlmTool("send", "mail.tools:Box.send", True),
    )
    assert config.prices == Prices(1.0, 2.5, None)
    assert config.max_retries == 0


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "config.model"),
        ({"model": "gpt-5"}, "config.model"),
        ({"model": 5}, "config.model"),
        ({"model": "function:nothing"}, "config.model"),
        ({"base_url": "ftp://host"}, "config.base_url"),
        ({"base_url": "https://me:secret@host"}, "config.base_url"),
        ({"base_url": "http://[bad/v1"}, "config.base_url"),
        ({"settings": []}, "config.settings"),
        ({"tools": "ask"}, "config.tools"),
        ({"tools": ["sak"]}, "config.tools[0]"),
        ({"tools": [["ask"]]}, "config.tools[0]"),
        ({"tools": ["ask", {"name": "ask"}]}, "config.tools[1]"),
        ({"tools": [{"name": "ask", "function": "a:b"}]}, "config.tools[0].function"),
        ({"tools": [{"function": "ab"}]}, "config.tools[0].function"),
        ({"tools": [{"name": "ask", "approval": "yes"}]}, "config.tools[0].approval"),
        ({"max_turns": 0}, "config.max_turns"),
        ({"max_retries": -1}, "config.max_retries"),
        ({"max_retries": False}, "config.max_retries"),
        ({"prices": {"input": 1}}, "config.prices"),
        ({"prices": {"input": -1, "output": 1}}, "config.prices.input"),
        ({"prices": {"input": float("nan"), "output": 1}}, "config.prices.input"),
        ({"api_key": "sk-1"}, "config.api_key"),
    ],
)
def test_a_model_that_cannot_work_is_refused_with_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        check("llm", config and {"model": "openai:x", **config})
    assert refusal.value.field == field


def test_a_model_without_its_library_is_a_warning_that_says_which() -> None:
    [warning] = check("llm", {"model": "openai:x"}, has=lambda _: False)
    assert "rota[llm]" in warning


@pytest.mark.parametrize("name", ["poet", "poems.chain:graph"])
def test_a_graph_may_be_called_with_its_kind_before_its_name(name: str) -> None:
    assert read_langgraph({"graph": name}) == read_langgraph({"graph": f"langgraph:{name}"})


def test_a_graph_is_named_and_everything_else_may_be_left_out() -> None:
    config = read_langgraph({"graph": "poems.chain:graph"})
    assert (config.graph, config.prompt_key, config.recursion_limit, config.path) == ("poems.chain:graph", *[None] * 3)


@pytest.mark.parametrize(
    ("config", "field", "why"),
    [
        ({}, "config.graph", "must name a graph"),
        ({"graph": "poems:"}, "config.graph", "the name of an installed graph, or look like module:graph"),
        ({"graph": "langgraph:"}, "config.graph", "look like module:graph"),
        ({"graph": "a:b", "grahp": 1}, "config.grahp", "did you mean 'graph'"),
        ({"graph": "a:b", "recursion_limit": 0}, "config.recursion_limit", "at least 1"),
        ({"graph": "a:b", "prices": {"input": 1}}, "config.prices", "as input and as output"),
        ({"graph": "a:b", "context": 7}, "config.context", "must be an object"),
        ({"graph": "a:b", "path": "here"}, "config.path", "absolute"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_with_the_field(config: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refusal:
        check("langgraph", config)
    assert refusal.value.field == field


@pytest.mark.parametrize("kind", ["llm", "langgraph"])
def test_what_a_million_tokens_cost_is_what_their_parts_cost(kind: str) -> None:
    readers: dict[str, Callable[[Any], Any]] = {"llm": read_llm, "langgraph": read_langgraph}
    named = {"llm": {"model": "a:b"}, "langgraph": {"graph": "a:b"}}[kind]
    prices = readers[kind]({**named, "prices": {"input": 2, "output": 10, "cached_input": 0.5}}).prices
    assert prices
    assert prices.cost(1_000_000, 100_000, 400_000) == pytest.approx(1.2 + 0.2 + 1)
