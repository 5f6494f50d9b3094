"""The README's promises, kept: its tour works as it stands, its figures are the code's."""

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from httpx import AsyncClient, Response

from rota import starters
from rota.cli import agents, main
from rota.model.agent_config import EXTRAS
from rota.settings import Settings
from support.curl import commands, curl
from support.doc_pages import README, ROOT, blocks, text_of
from support.doc_requests import API, Api
from support.waiting import until


@pytest.mark.usefixtures("worker")
async def test_the_tour_works_as_it_stands(
    api: Api, client: AsyncClient, token: str, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    environment = {"ROTA_URL": served, "ROTA_TOKEN": token}
    said: dict[str, str] = {}
    goals: list[Response] = []
    for program, *arguments in (each for block in blocks(README, "sh") for each in commands(block.text)):
        if program == "rota":
            told = await asyncio.to_thread(CliRunner(env=environment).invoke, main, arguments, input="y\n")
            assert told.exit_code == 0, told.output
            said[" ".join(arguments[:2])] = told.stdout
        elif program == "curl":
            goals.append(await curl(client, arguments, environment))
    assert said["automations run"] == "A haiku about the sea:\nfive, seven and five\n"
    assert "succeeded  run_now" in said["automations runs"]
    assert "1 to create, 1 to change, 1 unchanged." in said["apply -f"]
    [goal] = [each.json() for each in goals if each.is_success]

    async def reached() -> bool:
        return bool((await api.ask("GET", f"/sessions/{goal['id']}"))["status"] == "done")

    await until(reached, within=60)


def test_the_tour_says_where_rota_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [told] = re.findall(r"^curl -s (\S+)", text_of(README), re.MULTILINE)
    address = urlsplit(told)
    assert (address.hostname, address.port) == (Settings().host, Settings().port)
    assert address.path.startswith(urlsplit(API).path)
    [option] = [each for each in agents.list_.params if each.name == "url"]
    monkeypatch.setenv("ROTA_HOME", str(tmp_path))  # where none is up
    assert callable(option.default)
    assert option.default() == f"http://{Settings().host}:{Settings().port}"


def test_what_is_made_can_be_made() -> None:
    made = {name for block in blocks(README, "sh") for program, name, *_ in commands(block.text) if program == "make"}
    assert made == {"up", "test"}
    assert made <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_starters_are_as_many_as_is_said_and_one_is_named() -> None:
    """`make up` installs no extras, so those that need one are not among them."""
    kinds = {each["name"].lower().replace(" ", "-"): each["executor"] for each in starters._agents()}
    found = [each for each in starters._automations(datetime.now(UTC)) if kinds[each["agent"]] not in EXTRAS]
    assert "with four automations to look at" in text_of(README)
    assert len(found) == 4
    named = [each for each in found if f"*{each['name']}*" in text_of(README)]
    assert named
    assert named[0]["run_immediately"]


def test_runs_get_as_long_to_finish_as_is_said() -> None:
    assert Settings().grace_seconds.total_seconds() == 10
    assert "runs get ten seconds to finish" in text_of(README)
