"""docs/sessions.md against the real thing: its examples are accepted, its table is complete."""

import json
import re

from rota.http.ui.words import TASK_WORDS
from rota.model.session import STEPS
from support.doc_pages import SESSIONS, blocks, column
from support.doc_requests import Api


async def test_every_example_is_accepted_in_order(api: Api) -> None:
    await api.ask("POST", "/agents", {"name": "Echo", "executor": "command", "config": {"argv": ["cat"]}})
    session = ""
    for block in blocks(SESSIONS, "json"):
        method, path = block.purpose.split()
        answer = await api.ask(method, path.replace("{session}", session), json.loads(block.text))
        session = answer["id"] if path == "/sessions" else session


def test_every_status_of_a_task_is_explained() -> None:
    assert column(SESSIONS, "status of a task") == set(TASK_WORDS) - {"asking"}  # which only pages tell from `running`


def test_every_verb_stands_in_the_picture() -> None:
    picture = re.search(r"^```\ndraft.*?^```", SESSIONS.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert picture
    assert all(verb in picture.group() for verb in STEPS)
