"""docs/operating.md against the real thing: metrics, log events, settings, commands and figures."""

import configparser
import json
import logging
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from rota.cli import COMMANDS, main
from rota.daemon import PARTS
from rota.db import embedded
from rota.logs import JsonLines
from rota.model.credential import HTTP_SECRET
from rota.model.outcome import Outcome, Parked
from rota.settings import Settings, variable
from support.doc_pages import (
    AGENTS,
    DEPLOYING,
    KIND_PAGES,
    OPERATING,
    README,
    ROOT,
    SCHEDULES,
    blocks,
    column,
    spans,
    table,
    text_of,
)
from surface import metric_names
from surface_source import log_events

PAGES = (README, AGENTS, *KIND_PAGES.values(), OPERATING, DEPLOYING, SCHEDULES)


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    told = {spans(row[0])[0]: {"type": row[1], "labels": spans(row[2])} for row in table(OPERATING, "metric")}
    assert told == metric_names()


def test_every_way_an_attempt_settles_is_documented() -> None:
    [told] = [row[3] for row in table(OPERATING, "metric") if "rota_runs_settled_total" in row[0]]
    outcomes = {kind.__name__.lower() for kind in Outcome.__args__ if kind is not Parked}  # nothing parks yet
    assert set(spans(told)) == outcomes | {"handed_back"}


def test_every_log_event_is_documented_with_its_level() -> None:
    told = {(event, row[1]) for row in table(OPERATING, "event") for event in spans(row[0])}
    assert told == {(event, level) for event, facts in log_events().items() for level in facts["levels"]}


def test_a_log_line_has_the_fields_that_are_documented() -> None:
    [block] = [each for each in blocks(OPERATING, "json") if each.purpose == "log"]
    record = logging.LogRecord("rota.worker.settler", logging.INFO, "", 0, "run.settled", (), None)
    always = json.loads(JsonLines().format(record)).keys()
    assert list(json.loads(block.text))[: len(always)] == list(always)
    [told] = re.findall(r"^(.*) are always there", text_of(OPERATING), re.MULTILINE)
    assert set(spans(told)) == always


def test_every_part_is_documented() -> None:
    assert column(OPERATING, "part") == set(PARTS)


def test_every_health_endpoint_is_documented() -> None:
    source = (ROOT / "src" / "rota" / "http" / "health.py").read_text()
    assert column(OPERATING, "endpoint") == set(re.findall(r'@router.get\("([^"]+)"', source))


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────────────────────

DEFAULTS = {variable(each.name): each.default for each in fields(Settings)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    tables = (AGENTS, KIND_PAGES["kubernetes"])
    given_to_agents = {name for each in tables for name in column(each, "variable") if name.startswith("ROTA_")}
    named = set(re.findall(r"\bROTA_[A-Z_]+\b", text_of(page)))
    assert named - DEFAULTS.keys() - given_to_agents - {"ROTA_TEST_DATABASE_URL", HTTP_SECRET} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_defaults_are_told_right(page: Path) -> None:
    """Wherever a setting stands with a figure: `ROTA_X` (10)."""
    for name, told in re.findall(r"`(ROTA_[A-Z_]+)` \(`?([^)`]+?)(?: s)?`?\)", text_of(page)):
        assert name not in DEFAULTS or told == _shown(name, DEFAULTS[name]), name


def _shown(name: str, default: Any) -> str:
    if isinstance(default, timedelta):
        return f"{default / timedelta(days=1) if name.endswith('_DAYS') else default.total_seconds():g}"
    return str(default).replace(str(Path.home()), "~")


def test_the_embedded_server_allows_as_many_connections_as_is_said() -> None:
    assert "max_connections=100" in embedded.SETTINGS
    assert "the embedded server allows 100" in text_of(OPERATING)


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────────────


def commands(page: Path) -> Iterator[list[str]]:
    """Every `rota …` in a block or a span of code."""
    lines = [line for each in blocks(page, "sh") for line in each.text.splitlines()]
    for line in [*lines, *spans(re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL))]:
        if found := re.search(r"(?:^|[/(=])rota ((?:up|serve|doctor|tokens)\b[^)]*)", line):
            yield shlex.split(found[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists_with_its_options(page: Path) -> None:
    for name, *arguments in commands(page):
        assert name in COMMANDS
        command = main.get_command(click.Context(main), name)
        assert command
        if isinstance(command, click.Group) and arguments:
            command = command.get_command(click.Context(command), arguments.pop(0))
            assert command
        if arguments:
            command.make_context(name, arguments)


def test_the_unit_for_systemd_is_whole() -> None:
    [block] = blocks(OPERATING, "ini")
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block.text)
    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > 3 * Settings().grace_seconds.total_seconds()
    program, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, arguments[0]) == ("rota", "up")
