"""Clients that send slowly, too much, or ambiguously: raw sockets against a real server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from rota.access import signing_in
from rota.db.listener import session_channel
from rota.http import server
from rota.http.app import create_app
from rota.http.bodies import BodyGuard
from rota.model.executor import LARGEST_CHECKPOINT
from rota.model.ids import SessionId
from rota.model.scope import Scope
from support import api_client
from support.api_client import UNKNOWN, Api, Office, Site, assert_ok, serving
from support.waiting import until

from .test_api_sessions import session_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

SECONDS = 0.4
SHORT, LONG = timedelta(seconds=SECONDS), timedelta(minutes=1)
SLOW_HEADERS = {"header_seconds": SHORT}
SLOW_BODY = {"body_seconds": SHORT}
HOOK = f"/hooks/{UNKNOWN}"


def with_settings(site: Site, **settings: Any) -> Site:
    """The application with other settings; its deadlines are long unless they are given."""
    settings = {"header_seconds": LONG, "body_seconds": LONG, **settings}
    web = replace(site.web, settings=replace(site.web.settings, **settings), closing=asyncio.Event())
    return Site(web, create_app(web), site.database_url)


@asynccontextmanager
async def server_of(site: Site, **settings: Any) -> AsyncIterator[str]:
    async with serving(with_settings(site, **settings)) as address:
        yield address


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Status, headers and content of the next response."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            content = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status.split()[1]), headers, json.loads(content) if "json" in headers.get("content-type", "") else ""

    async def refusal(self, status: int, code: str) -> dict[str, Any]:
        """A problem, after which the connection is closed."""
        found, headers, told = await self.answer()
        assert (found, told["status"], told["code"], headers["connection"]) == (status, status, code, "close"), told
        assert headers["content-type"] == "application/problem+json"
        assert await self.rest() == b""
        return {**told, "headers": headers}

    async def rest(self) -> bytes:
        """Whatever still comes until the server closes the connection."""
        async with asyncio.timeout(10):
            return await self.reader.read()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    there = urlsplit(address)
    reader, writer = await asyncio.open_connection(there.hostname, there.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def head(method: str, path: str, *lines: str, token: str = "") -> bytes:
    signed = [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *signed, *lines, "", ""]).encode()


def of_json(length: int, *lines: str) -> tuple[str, ...]:
    return ("Content-Type: application/json", f"Content-Length: {length}", *lines)


# Headers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"G", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_request_whose_headers_do_not_end_is_refused(site: Site, begun: bytes) -> None:
    async with server_of(site, **SLOW_HEADERS) as address, connected(address) as client:
        client.send(begun)
        await client.refusal(408, "headers_too_slow")


async def test_a_connection_that_sends_nothing_is_closed_without_an_answer(site: Site) -> None:
    async with server_of(site, **SLOW_HEADERS) as address, connected(address) as client:
        assert await client.rest() == b""


async def test_each_byte_of_a_head_does_not_prolong_its_deadline(site: Site) -> None:
    async with server_of(site, **SLOW_HEADERS) as address, connected(address) as client:
        answer = asyncio.create_task(client.refusal(408, "headers_too_slow"))
        client.send(b"GET /healthz HTTP/1.1\r\nX: ")
        while not answer.done():
            client.send(b"x")
            await asyncio.sleep(SECONDS / 20)
        await answer


async def test_the_next_request_of_a_connection_has_the_same_deadline(site: Site) -> None:
    async with server_of(site, **SLOW_HEADERS) as address, connected(address) as client:
        for _ in range(2):
            client.send(head("GET", "/healthz"))
            assert (await client.answer())[0] == 200
        client.send(b"GET /healthz HTTP/1.1\r\n")
        await client.refusal(408, "headers_too_slow")


async def test_a_long_answer_has_no_deadline(site: Site, office: Office, api: Api) -> None:
    session = await session_of(api)
    async with server_of(site, **SLOW_HEADERS) as address, connected(address) as client:
        wait = f"/sessions/{session}/messages?unacked=true&role=user&wait=1s"
        client.send(head("GET", api.url(wait), token=api.token))
        assert (await client.answer())[0] == 200
        client.send(head("GET", "/healthz"))  # and the connection lives on
        assert (await client.answer())[0] == 200


# Bodies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [HOOK, "/sign-in", "/agents"])
async def test_a_body_that_stops_arriving_is_refused(site: Site, api: Api, path: str) -> None:
    signed = path == "/agents"
    async with server_of(site, **SLOW_BODY) as address, connected(address) as client:
        client.send(head("POST", api.url(path) if signed else path, *of_json(100), token=api.token if signed else ""))
        client.send(b'{"name": ')
        await client.refusal(408, "body_too_slow")


async def test_a_body_that_comes_too_slowly_is_refused_though_it_never_pauses(site: Site) -> None:
    async with server_of(site, **SLOW_BODY) as address, connected(address) as client:
        answer = asyncio.create_task(client.refusal(408, "body_too_slow"))
        client.send(head("POST", HOOK, *of_json(100_000)))
        while not answer.done():
            client.send(b" ")
            await asyncio.sleep(SECONDS / 20)
        await answer


async def test_an_upload_that_stops_arriving_is_refused_and_leaves_nothing(site: Site, api: Api) -> None:
    session = await session_of(api)
    incoming = site.web.settings.home / "artifacts" / "incoming"
    path = api.url(f"/sessions/{session}/artifacts?name=half.bin")
    async with server_of(site, **SLOW_BODY) as address, connected(address) as client:
        client.send(head("POST", path, "Content-Length: 100000", token=api.token) + b"x" * 50_000)
        await client.refusal(408, "body_too_slow")
    assert list(incoming.iterdir()) == []
    assert (await api.get(f"/sessions/{session}/artifacts")).json()["items"] == []


async def test_a_slow_but_steady_upload_succeeds(site: Site, api: Api) -> None:
    session = await session_of(api)
    path = api.url(f"/sessions/{session}/artifacts?name=large.bin")
    piece, count, pause = b"x" * 200_000, 20, timedelta(seconds=1)
    async with server_of(site, body_seconds=pause) as address, connected(address) as client:
        client.send(head("POST", path, f"Content-Length: {len(piece) * count}", token=api.token))
        for _ in range(count):
            client.send(piece)
            await asyncio.sleep(0.1)  # all of them take twice as long as the longest pause
        status, _, kept = await client.answer()
        assert (status, kept["size"]) == (201, 4_000_000)


# Refused before the body is read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [100, 1_000_000])
@pytest.mark.parametrize("path", ["/api/v1/workspaces/{}/agents", "/w/{}/agents", "/mcp"])
async def test_who_is_not_signed_in_is_refused_before_the_body_is_sent(
    site: Site, api: Api, path: str, length: int
) -> None:
    for token in ("", "rota_unknown"):
        async with server_of(site) as address, connected(address) as client:
            client.send(head("POST", path.format(api.workspace), *of_json(length), token=token))
            status, headers, _ = await client.answer()
            assert (status, headers["connection"]) == (401, "close")


async def test_an_upload_of_who_is_not_signed_in_is_refused_before_it_is_sent(site: Site, api: Api) -> None:
    path = api.url(f"/sessions/{UNKNOWN}/artifacts?name=x")
    async with server_of(site) as address, connected(address) as client:
        client.send(head("POST", path, "Content-Length: 1000000", "Expect: 100-continue"))
        await client.refusal(401, "unauthenticated")


async def test_a_token_without_the_scope_is_refused_before_the_body_is_sent_and_the_log_has_it(
    site: Site, office: Office, api: Api
) -> None:
    async with office.db.transaction() as conn:
        caller = office.caller
        _, token = await signing_in.add_token(conn, caller.workspace_id, caller.user_id, "r", scopes=[Scope.READ])
    async with server_of(site) as address, connected(address) as client:
        client.send(head("POST", api.url("/agents"), *of_json(100_000), token=token))
        assert (await client.refusal(403, "scope_missing"))["needs_scope"] == "admin"
    entry = (await api.get("/audit")).json()["items"][0]
    assert (entry["action"], entry["status"], entry["code"]) == ("agent.create", 403, "scope_missing")


@pytest.mark.parametrize(
    ("path", "method", "length", "code"),
    [
        ("/agents", "POST", 1_048_577, "body_too_large"),
        ("/sessions/{session}/artifacts?name=x", "POST", 104_857_601, "artifact_too_large"),
        ("/runs/{run}/desk/checkpoint", "PUT", LARGEST_CHECKPOINT + 1, "checkpoint_too_large"),
    ],
)
async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_is_sent(
    site: Site, office: Office, api: Api, path: str, method: str, length: int, code: str
) -> None:
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "x"}))
    at_work = await office.claim()
    token = at_work.token if "desk" in path else api.token
    there = api.url(path.format(session=run["session_id"], run=run["id"]))
    async with server_of(site) as address, connected(address) as client:
        client.send(head(method, there, *of_json(length, "Expect: 100-continue"), token=token))
        await client.refusal(413, code)
    await office.settle(at_work)


async def test_who_asks_whether_to_send_the_body_is_told_to_once_they_are_signed_in(site: Site, api: Api) -> None:
    body = json.dumps({"name": "Asked first", "executor": "command", "config": {"argv": ["true"]}}).encode()
    asked = of_json(len(body), "Expect: 100-continue")
    async with server_of(site) as address:
        async with connected(address) as client:
            client.send(head("POST", api.url("/agents"), *asked, token="rota_unknown"))
            await client.refusal(401, "unauthenticated")
        async with connected(address) as client:
            client.send(head("POST", api.url("/agents"), *asked, token=api.token))
            assert (await client.answer())[0] == 100
            client.send(body)
            assert (await client.answer())[0] == 201


async def test_a_client_that_sends_everything_first_still_reads_why_it_was_refused(site: Site) -> None:
    """Without the lingering close the connection is reset while the client sends, and the response is lost."""
    async with server_of(site) as address:
        for _ in range(5):
            async with connected(address) as client:
                client.send(head("POST", HOOK, *of_json(20_000_000)))
                for _ in range(200):
                    client.send(b" " * 100_000)
                    await client.writer.drain()
                await client.refusal(413, "body_too_large")


async def test_a_client_that_goes_on_sending_is_cut_off_in_the_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_SECONDS", SECONDS)
    async with server_of(site) as address, connected(address) as client:
        client.send(head("POST", HOOK, *of_json(20_000_000)))
        assert (await client.answer())[0] == 413
        with pytest.raises(ConnectionError):
            await send_without_end(client)


async def send_without_end(client: Client) -> None:
    async with asyncio.timeout(10):
        while True:
            client.send(b" " * 1000)
            await client.writer.drain()
            await asyncio.sleep(SECONDS / 20)


# What strangers make the server hold --------------------------------------------------------------------------------


async def holding(client: Client, length: int, sent: int) -> None:
    client.send(head("POST", HOOK, *of_json(length)) + b" " * sent)
    await client.writer.drain()


async def holds(site: Site, size: int) -> bool:
    layer: Any = site.app.middleware_stack  # made for the first request
    while layer and not isinstance(layer, BodyGuard):
        layer = layer.app if hasattr(layer, "app") else layer._app
    return bool(layer) and layer._unauthenticated._total == size


async def test_the_largest_unfinished_body_makes_room_for_others(site: Site) -> None:
    limited = with_settings(site, max_unauthenticated_bytes=200_000)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(limited))
        large, small = [await stack.enter_async_context(connected(address)) for _ in range(2)]
        await holding(large, 190_000, 180_000)
        await until(lambda: holds(limited, 180_000))
        await holding(small, 60_000, 50_000)
        told = await large.refusal(503, "too_many_bodies")
        assert told["headers"]["retry-after"] == "1"
        small.send(b" " * 9_998 + b"{}")
        assert (await small.answer())[0] == 404  # read to its end: there is no such webhook


async def test_what_is_given_back_can_be_held_again(site: Site) -> None:
    async with server_of(site, max_unauthenticated_bytes=100_000) as address:
        for _ in range(5):
            async with connected(address) as client:
                client.send(head("POST", HOOK, *of_json(90_000)) + b" " * 89_998 + b"{}")
                assert (await client.answer())[0] == 404


async def test_bodies_of_who_is_signed_in_are_not_counted(site: Site, api: Api) -> None:
    body = json.dumps({"prompt": "x" * 150_000}).encode()
    async with server_of(site, max_unauthenticated_bytes=100_000) as address, connected(address) as client:
        client.send(head("POST", api.url("/agents/worker-bee/runs"), *of_json(len(body)), token=api.token) + body)
        assert (await client.answer())[0] == 201


# Ambiguous requests -------------------------------------------------------------------------------------------------

SMUGGLED = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         "ambiguous_request"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
         "ambiguous_request"),
        (b"POST /hooks/x HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "ambiguous_request"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", "ambiguous_request"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", "ambiguous_request"),
        (b"GET /healthz HTTP/1.1\nHost: localhost\n\n", "ambiguous_request"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\nX: b\r\n\r\n", "ambiguous_request"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\n", "ambiguous_request"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "refused"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 6\r\n\r\nhello", "refused"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nhello", "refused"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nContent-Length : 5\r\n\r\nhello", "refused"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "refused"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
         "refused"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", "refused"),
        (b"POST /hooks/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n", "refused"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n", "refused"),
    ],
)  # fmt: skip
async def test_a_request_that_a_proxy_could_split_differently_is_refused_with_all_behind_it(
    site: Site, request_: bytes, code: str
) -> None:
    async with server_of(site) as address, connected(address) as client:
        client.send(request_ + SMUGGLED)
        await client.refusal(400, code)


async def test_requests_that_follow_each_other_at_once_are_all_answered(site: Site) -> None:
    async with server_of(site) as address, connected(address) as client:
        chunked = head("POST", HOOK, "Content-Type: application/json", "Transfer-Encoding: chunked")
        client.send(
            SMUGGLED + head("POST", HOOK, *of_json(4)) + b"{\n }" + chunked + b"2\r\n{}\r\n0\r\n\r\n" + SMUGGLED
        )
        assert [(await client.answer())[0] for _ in range(4)] == [200, 404, 404, 200]


# Streams ------------------------------------------------------------------------------------------------------------


async def statuses(clients: Sequence[Client], request: bytes) -> list[int]:
    for client in clients:
        client.send(request)
    heads = [await client.reader.readuntil(b"\r\n\r\n") for client in clients]
    return sorted(int(re.split(rb" ", each)[1]) for each in heads)


async def test_a_token_has_so_many_streams_open_and_no_more(site: Site, office: Office, api: Api) -> None:
    session = await session_of(api)
    trace = head("GET", api.url(f"/sessions/{session}/trace"), token=api.token)
    waiting = f"/sessions/{session}/messages?role=user&unacked=true&wait=60s"
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(server_of(site, max_streams=3))
        first, *clients = [await stack.enter_async_context(connected(address)) for _ in range(7)]
        assert await statuses([first], trace) == [200]
        assert await statuses(clients[:4], trace) == [200, 200, 429, 429]  # opened at the same time
        last = clients[4]
        for path in (waiting, f"/sessions/{session}/trace"):
            last.send(head("GET", api.url(path), token=api.token))
            status, headers, told = await last.answer()
            assert (status, told["code"], told["limit"], headers["retry-after"]) == (429, "too_many_streams", 3, "5")
        last.send(head("GET", f"/w/{api.workspace}/top", token=api.token))
        assert (await last.answer())[0] == 429
        last.send(head("HEAD", api.url(f"/sessions/{session}/trace"), token=api.token))
        assert b" 429 " in await last.reader.readuntil(b"\r\n\r\n")
        last.send(head("GET", api.url("/agents"), token=api.token))
        assert (await last.answer())[0] == 200
        other = await office.api("viewer")
        assert await statuses([clients[5]], trace.replace(api.token.encode(), other.token.encode())) == [200]
        first.writer.close()

        async def is_open() -> bool:
            last.send(trace)
            if b" 200 " in await last.reader.readuntil(b"\r\n\r\n"):
                return True
            await last.reader.readuntil(b"}")
            return False

        await until(is_open)


async def test_an_agent_that_waits_too_often_has_asked_nothing(site: Site, office: Office, api: Api) -> None:
    run = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "x"}))
    at_work = await office.claim()
    desk = api.url(f"/runs/{run['id']}/desk")
    body = json.dumps({"question": "May I?"}).encode()
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(server_of(site, max_streams=1))
        waiting, asking = [await stack.enter_async_context(connected(address)) for _ in range(2)]
        waiting.send(head("GET", f"{desk}/inbox?wait=60s", token=at_work.token))
        ask = head("POST", f"{desk}/ask?wait=60s", *of_json(len(body)), token=at_work.token) + body
        await until(lambda: _is_listened_to(site, run["session_id"]))
        asking.send(ask)
        status, _, told = await asking.answer()
        assert (status, told["code"]) == (429, "too_many_streams")
    assert await office.value("SELECT count(*) FROM approvals WHERE run_id = %s", at_work.id) == 0
    await office.settle(at_work)


async def _is_listened_to(site: Site, session_id: str) -> bool:
    return session_channel(SessionId(UUID(session_id))) in site.web.listener.handler_counts()
