"""Bad input: a clear error at the moment it is given, naming the field, nothing half written, never a 500."""

import asyncio
import errno
import json
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota.daemon import bind, only_one
from rota.errors import CannotStart
from rota.executors.command import CommandExecutor
from rota.http.bodies import DEEPEST
from rota.model.outcome import ErrorClass, Failed
from support import api_client
from support.api_client import DAILY, UNKNOWN, Api, Office, Site, assert_ok, assert_refused, example, furnish
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "security.json").read_text())
TRAPS = {
    "[ x100000": [b"[" * 100_000],
    "1 x5000 digits": [b"1" * 5000],
    "NaN / Infinity / 1e999": [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"],
    '"\\u0000"': [b'"\\u0000"', b'{"\\u0000": 1}', b'"\x00"'],
    '"\\ud800"': [b'"\\ud800"', b'"\\udc00\\ud800"', b'{"\\udfff": 1}', b'"\xed\xa0\x80"'],
    "depth 60000": [b"[" * 60_000 + b"]" * 60_000, b'{"a":' * 60_000 + b"1" + b"}" * 60_000],
    '{"a":1,"a":2}': [b'{"a":1,"a":2}'],
    "1e400000": [b"1e400000"],
}
# Where a trap can stand: alone, and as a value that would be stored.
WRITES: list[tuple[str, str, str]] = [
    ("POST", "/agents", '{"name": "x", "executor": "command", "config": {"argv": ["true"], "env": %s}}'),
    ("PATCH", "/agents/worker-bee", '{"config": %s}'),
    ("POST", "/agents/worker-bee/runs", '{"prompt": "x", "input": %s}'),
    ("POST", "/automations", '{"name": "x", "agent": "worker-bee", "prompt": "x", "input": %s}'),
    ("POST", "/automations", '{"name": "x", "agent": "worker-bee", "prompt": "x", "schedule": %s}'),
    ("POST", "/automations/preview", '{"schedule": %s}'),
    ("PATCH", "/automations/digest", '{"input": %s}'),
    ("POST", "/automations/digest/run", '{"payload": %s}'),
    ("POST", "/automations/digest/triggers", '{"cron": %s}'),
    ("POST", "/events", '{"event": "rain", "data": %s}'),
]
EVERYTHING = ("agents", "automations", "triggers", "revisions", "grants", "runs", "sessions", "events", "start_keys")
JSON = {"Content-Type": "application/json"}


def assert_clearly_refused(answer: Any, *statuses: int) -> dict[str, Any]:
    """A refusal in the form that all have."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    told: dict[str, Any] = answer.json()
    assert answer.status_code == told["status"]
    assert answer.status_code in statuses, told
    assert told["code"]
    assert told["detail"]
    assert "Traceback" not in answer.text
    return told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": 5}, "name: Give text, in quotes."),
        ({"name": None}, "name: Give text, in quotes."),
        ({"name": "x" * 201}, "name: Give at most 200 characters."),
        ({"prompt": ["x"]}, "prompt: Give text, in quotes."),
        ({"max_attempts": "5"}, "max_attempts: Give a whole number."),
        ({"max_attempts": 1.5}, "max_attempts: Give a whole number."),
        ({"max_attempts": 0}, "max_attempts: Give 1 or more."),
        ({"max_rescues": 101}, "max_rescues: Give 100 or less."),
        ({"run_immediately": "yes"}, "run_immediately: Give true or false."),
        ({"overlap": "sometimes"}, "overlap: Give skip, queue_one, queue_all, allow or replace."),
        ({"status": 1}, "status: Give active or paused."),
        ({"pre_approvals": "all"}, "pre_approvals: Give a JSON list: values in brackets."),
        ({"pre_approvals": ["x"] * 101}, "pre_approvals: Give at most 100."),
        ({"pre_approvals": [""]}, "pre_approvals.0: Give at least 1 character."),
        ({"credentials": []}, "credentials: Give a JSON object: names and values in braces."),
        ({"timeout": 5}, None),
        ({"triggers": [{"cron": "0 9 * * *", "starts_at": "soon"}]}, None),
        ({"triggers": [{"cron": "0 9 * * *", "starts_at": "2027-01-01T09:00:00"}]}, None),
        ({"triggers": [{"cron": "0 9 * * *", "max_fires": 0}]}, None),
        ({"triggers": [{"cron": 5}]}, None),
        ({"budget": {"per_run": {"tokens": "many"}}}, None),
        ({"budget": {"per_run": {"money": "much"}}}, "budget.per_run.money: Give an amount, such as “0.50”."),
        ({"budget": {"per_run": {"money": "0.1234567890123456789"}}}, None),
        ({"budget": 5}, None),
    ],
)
async def test_what_would_be_right_is_told_in_words_of_the_house(
    api: Api, given: dict[str, Any], told: str | None
) -> None:
    refusal = assert_clearly_refused(await api.post("/automations", example(**given)), 422)
    assert told in {None, refusal["detail"]}, refusal
    words = json.dumps(refusal)
    assert not any(each in words for each in ("Input should", "should be", "should have", "valid ")), refusal


@pytest.mark.parametrize("query", [{"limit": "many"}, {"limit": 0}, {"limit": 101}, {"status": "odd"}, {"agent": ""}])
async def test_what_would_be_right_in_an_address_is_told_in_words_of_the_house(api: Api, query: dict[str, Any]) -> None:
    answer = await api.get("/runs", **query)
    assert "should" not in answer.text, answer.text


# Bodies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trap", VECTORS["json_body_traps"], ids=lambda trap: trap["body"])
async def test_every_trap_of_the_vectors_is_refused_wherever_it_stands_and_leaves_nothing_behind(
    office: Office, api: Api, trap: dict[str, str]
) -> None:
    assert_ok(await api.post("/automations", example(name="Digest")))
    if trap["want"] == "400 or documented":
        return  # what comes of it is told by the test below and in docs/reference/api.md
    wanted = [int(status) for status in trap["want"].split("/")]
    before = await office.count(*EVERYTHING)
    for method, path, frame in WRITES:
        for body in TRAPS[trap["body"]]:
            head, tail = frame.encode().split(b"%s")
            assert_clearly_refused(await api.send(method, path, content=body, headers=JSON), *wanted)
            assert_clearly_refused(await api.send(method, path, content=head + body + tail, headers=JSON), *wanted)
    assert await office.count(*EVERYTHING) == before


async def test_a_key_that_stands_twice_counts_with_its_last_value(api: Api) -> None:
    body = b'{"name": "First", "name": "Last", "agent": "worker-bee", "prompt": "x", "input": {"a":1,"a":2}}'
    saved = assert_ok(await api.send("POST", "/automations", content=body, headers=JSON))
    assert (saved["name"], saved["input"]) == ("Last", {"a": 2})


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**25, 10**300])
async def test_a_number_of_over_64_bits_is_refused_and_not_changed_in_silence(
    office: Office, api: Api, number: int
) -> None:
    before = await office.count(*EVERYTHING)
    for path, body in (("/automations", example(input=[number])), ("/agents/worker-bee/runs", {"input": number})):
        assert assert_clearly_refused(await api.post(path, body), 400)["code"] == "number_too_large"
        assert assert_clearly_refused(await api.post(path, body, key="k"), 400)["code"] == "number_too_large"
    assert await office.count(*EVERYTHING) == before


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 1e300, -1e-300, 0.1, 2.0**70])
async def test_a_number_that_can_be_kept_comes_back_as_it_was(api: Api, number: float) -> None:
    automation = assert_ok(await api.post("/automations", example(input={"n": number})))
    run = assert_ok(await api.post(f"/automations/{automation['id']}/run", {"payload": number}, key="k"))
    assert (await api.get(f"/automations/{automation['id']}")).json()["input"] == {"n": number}
    assert (await api.get(f"/runs/{run['id']}")).json()["payload"] == number
    await api.post(f"/runs/{run['id']}/cancel")
    assert assert_ok(await api.post(f"/runs/{run['id']}/retry"))["payload"] == number


@pytest.mark.parametrize("wrong", ["5", True, 5.0])
async def test_only_a_whole_number_is_one(api: Api, wrong: object) -> None:
    assert_refused(await api.post("/automations", example(max_attempts=wrong)), 422, "invalid", "max_attempts")
    assert_refused(await api.post("/automations/preview", {"schedule": DAILY, "count": wrong}), 422, "invalid", "count")


@pytest.mark.parametrize("wrong", [1, "true", "yes"])
async def test_only_true_and_false_are_yes_and_no(api: Api, wrong: object) -> None:
    assert_refused(await api.post("/automations", example(run_immediately=wrong)), 422, "invalid", "run_immediately")


@pytest.mark.parametrize("wrong", ["0.5", "1780304400", "-1e3"])
async def test_a_number_is_no_instant(api: Api, wrong: str) -> None:
    assert "such as" in assert_refused(await api.get("/audit", until=wrong), 422, "invalid", "until")["detail"]


async def test_what_cannot_be_done_with_an_address_is_told_with_what_can(api: Api) -> None:
    answer = await api.send("PUT", "/automations")
    assert_refused(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, HEAD, POST"


async def test_depth_is_taken_up_to_its_limit(api: Api) -> None:
    def nested(levels: int) -> Any:
        return json.loads("[" * levels + "]" * levels)

    automation = assert_ok(await api.post("/automations", example(input=nested(DEEPEST - 1))))
    assert (await api.get(f"/automations/{automation['id']}")).json()["input"] == nested(DEEPEST - 1)
    assert_refused(await api.post("/automations", example(input=nested(DEEPEST))), 400, "too_deep")


async def test_size_is_taken_up_to_its_limit(office: Office, api: Api) -> None:
    limit = office.site.web.settings.max_body_bytes
    body = json.dumps({"prompt": "x", "input": ""}).encode()
    fits = body[:-2] + b"x" * (limit - len(body)) + body[-2:]
    assert len(fits) == limit
    assert_ok(await api.send("POST", "/agents/worker-bee/runs", content=fits, headers=JSON))
    told = assert_refused(
        await api.send("POST", "/agents/worker-bee/runs", content=fits + b" ", headers=JSON), 413, "body_too_large"
    )  # fmt: skip
    assert told["limit"] == limit
    assert_refused(await api.post("/automations", example(prompt="x" * 200_001)), 422, "invalid", "prompt")


async def test_a_body_full_of_mistakes_is_answered_with_as_many_as_a_person_would_read(api: Api) -> None:
    answer = await api.post("/automations", {f"field{number}": number for number in range(20_000)})
    assert len(assert_clearly_refused(answer, 422)["errors"]) == 20
    assert len(answer.content) < 5000


async def test_a_body_without_end_is_cut_off_at_the_limit(office: Office, api: Api) -> None:
    given = 0

    async def endless() -> Any:
        nonlocal given
        while True:
            given += 65536
            yield b" " * 65536

    answer = await api.send("POST", "/automations", content=endless(), headers=JSON)
    assert_refused(answer, 413, "body_too_large")
    assert given <= office.site.web.settings.max_body_bytes + 2 * 65536


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b"{'name': 1}", b"name=x", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{}{}"]
)
async def test_what_is_not_json_is_refused(api: Api, body: bytes) -> None:
    told = assert_clearly_refused(await api.send("POST", "/automations", content=body, headers=JSON), 400, 422)
    assert told["code"] == ("not_json" if body else "invalid")
    assert "JSON" in told["detail"]


@pytest.mark.parametrize("body", ["null", "[]", "5", '"text"', "true", '[{"name": "x"}]'])
async def test_json_that_is_no_object_is_refused(api: Api, body: str) -> None:
    runs = [] if body == "null" else ["/agents/worker-bee/runs"]  # its body may be left out, which null is too
    for path in ("/agents", "/automations", "/events", *runs):
        told = assert_clearly_refused(await api.send("POST", path, content=body.encode(), headers=JSON), 422)
        assert "JSON object" in told["detail"]


@pytest.mark.parametrize(
    "kind",
    [None, "", "text/plain", "text/html", "application/x-www-form-urlencoded", "multipart/form-data", ";", "json"],
)
async def test_a_body_that_does_not_say_that_it_is_json_is_refused_and_told_how(
    office: Office, api: Api, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    automation = assert_ok(await api.post("/automations", example()))
    for path, body in (("/automations", example()), (f"/automations/{automation['id']}/run", {"payload": 1})):
        answer = await api.send("POST", path, content=json.dumps(body).encode(), headers=headers)
        assert "application/json" in assert_refused(answer, 400, "not_json", "Content-Type")["detail"]
    assert await office.ledger() == []


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/merge-patch+json"]
)
async def test_json_may_be_named_in_several_ways(api: Api, kind: str) -> None:
    assert_ok(await api.send("POST", "/automations", content=json.dumps(example()), headers={"Content-Type": kind}))


NAMED: list[tuple[str, str, dict[str, Any], str]] = [
    ("POST", "/agents", {"executor": "command", "config": {"argv": ["true"]}}, "name"),
    ("PATCH", "/agents/worker-bee", {}, "name"),
    ("POST", "/automations", {"agent": "worker-bee", "prompt": "x"}, "name"),
    ("POST", "/accounts", {"currency": "EUR"}, "name"),
    ("POST", "/tokens", {"scopes": ["read"]}, "name"),
    ("POST", "/credentials", {"name": "key", "value": "long enough"}, "description"),
    ("POST", "/sessions", {"agent": "worker-bee", "prompt": "x"}, "title"),
    ("POST", "/members", {"email": "ada@example.org"}, "name"),
    ("POST", "/pause", {}, "reason"),
]


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\x9bb", "a\u2028b", "a\r"])
async def test_no_name_holds_what_a_line_does_not_show(api: Api, name: str) -> None:
    for method, path, body, field in NAMED:
        told = assert_refused(await api.send(method, path, json={**body, field: name}), 422, "invalid", field)
        assert "Control characters" in told["detail"], path


async def test_a_title_that_is_made_of_a_prompt_has_none_either(api: Api) -> None:
    begun = assert_ok(
        await api.post("/sessions", {"agent": "worker-bee", "prompt": "Go\x1b[31m\non \U0001f469\u200d\U0001f680"})
    )
    assert begun["title"] == "Go on \U0001f469\u200d\U0001f680"


@pytest.mark.parametrize("trigger", ["nope", UNKNOWN])
async def test_a_webhook_that_is_not_there_is_not_found_whatever_its_address(api: Api, trigger: str) -> None:
    assert_refused(await api.client.post(f"/hooks/{trigger}", json={}), 404, "not_found")


@pytest.mark.parametrize(
    ("headers", "code", "title"),
    [
        ({}, "missing_signature", "Not signed"),
        (
            {"webhook-id": "1", "webhook-timestamp": "x", "webhook-signature": "v1,x"},
            "invalid_signature",
            "Wrong signature",
        ),
    ],
)
async def test_who_sends_a_webhook_is_not_told_to_sign_in(
    api: Api, headers: dict[str, str], code: str, title: str
) -> None:
    made_one = assert_ok(await api.post("/automations", example(triggers=[{"webhook": {}}])))
    answer = await api.client.post(f"/hooks/{made_one['triggers'][0]['id']}", json={}, headers=headers)
    assert (answer.status_code, answer.json()["code"], answer.json()["title"]) == (401, code, title)


async def test_naming_a_form_in_the_content_type_is_no_way_around_the_guard(api: Api) -> None:
    for kind in ("application/json; form", "application/json; boundary=multipart/form-data"):
        body = b'{"name": "x", "agent": "worker-bee", "prompt": "\\u0000"}'
        answer = await api.send("POST", "/automations", content=body, headers={"Content-Type": kind})
        assert_refused(answer, 400, "nul_character")


async def test_a_form_in_an_encoding_that_can_hold_anything_is_refused(api: Api) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="link"\r\n\r\n\\ud800\r\n--x--\r\n'
    for charset, status in (("raw_unicode_escape", 400), ('"Unicode_Escape"', 400), ("UTF-8", 401)):
        headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
        answer = await api.client.post("/sign-in", content=form, headers=headers)
        assert answer.status_code == status
        assert status == 401 or assert_refused(answer, 400, "not_utf8", "Content-Type")


async def test_a_request_that_breaks_off_half_way_does_nothing(office: Office, api: Api) -> None:
    """A body that is optional must not be taken for none when its sender is cut off."""
    automation = assert_ok(await api.post("/automations", example()))
    path = api.url(f"/automations/{automation['id']}/run")
    messages = iter([{"type": "http.request", "body": b'{"payl', "more_body": True}, {"type": "http.disconnect"}])
    answered: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        answered.append(message)

    headers = [
        (b"host", b"rota.test"),
        (b"authorization", f"Bearer {api.token}".encode()),
        (b"content-type", b"application/json"),
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("rota.test", 80),
    }  # fmt: skip
    await office.site.app(scope, receive, send)
    assert await office.ledger() == []
    assert answered == []


# Addresses, queries and headers -------------------------------------------------------------------------------------

ODD = [
    "%00",
    "a%00b",
    "%ED%A0%80",
    "%FF",
    "%F0%9F%98%80",
    "..%2F..",
    "a" * 5000,
    "-1",
    "9" * 5000,
    "%27%20OR%201=1",
    "%25s",
]


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_name_in_an_address_is_not_found_or_refused(office: Office, api: Api, odd: str) -> None:
    before = await office.count(*EVERYTHING)
    for path in (
        f"/agents/{odd}", f"/agents/{odd}/runs", f"/automations/{odd}", f"/automations/{odd}/revisions", f"/runs/{odd}",
        f"/sessions/{odd}", f"/sessions/{odd}/trace", f"/sessions/{odd}/events",
    ):  # fmt: skip
        assert_clearly_refused(await api.send("GET", path), 400, 404, 422)
    for path in (f"/automations/{odd}/run", f"/automations/{odd}/pause", f"/runs/{odd}/retry", f"/runs/{odd}/cancel"):
        assert_clearly_refused(await api.send("POST", path), 400, 404, 422)
    for path in (f"/agents/{odd}", f"/automations/{odd}", f"/automations/{UNKNOWN}/triggers/{odd}"):
        assert_clearly_refused(await api.send("PATCH", path, json={}), 400, 404, 422)
        assert_clearly_refused(await api.send("DELETE", path), 400, 404, 422)
    assert_clearly_refused(await Api(api.client, odd, api.token).get("/agents"), 400, 404)
    assert await office.count(*EVERYTHING) == before


@pytest.mark.parametrize("odd", [*ODD, "", "null", "1.5", "0x10", "%D9%A3", "1e3", "%20"])
async def test_an_odd_query_is_refused_or_finds_nothing(api: Api, odd: str) -> None:
    session = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "x"}))["session_id"]
    for path in (
        "/agents",
        "/automations",
        "/runs",
        "/sessions",
        "/agents/worker-bee/runs",
        f"/sessions/{session}/events",
    ):
        for name in ("limit", "cursor"):
            told = assert_clearly_refused(await api.send("GET", f"{path}?{name}={odd}"), 400, 422)
            assert told.get("field") == (None if "%00" in odd else name)
    for query in ("status", "session"):
        assert_clearly_refused(await api.send("GET", f"/runs?{query}={odd}"), 400, 422)
    assert_clearly_refused(await api.send("GET", f"/automations?deleted={odd}"), 400, 422)
    assert_clearly_refused(await api.send("GET", f"/sessions?kind={odd}"), 400, 422)
    answer = await api.send("GET", f"/runs?automation={odd}")
    assert assert_clearly_refused(answer, 400, 404, 422)


@pytest.mark.parametrize("cursor", ["AA", "MTI", "////", "----", "e30", "a" * 200, "bnVsbA==", "MDFhMWUwZGI"])
async def test_a_cursor_that_is_none_of_ours_is_refused(api: Api, cursor: str) -> None:
    for path in ("/agents", "/automations", "/runs", "/sessions"):
        assert_refused(await api.get(path, cursor=cursor), 422, "invalid_cursor", "cursor")


async def test_a_cursor_of_another_list_is_refused_or_harmless(api: Api) -> None:
    for _ in range(2):
        automation = assert_ok(await api.post("/automations", example()))
        await api.patch(f"/automations/{automation['id']}", {"name": "Again"})
    by_id = (await api.get("/automations", limit=1)).json()["next_cursor"]
    by_number = (await api.get(f"/automations/{automation['id']}/revisions", limit=1)).json()["next_cursor"]
    assert_ok(await api.get("/runs", cursor=by_id), 200)
    assert_refused(
        await api.get(f"/automations/{automation['id']}/revisions", cursor=by_id), 422, "invalid_cursor", "cursor"
    )
    assert_refused(await api.get("/runs", cursor=by_number), 422, "invalid_cursor", "cursor")


async def test_a_parameter_that_the_address_does_not_take_is_refused(api: Api) -> None:
    told = assert_refused(await api.get("/runs", staus="failed"), 422, "invalid", "staus")
    assert all(name in told["detail"] for name in ("automation", "cursor", "limit", "session", "status"))
    assert_refused(await api.get("/workers", limit=1), 422, "invalid", "limit")
    assert_refused(await api.send("GET", "/runs?limit=1&limit=2"), 422, "invalid", "limit")
    assert_refused(await api.get(f"/sessions/{UNKNOWN}/trace", since=1), 422, "invalid", "since")


HEADERS = [
    b"",
    b"\x00",
    b"a\x00b",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"x" * 60_000,
    b"-1",
    b"9" * 5000,
    b"1e9",
    b"%00",
    b"\t",
]


@pytest.mark.parametrize("value", HEADERS)
async def test_an_odd_header_is_refused_or_does_no_harm(office: Office, api: Api, value: bytes) -> None:
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "x"}))
    before = await office.count("runs", "start_keys")
    client, path = office.site.client(), api.url("/agents")
    told = assert_clearly_refused(await client.get(path, headers={b"Authorization": value}), 401)
    assert told["code"] == "unauthenticated"
    assert_clearly_refused(await client.get(path, headers={b"Authorization": b"Bearer " + value}), 401)
    assert_clearly_refused(await client.get(path, headers={b"Cookie": b"rota_80_login=" + value}), 401)
    if value:
        trace = f"/sessions/{run['session_id']}/trace"
        answer = await api.send("GET", trace, headers={"Last-Event-ID": value})
        assert assert_clearly_refused(answer, 422)["field"] == "Last-Event-ID"
    for header in (value, b"k" * 201):
        if 1 <= len(header) <= 200 and header.decode("latin-1").isprintable():
            continue
        answer = await api.send(
            "POST", "/agents/worker-bee/runs", json={"prompt": "x"}, headers={"Idempotency-Key": header}
        )
        assert_refused(answer, 422, "invalid_key", "Idempotency-Key")
    assert await office.count("runs", "start_keys") == before


async def test_a_key_may_hold_any_printable_character(api: Api) -> None:
    for key in (b"\xfcber", b"' OR 1=1 --", b"%s {}", b"k" * 200):
        runs = [
            assert_ok(
                await api.send(
                    "POST", "/agents/worker-bee/runs", json={"prompt": "x"}, headers={"Idempotency-Key": key}
                )
            )
            for _ in range(2)
        ]
        assert runs[0] == runs[1]


async def test_a_body_where_none_is_taken_is_refused_and_an_empty_one_is_not(api: Api) -> None:
    automation = assert_ok(await api.post("/automations", example()))
    path = f"/automations/{automation['id']}"
    told = assert_refused(await api.post(f"{path}/pause", {"until": "tomorrow"}), 422, "invalid", "until")
    assert "no body" in told["detail"]
    assert_refused(await api.post(f"{path}/pause", ["now"]), 422, "invalid")
    assert assert_ok(await api.get(path), 200)["status"] == "active"
    empty: tuple[dict[str, Any] | None, ...] = ({}, None)
    for body in empty:
        assert_ok(await api.post(f"{path}/pause", body), 200)


async def test_an_empty_filter_is_refused_where_it_would_give_everything(api: Api) -> None:
    for path in ("/runs", "/grants"):
        assert_refused(await api.get(path, automation=""), 422, "invalid", "automation")
    answer = await api.post("/automations/preview", {"schedule": DAILY, "automation": ""})
    assert_refused(answer, 422, "invalid", "automation")
    for path, name in (("/runs", "session"), ("/runs", "status"), ("/approvals", "session"), ("/grants", "user")):
        assert_refused(await api.get(path, **{name: ""}), 422, "invalid", name)


async def test_a_body_of_a_deletion_is_refused_and_nothing_is_deleted(api: Api) -> None:
    path = f"/automations/{assert_ok(await api.post('/automations', example()))['id']}"
    assert_refused(await api.delete(path, json={"only": "triggers"}), 422, "invalid", "only")
    assert_refused(await api.delete(path, content=b"{", headers=JSON), 400, "not_json")
    assert_refused(await api.delete(path, content=b"all"), 400, "not_json", "Content-Type")
    assert_ok(await api.get(path), 200)
    assert (await api.delete(path, json={})).status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/events", 405),
        ("OPTIONS", "/automations", 405),
        ("PUT", "/agents/worker-bee", 405),
        ("DELETE", "/runs", 405),
        ("BREW", "/agents", 405),
        ("GET", "/nothing", 404),
        ("POST", "/runs/x/y/z", 404),
        ("DELETE", "", 405),
    ],
)
async def test_a_route_or_method_that_is_not_there_is_told_in_the_same_form(
    api: Api, method: str, path: str, status: int
) -> None:
    answer = await api.send(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    if status == 405:
        assert answer.headers["Allow"]
        assert method not in answer.headers["Allow"]
    if method != "HEAD":
        assert answer.json()["code"] == {404: "not_found", 405: "method_not_allowed"}[status]
        assert answer.headers.get("Allow", "") in answer.json()["detail"]


# What cannot be kept ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instant",
    [
        "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59",
        "10000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T25:00:00Z", "2026-01-01", "infinity", "now", "",
        1e20, -1e20, 253402300800, True, [], {},
    ],
)  # fmt: skip
async def test_an_extreme_date_is_refused_or_kept_and_never_breaks_what_shows_it(api: Api, instant: Any) -> None:
    for name in ("starts_at", "ends_at"):
        for schedule in ({"cron": "0 9 * * *"}, {"every": "3653d"}, {"every": "1s"}, {"at": "9999-12-31T23:59:59Z"}):
            answer = await api.post("/automations", example(triggers=[{**schedule, name: instant}]))
            assert answer.status_code == 201 or assert_clearly_refused(answer, 422)["field"].startswith("triggers.0.")
    for zone in ("UTC", "Pacific/Kiritimati", "America/New_York"):
        once = {"at": instant, "timezone": zone}
        answer = await api.post("/automations", example(schedule=once))
        assert answer.status_code == 201 or assert_clearly_refused(answer, 422)["field"] == "schedule.at"
        answer = await api.post("/automations/preview", {"schedule": once})
        assert answer.status_code == 200 or assert_clearly_refused(answer, 422)["field"] == "schedule.at"
    answer = await api.post("/automations/preview", {"schedule": DAILY, "after": instant, "count": 100})
    assert answer.status_code == 200 or assert_clearly_refused(answer, 422)
    assert_ok(await api.get("/automations", limit=100), 200)


async def test_an_instant_from_before_there_was_a_limit_is_shown_and_not_moved(office: Office, api: Api) -> None:
    saved = assert_ok(await api.post("/automations", example(schedule={"at": "9998-12-31T23:59:00Z"})))
    [trigger] = saved["triggers"]
    await office.execute("UPDATE triggers SET at = '9999-12-31T23:59:00Z' WHERE id = %s", trigger["id"])
    path = f"/automations/{saved['slug']}/triggers/{trigger['id']}"
    moved = await api.patch(path, {"timezone": "Pacific/Kiritimati"})
    told = assert_clearly_refused(moved, 422)
    assert all(year in told["detail"] for year in ("1970", "9998"))
    await office.execute("UPDATE triggers SET timezone = 'Pacific/Kiritimati' WHERE id = %s", trigger["id"])
    shown = assert_ok(await api.get(f"/automations/{saved['slug']}"), 200)
    assert shown["schedule_text"] == "Once, on 31 December 9999 at 23:59, UTC"


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati"])
async def test_the_preview_of_an_interval_ends_with_the_calendar(api: Api, zone: str) -> None:
    form = {"every": "365d", "timezone": zone}
    told = assert_ok(await api.post("/automations/preview", {"schedule": form, "after": "9998-12-31T23:59:30Z"}), 200)
    assert told["fires"] == []


async def test_a_value_that_only_the_database_refuses_is_the_callers_mistake_and_leaves_nothing(
    office: Office, api: Api
) -> None:
    """The last net: whatever passes every check and does not fit is a 422, not a 500."""
    before = await office.count(*EVERYTHING)
    await office.execute("ALTER TABLE agents ALTER COLUMN instructions TYPE varchar(10)")
    try:
        agent = {"name": "x", "executor": "command", "config": {"argv": ["true"]}, "instructions": "longer than ten"}
        assert_refused(await api.post("/agents", agent), 422, "invalid")
    finally:
        await office.execute("ALTER TABLE agents ALTER COLUMN instructions TYPE text")
    assert await office.count(*EVERYTHING) == before


async def test_a_database_that_is_away_is_told_as_such_and_not_as_a_failure_of_ours(
    office: Office, api: Api, site: Site
) -> None:
    async with office.db.connection() as holder, holder.transaction():
        await holder.execute("LOCK TABLE automations")
        asked = asyncio.create_task(api.get("/automations"))
        await site.waiting_for_a_lock(1)
        await holder.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        answer = await asked
    assert_refused(answer, 503, "database_unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert_ok(await api.get("/automations"), 200)


# Anything at all ----------------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", " ", "\x00", "\ud800", "0 9 * * *", "@every 1s", "* * * * *", "15m", "1d", "UTC", "Europe/Berlin"]
    ),
    st.sampled_from(
        ["worker-bee", "succeeded", "skip", "all", "2127-01-01T00:00:00Z", "mon", "09:00", "days", "weekly"]
    ),
)
NUMBERS = st.one_of(
    st.integers(), st.integers(-2, 100), st.floats(), st.sampled_from([2**31, 2**63, 2**64, -1, 0, 1e308])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
WHEN = st.dictionaries(
    st.sampled_from(
        [
            "cron",
            "every",
            "at",
            "timezone",
            "mode",
            "unit",
            "time",
            "weekdays",
            "webhook",
            "event",
            "after",
            "on",
            "enabled",
            "starts_at",
            "ends_at",
            "max_fires",
            "jitter",
            "overlap",
            "id",
            "field",
            "kind",
        ]
    ),
    VALUES,
    max_size=5,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.just("Errand"), VALUES),
        "agent": st.one_of(st.just("worker-bee"), VALUES),
        "prompt": st.one_of(st.just("Do it."), VALUES),
        "schedule": st.one_of(st.just({"cron": "0 9 * * *"}), WHEN, VALUES),
        "triggers": st.one_of(st.lists(WHEN, max_size=3), VALUES),
        **dict.fromkeys(
            [
                "slug",
                "input",
                "status",
                "run_immediately",
                "session",
                "overlap",
                "catch_up",
                "catch_up_limit",
                "late_after",
                "max_attempts",
                "max_rescues",
                "max_task_depth",
                "max_tasks",
                "timeout",
                "start_within",
                "approval_expires",
                "pre_approvals",
                "pause_after_failures",
                "budget",
                "surprise",
            ],
            VALUES,
        ),
    },
)


@given(body=BODIES, patch=BODIES)
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
async def test_whatever_an_automation_says_it_is_saved_or_refused_and_what_was_saved_can_be_shown(
    site: Site, body: dict[str, Any], patch: dict[str, Any]
) -> None:
    office = OFFICES.get(site.database_url) or OFFICES.setdefault(site.database_url, await furnish(site))
    api = APIS.get(site.database_url) or APIS.setdefault(site.database_url, await office.api())
    before = await office.count(*EVERYTHING)
    answer = await api.send("POST", "/automations", content=json.dumps(body), headers=JSON)
    if answer.status_code == 201:
        changed = await api.send(
            "PATCH", f"/automations/{answer.json()['id']}", content=json.dumps(patch), headers=JSON
        )
        assert changed.status_code == 200 or assert_clearly_refused(changed, 400, 409, 422)
        assert_ok(await api.get(f"/automations/{answer.json()['id']}"), 200)
        assert_ok(await api.get("/automations", limit=100), 200)
        assert (await api.delete(f"/automations/{answer.json()['id']}")).status_code == 204
    else:
        assert_clearly_refused(answer, 400, 409, 422)
        assert await office.count(*EVERYTHING) == before


OFFICES: dict[str, Office] = {}
APIS: dict[str, Api] = {}


# Starting -----------------------------------------------------------------------------------------------------------


async def test_a_program_that_does_not_exist_is_an_executor_error_that_names_it_when_it_runs(
    office: Office, api: Api, tmp_path: Path
) -> None:
    agent = {"name": "None", "executor": "command", "config": {"argv": ["no-such-program"]}, "pool": office.pool}
    assert "no-such-program" in assert_ok(await api.post("/agents", agent))["warnings"][0]
    run = assert_ok(await api.post("/agents/none/runs", {"prompt": "x"}))
    at_work = await office.claim()
    outcome = await CommandExecutor().execute(replace(at_work.assignment, directory=tmp_path), at_work.desk)
    assert isinstance(outcome, Failed)
    await office.settle(at_work, outcome)
    ended = (await api.get(f"/runs/{run['id']}")).json()
    assert (ended["status"], ended["error_class"]) == ("failed", ErrorClass.EXECUTOR_ERROR)
    assert "no-such-program" in ended["error_detail"]


async def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart) as refusal:
            bind("127.0.0.1", port)
    assert (refusal.value.code, refusal.value.field) == ("cannot_listen", "port")
    assert str(port) in refusal.value.message
    assert "--port" in refusal.value.message


@pytest.mark.parametrize("host", ["nowhere.invalid", "256.1.1.1", "a" * 70, "ö" * 80, "203.0.113.1", "::ffff:zz"])
async def test_an_address_that_is_not_this_machines_is_named_with_what_to_do(host: str) -> None:
    with pytest.raises(CannotStart) as refusal:
        bind(host, 0)
    assert host in refusal.value.message
    assert "--host" in refusal.value.message


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow, and so neither what pytest tells, if it is told to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_home_that_is_full_stops_the_start_in_words(tmp_path: Path) -> None:
    with pytest.raises(CannotStart) as refusal, full_disk(), only_one(tmp_path) as say_where:
        say_where("http://127.0.0.1:7682")
    assert refusal.value.field == "home"
    assert os.strerror(errno.EFBIG) in refusal.value.message
    assert str(tmp_path) in refusal.value.message


@pytest.mark.parametrize("home", ["/proc/rota", "/dev/null/rota"])
async def test_a_home_that_cannot_be_written_is_named(home: str) -> None:
    with pytest.raises(CannotStart) as refusal, only_one(Path(home)):
        pass
    assert refusal.value.field == "home"
    assert home in refusal.value.message


async def test_what_a_second_start_is_told_is_where_the_first_answers(tmp_path: Path) -> None:
    with only_one(tmp_path) as say_where:
        with pytest.raises(CannotStart, match="just starting"), only_one(tmp_path):
            pass
        say_where("http://127.0.0.1:7682")
        with pytest.raises(CannotStart, match=r"http://127\.0\.0\.1:7682 \(process") as refusal, only_one(tmp_path):
            pass
    assert refusal.value.code == "already_running"
    await until(lambda: _free(tmp_path))


async def _free(home: Path) -> bool:
    with only_one(home):
        return True
