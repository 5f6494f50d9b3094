"""docs/credentials.md against the real thing: its examples are saved, and its agent runs and shows nothing."""

import json

from rota.worker.worker import Worker
from support.doc_pages import ROOT, blocks
from support.doc_requests import Api

CREDENTIALS = ROOT / "docs" / "credentials.md"


async def test_every_example_is_accepted_and_the_agent_gets_what_is_hidden_from_everybody_else(
    api: Api, worker: Worker
) -> None:
    for block in blocks(CREDENTIALS, "json"):
        method, path = block.purpose.split()
        answer = await api.ask(method, path, json.loads(block.text))
        assert not answer.get("warnings"), answer["warnings"]
    run = await api.ended((await api.ask("POST", "/agents/mailer/runs", {"prompt": "x"}))["id"])
    assert "MAIL_PASSWORD=[redacted]\n" in await api.said(run)
