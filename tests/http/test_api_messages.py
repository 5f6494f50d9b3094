"""Messages over HTTP: publish, long-poll, acknowledge."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from rota.db.listener import session_channel
from rota.model.message import LARGEST_BODY
from support import api_client
from support.api_client import UNKNOWN, Api, Office, Site, assert_ok, assert_refused
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api


@pytest_asyncio.fixture(loop_scope="module")
async def path(api: Api) -> str:
    """The messages of a session."""
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Meet."}))
    return f"/sessions/{run['session_id']}/messages"


def bodies(page: dict[str, Any]) -> Iterator[Any]:
    return (each["body"] for each in page["items"])


async def inbox(api: Api, path: str, **given: Any) -> list[Any]:
    return list(bodies(assert_ok(await api.get(path, **given), 200)))


async def test_a_message_is_sent_read_and_acknowledged(api: Api, path: str) -> None:
    sent = assert_ok(await api.post(path, {"body": {"plan": 1}, "to": "agent"}))
    assert (sent["from"], sent["to"], sent["body"], sent["run_id"]) == ("user", "agent", {"plan": 1}, None)
    assert sent["deliveries"] == [{"role": "agent", "acked_at": None}]
    assert (await api.get(path)).json()["items"] == [sent]
    assert await inbox(api, path, role="agent", unacked=True) == [{"plan": 1}]
    for _ in range(2):
        assert (await api.post(f"{path}/{sent['id']}/ack", {"role": "agent"})).status_code == 204
    assert await inbox(api, path, role="agent", unacked=True) == []
    [read] = (await api.get(path, role="agent")).json()["items"]
    assert read["deliveries"][0]["acked_at"]


async def test_the_person_has_an_inbox_too(office: Office, api: Api, path: str) -> None:
    at_work = await office.claim()
    sent = await at_work.desk.message("Look!", to="user")
    assert await inbox(api, path, role="user", unacked=True) == ["Look!"]
    assert (await api.post(f"{path}/{sent['id']}/ack")).status_code == 204
    assert await inbox(api, path, role="user", unacked=True) == []


async def test_messages_come_in_pages_and_after_a_number(api: Api, path: str) -> None:
    sent = [assert_ok(await api.post(path, {"body": n})) for n in range(5)]
    assert [each["body"] for each in await api.pages(path, 2)] == list(range(5))
    assert await inbox(api, path, after=sent[2]["id"]) == [3, 4]
    assert await inbox(api, path, after=2**63 - 1) == []


async def test_a_repeat_with_its_key_is_the_same_message(api: Api, path: str) -> None:
    first = assert_ok(await api.post(path, {"body": "once"}, key="k"))
    assert assert_ok(await api.post(path, {"body": "once"}, key="k")) == first
    assert_refused(await api.post(path, {"body": "other"}, key="k"), 422, "key_reused", "Idempotency-Key")
    assert_refused(await api.post(path, {"body": "once"}, key="x" * 201), 422, "invalid_key", "Idempotency-Key")
    assert await inbox(api, path) == ["once"]


async def test_who_waits_is_told_when_something_comes(api: Api, path: str, site: Site) -> None:
    waiting = asyncio.create_task(inbox(api, path, role="agent", unacked=True, wait="30s"))
    await _listening(site, path)
    assert_ok(await api.post(path, {"body": "At last."}))
    async with asyncio.timeout(10):
        assert await waiting == ["At last."]


async def test_who_waits_for_what_is_there_is_answered_at_once_and_else_in_time(api: Api, path: str) -> None:
    assert await inbox(api, path, wait="0.05s") == []
    assert_ok(await api.post(path, {"body": "here"}))
    async with asyncio.timeout(10):
        assert await inbox(api, path, wait="60s") == ["here"]


async def test_many_who_wait_leave_the_pool_to_others(office: Office, api: Api, path: str, site: Site) -> None:
    waiting = [asyncio.create_task(inbox(api, path, wait="60s")) for _ in range(40)]  # the pool has 20
    await _listening(site, path, 40)
    assert_ok(await api.post(path, {"body": "Good morning, everybody."}))
    async with asyncio.timeout(20):
        assert await asyncio.gather(*waiting) == [["Good morning, everybody."]] * 40


async def _listening(site: Site, path: str, wanted: int = 1) -> None:

    channel = session_channel(UUID(path.split("/")[2]))

    async def check() -> bool:
        return site.web.listener.handler_counts().get(channel, 0) >= wanted

    await until(check)


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 422, "invalid", "body"),
        ({"body": "x", "text": "x"}, 422, "invalid", "text"),
        ({"body": "x", "to": "jugde"}, 422, "unknown_role", "to"),
        ({"body": "x", "to": "No Role"}, 422, "invalid", "to"),
        ({"body": "x", "to": None}, 422, "invalid", "to"),
        ({"body": "x", "from": "planner"}, 422, "not_your_role", "from"),
        ({"body": "x", "from": "agent"}, 422, "not_your_role", "from"),
        ({"body": "x" * LARGEST_BODY}, 413, "message_too_large", "body"),
        ({"body": "x" * (2 * LARGEST_BODY)}, 413, "body_too_large", None),
    ],
)
async def test_what_cannot_be_sent_is_refused(
    api: Api, path: str, body: Any, status: int, code: str, field: str | None
) -> None:
    assert_refused(await api.post(path, body), status, code, field)
    assert await inbox(api, path) == []


async def test_a_prompt_and_a_body_are_two_things_to_send(api: Api, path: str) -> None:
    for more in ({"prompt": "x"}, {"input": [1]}):
        told = assert_refused(await api.post(path, {"body": "x", **more}), 422, "invalid", "body")
        assert all(name in told["detail"] for name in ("body", *more))


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"role": "jugde"}, "unknown_role", "role"),
        ({"wait": "61s"}, "invalid", "wait"),
        ({"wait": "soon"}, "invalid", "wait"),
        ({"after": -1}, "invalid", "after"),
        ({"after": 2**63}, "invalid", "after"),
        ({"cursor": "x"}, "invalid_cursor", "cursor"),
        ({"unacked": "perhaps"}, "invalid", "unacked"),
    ],
)
async def test_what_cannot_be_asked_is_refused(
    api: Api, path: str, given: dict[str, Any], code: str, field: str
) -> None:
    assert_refused(await api.get(path, **given), 422, code, field)


async def test_what_is_not_there_is_not_found(api: Api, path: str) -> None:
    assert_refused(await api.post(f"{path}/999/ack"), 404, "not_delivered", "message_id")
    assert_refused(await api.post(f"{path}/999/ack", {"role": "jugde"}), 422, "unknown_role", "role")
    assert_refused(await api.post(f"{path}/{2**63}/ack"), 422, "invalid", "message_id")
    assert_refused(await api.get(f"/sessions/{UNKNOWN}/messages"), 404, "not_found")
    assert_refused(await api.post(f"/sessions/{UNKNOWN}/messages", {"body": "x"}), 404, "not_found")
