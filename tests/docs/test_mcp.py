"""docs/mcp.md against the code: its tools, its versions, its configurations."""

import json

from rota.mcp.forms import USUAL_LIMIT
from rota.mcp.protocol import MOST_AT_ONCE, VERSIONS
from rota.mcp.tools import BY_NAME, INSTRUCTIONS, TOOLS, Effect
from support.curl import commands
from support.doc_pages import ROOT, blocks, spans, table, text_of

from .test_cli import leaves, options_of

PAGE = ROOT / "docs" / "mcp.md"


def test_every_tool_is_told_with_its_route_its_scope_and_what_it_changes() -> None:
    told = [(spans(tool)[0], spans(route)[0], scope, changes) for tool, route, scope, changes in table(PAGE, "tool")]
    assert told == [(tool.name, tool.route, tool.needs, tool.effect.name.lower()) for tool in TOOLS]
    assert all(f"**{effect.name.capitalize()}**" in text_of(PAGE) for effect in Effect)
    assert f"{len(TOOLS)} tools" in text_of(ROOT / "CHANGELOG.md")


def test_versions_and_limits_are_told_right() -> None:
    [line] = [line for line in text_of(PAGE).splitlines() if "Spoken are" in line]
    assert [span for span in spans(line) if span[:2] == "20"] == list(VERSIONS)
    assert f"give {USUAL_LIMIT} items" in text_of(PAGE)
    assert f"{MOST_AT_ONCE} at most" in text_of(PAGE)


def test_a_desktop_client_is_configured_with_a_command_that_there_is() -> None:
    [block] = blocks(PAGE, "json")
    server = json.loads(block.text)["mcpServers"]["rota"]
    assert (server["command"], server["args"]) == ("rota", ["mcp"])
    assert {option.envvar for option in dict(leaves())["mcp"].params if hasattr(option, "envvar")} == set(server["env"])


def test_the_commands_can_be_typed() -> None:
    known = dict(leaves())
    for program, *words in (each for block in blocks(PAGE, "sh") for each in commands(block.text)):
        if program == "rota":
            assert {word for word in words if word.startswith("--")} <= options_of(known[" ".join(words[:2])]), words


def test_what_a_model_is_told_first_names_tools_that_there_are() -> None:
    named = {span for span in spans(INSTRUCTIONS) if "_" in span and span not in {"next_cursor", "idempotency_key"}}
    assert named
    assert named <= set(BY_NAME)
    for tool in TOOLS:
        mentioned = {
            span for span in spans(tool.description) if span.split("_")[0] in {"list", "get", "run", "read", "create"}
        }
        assert mentioned <= set(BY_NAME), tool.name
