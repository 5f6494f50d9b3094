"""`/mcp` on the wire: versions of both eras, JSON-RPC, batches, and who is let in."""

import base64
import json
from typing import Any

import pytest
import pytest_asyncio

from rota.mcp.protocol import BATCHED, LEGACY, META, METHOD_HEADER, MODERN, MOST_AT_ONCE, NAME_HEADER, VERSION_HEADER
from rota.mcp.protocol import VERSIONS as SPOKEN
from rota.mcp.tools import TOOLS
from support import api_client
from support.api_client import COOKIE, Office, Site
from support.mcp_client import CAPABILITIES, Wire, assert_protocol_error

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office = api_client.site, api_client.office

PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}


@pytest_asyncio.fixture(loop_scope="module")
async def wire(office: Office) -> Wire:
    """A client that has shaken hands."""
    api = await office.api()
    return Wire(api.client, api.token)


@pytest_asyncio.fixture(loop_scope="module")
async def modern(wire: Wire) -> Wire:
    """A client that says with each request what it speaks."""
    return Wire(wire.client, wire.token, version=MODERN[0])


# Versions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "agreed"), [*((each, each) for each in LEGACY), ("2024-11-05", LEGACY[0]), (MODERN[0], LEGACY[0])]
)
async def test_a_handshake_agrees_on_a_version_that_both_speak(wire: Wire, asked: str, agreed: str) -> None:
    message = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    answer = await wire.post(message, headers={VERSION_HEADER: None})
    told = answer.json()["result"]
    assert told["protocolVersion"] == agreed
    assert told["capabilities"] == {"tools": {}}
    assert told["serverInfo"]["name"] == "rota"
    assert "preview_schedule" in told["instructions"]
    assert "mcp-session-id" not in answer.headers


async def test_a_handshake_without_a_version_is_told_what_is_missing(wire: Wire) -> None:
    assert "protocolVersion" in assert_protocol_error(await wire.send("initialize"), 200, -32602)["message"]


async def test_a_client_of_the_new_era_asks_what_is_spoken_here(modern: Wire) -> None:
    told = await modern.result("server/discover")
    assert told["supportedVersions"] == list(SPOKEN)
    assert told["resultType"] == "complete"
    assert told["cacheScope"] == "public"
    assert told["ttlMs"] > 0
    assert told["_meta"][f"{META}serverInfo"]["name"] == "rota"


async def test_both_eras_list_the_same_tools_in_the_same_order(wire: Wire, modern: Wire) -> None:
    names = [tool.name for tool in TOOLS]
    assert list(await wire.tools()) == names
    told = await modern.result("tools/list")
    assert [tool["name"] for tool in told["tools"]] == names
    assert (told["resultType"], told["cacheScope"]) == ("complete", "private")


@pytest.mark.parametrize("version", ["1900-01-01", "2024-11-05", "tomorrow"])
async def test_a_version_that_nobody_speaks_is_refused_with_those_that_are(wire: Wire, version: str) -> None:
    told = assert_protocol_error(await wire.post(PING, headers={VERSION_HEADER: version}), 400, -32022)
    assert told["data"] == {"supported": list(SPOKEN), "requested": version}
    assert told["id"] == PING["id"]


async def test_who_does_not_say_a_version_is_taken_for_the_first(wire: Wire) -> None:
    assert (await wire.post(PING, headers={VERSION_HEADER: None})).json()["result"] == {}


async def test_a_ping_belongs_to_the_old_era(wire: Wire, modern: Wire) -> None:
    assert await wire.result("ping") == {}
    assert_protocol_error(await modern.send("ping"), 404, -32601)


def stated(method: str = "tools/list", **meta: Any) -> dict[str, Any]:
    meta = {f"{META}protocolVersion": MODERN[0], **CAPABILITIES, **meta}
    return {"jsonrpc": "2.0", "id": 3, "method": method, "params": {"_meta": meta}}


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({VERSION_HEADER: None, METHOD_HEADER: "tools/list"}, VERSION_HEADER),
        ({VERSION_HEADER: LEGACY[0], METHOD_HEADER: "tools/list"}, VERSION_HEADER),
        ({}, METHOD_HEADER),
        ({METHOD_HEADER: "tools/call"}, METHOD_HEADER),
    ],
)
async def test_headers_that_differ_from_the_body_are_refused(modern: Wire, headers: dict[str, Any], named: str) -> None:
    assert named in assert_protocol_error(await modern.post(stated(), headers=headers), 400, -32020)["message"]


@pytest.mark.parametrize(
    "name", [None, "list_runs", "=?base64?!?=", "=?base64?" + base64.b64encode(b"list_runs").decode() + "?="]
)
async def test_the_tool_in_the_header_must_be_the_one_that_is_called(modern: Wire, name: str | None) -> None:
    message = stated("tools/call")
    message["params"] |= {"name": "list_workers", "arguments": {}}
    headers = {METHOD_HEADER: "tools/call", NAME_HEADER: name}
    assert NAME_HEADER in assert_protocol_error(await modern.post(message, headers=headers), 400, -32020)["message"]
    headers[NAME_HEADER] = "=?base64?" + base64.b64encode(b"list_workers").decode() + "?="
    assert (await modern.post(message, headers=headers)).json()["result"]["isError"] is False


@pytest.mark.parametrize("lacking", ["protocolVersion", "clientCapabilities"])
async def test_a_request_of_the_new_era_carries_all_that_it_must(modern: Wire, lacking: str) -> None:
    message = stated()
    del message["params"]["_meta"][META + lacking]
    assert (
        lacking
        in assert_protocol_error(await modern.post(message, headers={METHOD_HEADER: "tools/list"}), 400, -32602)[
            "message"
        ]
    )


# Messages ------------------------------------------------------------------------------------------------------------


async def test_a_method_that_is_not_there_is_told_so(wire: Wire, modern: Wire) -> None:
    assert "'resources/list'" in assert_protocol_error(await wire.send("resources/list"), 200, -32601)["message"]
    assert_protocol_error(await modern.send("resources/list"), 404, -32601)
    assert_protocol_error(await wire.send("server/discover"), 200, -32601)


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ],
)
async def test_what_wants_no_answer_is_accepted_without_one(wire: Wire, modern: Wire, message: dict[str, Any]) -> None:
    for client in (wire, modern):
        answer = await client.post(message)
        assert (answer.status_code, answer.content) == (202, b"")


@pytest.mark.parametrize(
    "message",
    ["text", 5, {}, {"jsonrpc": "1.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "id": 1}, {**PING, "method": 5}],
)
async def test_what_is_no_message_is_an_invalid_request(wire: Wire, message: Any) -> None:
    assert_protocol_error(await wire.post(message), 400, -32600)


@pytest.mark.parametrize("number", [None, 1.5, True, {}, []])
async def test_a_request_has_a_number_or_a_text_as_its_id(wire: Wire, number: Any) -> None:
    assert assert_protocol_error(await wire.post({**PING, "id": number}), 400, -32600)["id"] is None


@pytest.mark.parametrize("number", [0, -3, "seven", ""])
async def test_an_answer_has_the_id_of_its_request(wire: Wire, number: Any) -> None:
    assert (await wire.post({**PING, "id": number})).json() == {"jsonrpc": "2.0", "id": number, "result": {}}


@pytest.mark.parametrize("params", [[], "x", 5])
async def test_params_are_an_object(wire: Wire, params: Any) -> None:
    assert_protocol_error(await wire.post({**PING, "params": params}), 200, -32602)


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b'{"a": 1', b"\xff"])
async def test_what_is_no_json_is_a_parse_error(wire: Wire, office: Office, body: bytes) -> None:
    answer = await wire.post(content=body, headers={"Content-Type": "application/json"})
    assert assert_protocol_error(answer, 400, -32700)["id"] is None


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_a_body_says_that_it_is_json(wire: Wire, kind: str | None) -> None:
    answer = await wire.post(content=json.dumps(PING).encode(), headers={"Content-Type": kind})
    assert "application/json" in assert_protocol_error(answer, 400, -32600)["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100 + b"]" * 100,
        b'{"jsonrpc": "2.0", "id": 1, "method": "a\\u0000b"}',
        b'{"jsonrpc": "2.0", "id": 99999999999999999999999, "method": "ping"}',
    ],
)
async def test_a_body_that_could_not_be_stored_is_refused_as_by_the_api(wire: Wire, body: bytes) -> None:
    assert_protocol_error(await wire.post(content=body, headers={"Content-Type": "application/json"}), 400, -32600)


async def test_a_body_has_the_limit_of_the_api(wire: Wire, site: Site) -> None:
    most = site.web.settings.max_body_bytes
    message = {**PING, "params": {"padding": "x" * most}}
    told = assert_protocol_error(await wire.post(message), 413, 413)
    assert told["data"]["limit"] == most


# Several at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, BATCHED])
async def test_the_oldest_version_takes_several_messages_at_once(wire: Wire, header: str | None) -> None:
    call = {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": {"name": "list_agents"}}
    batch = [
        PING,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call,
        {"jsonrpc": "2.0", "id": 9, "method": "nope"},
        5,
    ]
    told = (await wire.post(batch, headers={VERSION_HEADER: header})).json()
    assert [each["id"] for each in told] == [7, "b", 9, None]
    assert told[1]["result"]["structuredContent"]["items"][0]["slug"] == "worker-bee"
    assert [each["error"]["code"] for each in told[2:]] == [-32601, -32600]
    silent = [{"jsonrpc": "2.0", "method": "notifications/initialized"}] * 2
    answer = await wire.post(silent, headers={VERSION_HEADER: header})
    assert (answer.status_code, answer.content) == (202, b"")


@pytest.mark.parametrize("version", [version for version in SPOKEN if version != BATCHED])
async def test_later_versions_take_one_message_at_a_time(wire: Wire, version: str) -> None:
    assert_protocol_error(await wire.post([PING], headers={VERSION_HEADER: version}), 400, -32600)


@pytest.mark.parametrize("batch", [[], [PING] * (MOST_AT_ONCE + 1), [PING, {**PING, "method": "initialize"}]])
async def test_a_batch_is_neither_empty_nor_endless_nor_begins_anything(wire: Wire, batch: list[Any]) -> None:
    assert_protocol_error(await wire.post(batch, headers={VERSION_HEADER: BATCHED}), 400, -32600)


# Who is let in -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer rota_unknown", "rota_unknown"]
)
@pytest.mark.parametrize("method", ["initialize", "tools/list", "ping"])
async def test_without_a_token_nobody_is_let_in(wire: Wire, authorization: str | None, method: str) -> None:
    answer = await wire.post({**PING, "method": method}, headers={"Authorization": authorization})
    assert "rota tokens create" in assert_protocol_error(answer, 401, 401)["message"]
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_browsers_login_is_no_way_in(wire: Wire, office: Office) -> None:
    async with office.db.transaction() as conn:
        from rota.access import signing_in

        login = await signing_in.open_login(conn, office.caller.user_id, signing_in.Visit())
    answer = await wire.post(PING, headers={"Authorization": None, "Cookie": f"{COOKIE}={login}"})
    assert_protocol_error(answer, 401, 401)


async def test_a_revoked_token_is_worth_nothing_at_once(wire: Wire, office: Office) -> None:
    assert await wire.result("ping") == {}
    await office.execute("UPDATE tokens SET revoked_at = now() WHERE workspace_id = %s", office.caller.workspace_id)
    assert_protocol_error(await wire.send("ping"), 401, 401)


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_another_sites_page_is_refused_even_with_a_token(wire: Wire, headers: dict[str, str]) -> None:
    assert assert_protocol_error(await wire.post(PING, headers=headers), 403, 403)["data"]["code"] == "foreign_origin"
    assert (await wire.post(PING, headers={"Origin": "http://rota.test"})).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_there_is_no_stream_to_open_and_no_session_to_end(wire: Wire, method: str) -> None:
    headers = {"Authorization": f"Bearer {wire.token}", "Accept": "text/event-stream, text/html", "Mcp-Session-Id": "x"}
    answer = await wire.client.request(method, "/mcp", headers=headers)
    assert_protocol_error(answer, 405, 405)
    assert answer.headers["Allow"] == "POST"
