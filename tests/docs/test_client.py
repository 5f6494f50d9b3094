"""docs/reference/client.md against the code: its methods and errors are the client's, and its examples work."""

import asyncio
import inspect
from typing import Any

import pytest

from rota import client
from rota.client import AsyncClient
from rota.errors import STATUS
from support.doc_pages import ROOT, blocks, column, spans, table
from support.doc_requests import Api

PAGE = ROOT / "docs" / "reference" / "client.md"


def test_every_method_is_told_with_what_it_takes() -> None:
    told = {spans(row[0])[0] for row in table(PAGE, "method")}
    public = {name: getattr(AsyncClient, name) for name in vars(AsyncClient) if not name.startswith("_")}
    assert {each.partition("(")[0] for each in told} == set(public)
    for each in told:
        name, _, rest = each.partition("(")
        given = [part.partition("=")[0].strip() for part in rest.rstrip(")").split(",") if part.strip()]
        assert given == list(inspect.signature(public[name]).parameters)[1:], each


def test_every_error_is_told_with_its_status() -> None:
    told = {spans(row[0])[0]: row[1] for row in table(PAGE, "error")}
    assert told == {kind.__name__: str(status) for kind, status in STATUS.items()} | {"Unreachable": "–"}
    assert "Unreachable" in client.__all__
    assert column(PAGE, "error") == set(told)


@pytest.mark.usefixtures("worker")
async def test_the_examples_work(served: str, api: Api, token: str) -> None:
    await api.ask("POST", "/automations", {"name": "Haiku", "agent": "digest", "prompt": "the sea"})
    await api.ask("POST", "/automations", {"name": "Other", "agent": "digest", "prompt": "x"})
    known: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(block.text, known)
    assert await asyncio.to_thread(known["run_now"], served, token, "haiku") == "the sea"
    assert await known["pause_all"](served, token) == 2
    assert await known["pause_all"](served, token) == 0
