"""The README's promises, kept: its tour works as it stands, its figures are the code's."""

import re
from datetime import UTC, datetime
from urllib.parse import urlsplit

from docs.asking import API, Api
from docs.curl import commands, curl
from docs.pages import README, ROOT, blocks, text_of
from httpx import AsyncClient, Response
from waiting import until

from rota import starters
from rota.model.agent_config import EXTRAS
from rota.settings import Settings
from rota.worker.worker import Worker


async def test_the_tour_works_as_it_stands(api: Api, client: AsyncClient, token: str, worker: Worker) -> None:
    answers: list[Response] = []
    for program, *arguments in (each for block in blocks(README, "sh") for each in commands(block.text)):
        if program == "curl":
            answers.append(await curl(client, arguments, {"API": API, "TOKEN": token}))
            assert answers[-1].is_success, f"{arguments}: {answers[-1].status_code} {answers[-1].text}"
    assert len(answers) >= 5
    [started] = [each.json() for each in answers if each.request.url.path.endswith("/run")]
    run = await api.ended(started["id"])
    assert (run["status"], run["summary"]) == ("succeeded", "five, seven and five")
    assert await api.said(run) == "A haiku about the sea:\nfive, seven and five\n"
    [goal] = [each.json() for each in answers if each.request.url.path.endswith("/sessions")]

    async def reached() -> bool:
        return bool((await api.ask("GET", f"/sessions/{goal['id']}"))["status"] == "done")

    await until(reached, within=60)


def test_the_tour_says_where_rota_is() -> None:
    [told] = re.findall(r"^export API=(\S+)$", text_of(README), re.MULTILINE)
    address = urlsplit(told)
    assert (address.hostname, address.port) == (Settings().host, Settings().port)
    assert address.path == urlsplit(API).path


def test_what_is_made_can_be_made() -> None:
    made = {name for block in blocks(README, "sh") for program, name, *_ in commands(block.text) if program == "make"}
    assert made == {"up", "test"}
    assert made <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_starters_are_as_many_as_is_said_and_one_is_named() -> None:
    """`make up` installs no extras, so those that need one are not among them."""
    agents = {each["name"].lower().replace(" ", "-"): each["executor"] for each in starters._agents()}
    found = [each for each in starters._automations(datetime.now(UTC)) if agents[each["agent"]] not in EXTRAS]
    assert "with four automations to look at" in text_of(README)
    assert len(found) == 4
    named = [each for each in found if f"*{each['name']}*" in text_of(README)]
    assert named
    assert named[0]["run_immediately"]


def test_runs_get_as_long_to_finish_as_is_said() -> None:
    assert Settings().grace_seconds.total_seconds() == 10
    assert "runs get ten seconds to finish" in text_of(README)
