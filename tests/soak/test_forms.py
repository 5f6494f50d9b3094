"""Every form of every page, filled in by somebody who means no good: each is answered, and none with a 500."""

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from support.rota_process import Rota

SEED = int(os.environ.get("ROTA_TEST_SOAK_SEED") or random.randrange(1_000_000))
TIMES = 20  # each form is filled in at random; before that, each field alone
SENDS = ("hx-post", "hx-put", "hx-patch", "hx-delete")
AN_ID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")
ENDS = re.compile("delete|remove|revoke|archive|pause|cancel|password|complete|fail")  # afterwards less can be tried
ODD = [
    "", "\0", "a\0b", "💥" * 50, "x" * 30_000, "-1", "0", "9" * 21, "1e309", "NaN", "null", "[]", "{}", '{"a": 1}', "../..",
    "'\"<script>", "%00", "\ufffd", "0000-00-00", "9999-12-31T23:59", "2026-02-30", "0001-01-01T00:00", "25:61",
    "Europe/Nowhere", "@every 0s", "* * * * * *", "\u202e", "true", "0" * 8 + "-0000-0000-0000-" + "0" * 12, "١٢", "1_000",
    " 5 ", "+5", "5.0", "\r\n", "{" * 3000,
]  # fmt: skip


class Form(NamedTuple):
    method: str
    address: str
    fields: dict[str, str]

    @property
    def kind(self) -> tuple[str, str, frozenset[str]]:
        """The same for all things of a kind."""
        return self.method, AN_ID.sub("ID", self.address), frozenset(self.fields)


class Page(HTMLParser):
    """The links of a page, and what can be sent from it."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forms: list[Form] = []
        self._address, self._fields = address, dict[str, str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and given.get("href", "").startswith("/"):
            self.links.append(given["href"].partition("#")[0])
        if tag == "form":
            self._fields = {}
            self._add(given.get("method", "get").lower(), given.get("action", ""))
        if given.get("name") and tag in {"input", "textarea", "select", "button"}:
            self._fields[given["name"]] = given.get("value", "")
        if "formaction" in given:
            self._add("post", given["formaction"])
        for name in SENDS:
            if name in given:
                self._add(name.removeprefix("hx-"), given[name])

    def _add(self, method: str, address: str) -> None:
        if method != "dialog" and "sign-out" not in address:
            self.forms.append(Form(method, address.partition("#")[0] or self._address, self._fields))


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[httpx.Client]:
    rota = Rota(tmp_path / "home", "up", ROTA_RATE_LIMIT="0", ROTA_WORKSPACE_RATE_LIMIT="0")
    try:
        link, address = rota.link(), rota.url()
        with httpx.Client(base_url=address, headers={"Origin": address}, follow_redirects=True, timeout=60) as client:
            assert client.post("/sign-in", data={"link": link}).status_code == 200
            yield client
    finally:
        rota.stop()


def walked(client: httpx.Client) -> list[Form]:
    """One form of each kind, from one page of each kind; what ends something comes last."""
    seen: set[str] = set()
    found: dict[Any, Form] = {}
    ahead = ["/"]
    while ahead:
        address = ahead.pop()
        if (kind := AN_ID.sub("ID", address)) in seen or "sign-out" in address:
            continue
        seen.add(kind)
        answer = client.get(address)
        assert answer.status_code == 200, address
        if "text/html" in answer.headers["content-type"]:
            page = Page(address, answer.text)
            ahead += page.links
            found |= {form.kind: form for form in page.forms}
    return sorted(found.values(), key=lambda form: bool(ENDS.search(form.address)))


def filled(form: Form, chance: random.Random) -> Iterator[dict[str, Any]]:
    yield form.fields
    yield {name: value for name, value in form.fields.items() if "csrf" in name}
    yield {}
    free = [name for name in form.fields if "csrf" not in name]
    for name in free:
        for odd in chance.sample(ODD, 6):
            yield {**form.fields, name: odd}
    for _ in range(TIMES):
        odd_ones = {name: chance.choice(ODD) for name in free if chance.random() < 0.4}
        twice = {name: chance.sample(ODD, 2) for name in free if chance.random() < 0.1}
        left_out = {name for name in free if chance.random() < 0.05}
        given = {**form.fields, **odd_ones, **twice, "unheard_of": chance.choice(ODD)}
        yield {name: value for name, value in given.items() if name not in left_out}


@pytest.mark.timeout(1800)
def test_no_form_however_it_is_filled_in_breaks_a_page(visitor: httpx.Client) -> None:
    print(f"seed {SEED}")
    chance, answers, broken = random.Random(SEED), Counter[int](), []
    forms = walked(visitor)
    for form in forms:
        for given in filled(form, chance):
            sent = {"params": given} if form.method == "get" else {"data": given}
            answer = visitor.request(form.method, form.address, follow_redirects=False, **sent)  # type: ignore[arg-type]
            answers[answer.status_code] += 1
            if answer.status_code >= 500:
                broken.append((form.method, form.address, given))
    print(f"{len(forms)} forms, answered {dict(answers)}")
    assert not broken
    assert len(forms) > 50
    assert answers[200] > 1000  # it got past the door
    assert answers[422] > 500  # and was refused behind it
