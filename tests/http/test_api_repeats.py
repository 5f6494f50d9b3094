"""Routes that see to repeats themselves: what is made with an `Idempotency-Key` is made once, and shown as it stands."""

import asyncio
from typing import Any

import pytest

from support import api_client
from support.api_client import Api, Office, assert_ok, assert_refused, example

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

KEY = "Idempotency-Key"
TRIGGERS = "/automations/morning-digest/triggers"
TOKEN = {"name": "script", "scopes": ["read"]}
MADE: dict[str, dict[str, Any]] = {
    "/agents": {"name": "Scribe", "executor": "command", "config": {"argv": ["true"]}},
    "/accounts": {"name": "Research", "budget": {"per_run": {"money": "0.50"}}},
    "/notifications/targets": {"name": "Desk", "url": "json://example.org/"},
    TRIGGERS: {"every": "1h"},
}


async def listed(api: Api, path: str) -> list[dict[str, Any]]:
    if path == TRIGGERS:
        return list(assert_ok(await api.get("/automations/morning-digest"), 200)["triggers"])
    return list(assert_ok(await api.get(path), 200)["items"])


@pytest.mark.parametrize("path", MADE)
async def test_the_same_key_makes_a_thing_once_also_at_the_same_instant(api: Api, path: str) -> None:
    assert_ok(await api.post("/automations", example()))
    body, before = MADE[path], len(await listed(api, path))
    answers = await asyncio.gather(*[api.post(path, body, key="once") for _ in range(4)])
    assert len({assert_ok(each)["id"] for each in answers}) == 1
    assert len(await listed(api, path)) == before + 1
    other = {**body, "name": "Another"} if "name" in body else {"every": "2h"}
    assert_refused(await api.post(path, other, key="once"), 422, "key_reused", "Idempotency-Key")
    assert_refused(await api.post(path, body, key="x" * 201), 422, "invalid_key", "Idempotency-Key")
    assert len(await listed(api, path)) == before + 1


async def test_a_secret_is_shown_once_so_a_repeat_of_what_made_it_is_refused_and_makes_no_second(api: Api) -> None:
    before = len(await listed(api, "/tokens"))
    token = assert_ok(await api.post("/tokens", TOKEN, key="once"))
    told = assert_refused(await api.post("/tokens", TOKEN, key="once"), 409, "shown_once", "Idempotency-Key")
    assert told["id"] == token["id"]
    assert token["secret"] not in str(told)
    assert len(await listed(api, "/tokens")) == before + 1


async def test_a_webhook_that_is_added_twice_with_one_key_keeps_its_secret(api: Api) -> None:
    assert_ok(await api.post("/automations", example()))
    first, again = [assert_ok(await api.post(TRIGGERS, {"webhook": {}}, key="once")) for _ in range(2)]
    assert (first["id"], again["secret"]) == (again["id"], None)
    renewing = f"{TRIGGERS}/{first['id']}/secret"
    assert assert_ok(await api.post(renewing, key="anew"))["secret"] not in {None, first["secret"]}
    assert_refused(await api.post(renewing, key="anew"), 409, "shown_once", "Idempotency-Key")


async def test_a_repeat_that_comes_after_the_thing_was_taken_away_finds_nothing_and_makes_nothing(api: Api) -> None:
    assert_ok(await api.post("/automations", example()))
    trigger = assert_ok(await api.post(TRIGGERS, {"every": "1h"}, key="once"))
    await api.delete(f"{TRIGGERS}/{trigger['id']}")
    assert_refused(await api.post(TRIGGERS, {"every": "1h"}, key="once"), 404, "not_found")
    assert trigger["id"] not in {each["id"] for each in await listed(api, TRIGGERS)}


async def test_a_key_is_its_persons_own(office: Office, api: Api) -> None:
    assert_ok(await api.post("/tokens", TOKEN, key="once"))
    other = await office.api("member")
    assert_refused(await other.post("/tokens", TOKEN, key="once"), 422, "key_reused", "Idempotency-Key")


STARTED: dict[str, dict[str, Any] | None] = {
    "/automations": example(name="Evening digest"),
    "/automations/morning-digest/run": None,
    "/agents/worker-bee/runs": {"prompt": "Sweep."},
    "/sessions": {"agent": "worker-bee"},
}


@pytest.mark.parametrize("path", STARTED)
async def test_what_a_key_started_is_not_given_to_another_person_as_theirs(office: Office, api: Api, path: str) -> None:
    assert_ok(await api.post("/automations", example()))
    assert_ok(await api.post(path, STARTED[path], key="once"))
    assert_refused(await (await office.api("member")).post(path, STARTED[path], key="once"), 422, "key_reused", KEY)
    assert_refused(await (await office.api("viewer")).post(path, STARTED[path], key="once"), 403, "forbidden")
    assert_ok(await api.post(path, STARTED[path], key="once"))


async def test_who_may_not_post_an_event_is_not_told_that_it_is_posted(office: Office, api: Api) -> None:
    assert_ok(await api.post("/events", {"event": "rain"}, key="once"), 202)
    assert_refused(await (await office.api("viewer")).post("/events", {"event": "rain"}, key="once"), 403, "forbidden")
    assert_refused(
        await (await office.api("member")).post("/events", {"event": "rain"}, key="once"), 422, "key_reused", KEY
    )
    assert_ok(await api.post("/events", {"event": "rain"}, key="once"), 202)


async def test_what_was_refused_is_judged_anew(api: Api) -> None:
    assert_ok(await api.post("/accounts", {"name": "Research"}))
    assert_refused(await api.post("/accounts", {"name": "Research"}, key="once"), 409, "name_taken", "name")
    assert_ok(await api.post("/accounts", {"name": "Travel"}, key="once"))
