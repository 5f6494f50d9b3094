"""Real clients of the Model Context Protocol at a real server: over HTTP, and over pipes through a real `rota mcp`."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from rota.daemon import bind
from rota.mcp import bridge as bridge_of
from rota.mcp.protocol import LEGACY, META, MODERN, of_problem
from rota.mcp.tools import TOOLS
from support import api_client
from support.api_client import Api, Office, Site, example, serving
from support.doc_pages import ROOT, blocks
from support.mcp_client import CAPABILITIES

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api, address = api_client.site, api_client.office, api_client.api, api_client.address

ROTA = Path(sys.executable).with_name("rota")
PAGE = ROOT / "docs" / "mcp.md"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
MODES = ["auto", "legacy"]  # of both eras


def environment(url: str, token: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    return {**kept, "ROTA_URL": url, "ROTA_TOKEN": token}


# The official client -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def over_http(address: str, token: str, mode: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(f"{address}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


@asynccontextmanager
async def over_pipes(address: str, token: str, mode: str) -> AsyncIterator[Client]:
    started = StdioServerParameters(command=str(ROTA), args=["mcp"], env=environment(address, token))
    async with Client(started, mode=mode) as client:
        yield client


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("connect", [over_http, over_pipes])
async def test_the_official_client_connects_lists_and_calls(
    office: Office, api: Api, address: str, connect: Any, mode: str
) -> None:
    async with connect(address, api.token, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [tool.name for tool in TOOLS]
        saved = await client.call_tool("create_automation", example())
        assert saved.is_error is False
        assert saved.structured_content["slug"] == "morning-digest"
        refused = await client.call_tool("get_automation", {"automation": "gone"})
        assert refused.is_error is True
        assert "no such automation" in refused.content[0].text
        with pytest.raises(MCPError, match="'nothing'"):
            await client.call_tool("nothing", {})
    assert (
        await office.value("SELECT count(*) FROM automations WHERE workspace_id = %s", office.caller.workspace_id) == 1
    )


async def test_the_program_in_the_documentation_runs(
    address: str, api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = blocks(PAGE, "python")
    written: dict[str, Any] = {}
    exec(block.text, written)
    monkeypatch.setenv("PATH", f"{ROTA.parent}{os.pathsep}{os.environ['PATH']}")
    await written["failed_runs"](address, api.token)
    assert "'items': []" in capsys.readouterr().out


@pytest.mark.parametrize("connect", [over_http, over_pipes])
async def test_the_official_client_is_told_that_its_token_is_wrong(address: str, connect: Any) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with connect(address, "rota_wrong", "legacy"):
            pass
    assert "rota tokens create" in repr(_innermost(caught.value))


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


# `rota mcp` ----------------------------------------------------------------------------------------------------------


class Bridge:
    """A `rota mcp` of its own, asked line by line."""

    def __init__(self, process: Process) -> None:
        self.process = process
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.input, self.output, self.log = process.stdin, process.stdout, process.stderr

    def say(self, *messages: Any) -> None:
        self.input.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    async def hear(self) -> Any:
        async with asyncio.timeout(60):
            return json.loads(await self.output.readline())

    async def ask(self, message: Any) -> Any:
        self.say(message)
        return await self.hear()

    async def ended(self) -> tuple[int, bytes, bytes]:
        async with asyncio.timeout(60):
            said, logged = await asyncio.gather(self.output.read(), self.log.read())
            return await self.process.wait(), said, logged


@asynccontextmanager
async def bridged(url: str, token: str) -> AsyncIterator[Bridge]:
    process = await asyncio.create_subprocess_exec(
        str(ROTA), "mcp", env=environment(url, token), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    bridge = Bridge(process)
    yield bridge
    if process.returncode is None:
        process.kill()
        await bridge.ended()


@pytest_asyncio.fixture(loop_scope="module")
async def bridge(address: str, api: Api) -> AsyncIterator[Bridge]:
    async with bridged(address, api.token) as bridge:
        yield bridge


def call(number: int, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


async def test_it_ends_with_its_input_once_all_is_answered(bridge: Bridge) -> None:
    bridge.say(*({**PING, "id": number} for number in range(100)))
    bridge.input.write(json.dumps({**PING, "id": "last"}).encode())  # without an end of its line
    bridge.input.close()
    code, said, logged = await bridge.ended()
    assert (code, logged) == (0, b"")
    assert {json.loads(line)["id"] for line in said.splitlines()} == {*range(100), "last"}


async def test_it_ends_when_its_input_cannot_be_read(address: str, api: Api, tmp_path: Path) -> None:
    write_only = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    try:
        process = await asyncio.create_subprocess_exec(
            str(ROTA), "mcp", env=environment(address, api.token), stdin=write_only, stdout=PIPE, stderr=PIPE
        )
        assert await asyncio.wait_for(process.communicate(), 60) == (b"", b"")
    finally:
        os.close(write_only)
    assert process.returncode == 0


async def test_it_says_what_was_agreed_on_with_every_later_request(bridge: Bridge) -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": LEGACY[1]}}
    assert (await bridge.ask(hello))["result"]["protocolVersion"] == LEGACY[1]
    bridge.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert f"in {LEGACY[1]};" in (await bridge.ask({**PING, "method": "nothing"}))["error"]["message"]
    [told] = await bridge.ask([PING])
    assert told["error"]["code"] == -32600  # one takes several messages, which the version agreed on does not
    meta = {f"{META}protocolVersion": MODERN[0], **CAPABILITIES}
    modern = {"jsonrpc": "2.0", "id": 5, "method": "server/discover", "params": {"_meta": meta}}
    assert (await bridge.ask(modern))["result"]["resultType"] == "complete"
    odd = call(6, "größe") | {"params": {"name": "größe", "_meta": meta}}
    assert "'größe'" in (await bridge.ask(odd))["error"]["message"]


async def test_what_is_no_message_gets_an_error_and_it_goes_on(bridge: Bridge) -> None:
    bridge.input.write(b"nope\n\n   \n")
    assert (await bridge.hear())["error"]["code"] == -32700
    assert (await bridge.ask(5))["error"]["code"] == -32600
    assert (await bridge.ask({"id": [1]}))["error"]["code"] == -32600
    assert (await bridge.ask([PING, {**PING, "id": 2}]))[1]["id"] == 2
    assert (await bridge.ask({**PING, "params": {"padding": "x" * 20_000_000}}))["error"]["code"] == 413
    assert await bridge.ask(PING) == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_requests_are_answered_as_they_come_and_none_when_taken_back(
    bridge: Bridge, office: Office, site: Site
) -> None:
    """One call waits for a row that somebody else holds; another is answered meanwhile."""
    workspace = office.caller.workspace_id
    saved = (await bridge.ask(call(1, "create_automation", **example())))["result"]["structuredContent"]
    async with site.db.transaction() as conn:
        await conn.execute("SELECT FROM automations WHERE workspace_id = %s FOR UPDATE", (workspace,))
        bridge.say(
            call(2, "pause_automation", automation=saved["id"]), call(3, "resume_automation", automation=saved["id"])
        )
        await site.waiting_for_a_lock(2)
        assert (await bridge.ask(call(4, "list_agents")))["id"] == 4
        bridge.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        assert (await bridge.ask(PING))["id"] == 1
    assert (await bridge.hear())["id"] == 3
    bridge.input.close()
    assert (await bridge.ended())[1] == b""


async def test_it_outlives_its_server(site: Site, api: Api) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    async with bridged(f"http://127.0.0.1:{port}/", api.token) as bridge:
        away = await bridge.ask(PING)
        assert (away["id"], away["error"]["code"]) == (1, -32603)
        assert f"http://127.0.0.1:{port}" in away["error"]["message"]
        async with serving(site, port):
            assert (await bridge.ask(PING))["result"] == {}
        assert (await bridge.ask({**PING, "id": 2}))["error"]["code"] == -32603
        bridge.input.close()
        code, said, logged = await bridge.ended()
        assert (code, said) == (0, b"")
        assert logged.count(f"http://127.0.0.1:{port}".encode()) == 2
        assert b"Traceback" not in logged


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        ("502 Bad Gateway", "<html>", "502 Bad Gateway"),
        ("200 OK", "<html>", "is not Rota"),
        ("200 OK", "[]", "is not Rota"),
        ("200 OK", "", "is not Rota"),
    ],
)
async def test_a_server_that_is_none_of_ours_is_told_of(status: str, body: str, told: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, bridged(f"http://127.0.0.1:{port}", "rota_x") as bridge:
        assert told in (await bridge.ask(PING))["error"]["message"]


BUSY = {"title": "Busy", "status": 503, "code": "busy", "detail": "No database connection became free."}
OFTEN = {"title": "Too often", "status": 429, "code": "rate_limited", "detail": "Wait.", "retry_after": 1}
DONE = {"jsonrpc": "2.0", "id": 1, "result": {"isError": False}}


def told(problem: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """As Rota answers a call whose route has this problem."""
    result = {"isError": True, "content": [], "structuredContent": problem}
    return "200 OK", {"jsonrpc": "2.0", "id": 1, "result": result}


@pytest.mark.parametrize(
    ("message", "first", "asked"),
    [
        (call(1, "list_runs"), ("503 Service Unavailable", of_problem(BUSY)), 2),
        (call(1, "list_runs"), told(BUSY), 2),
        (call(1, "pause_automation", automation="a"), ("502 Bad Gateway", {}), 2),
        (call(1, "create_agent", idempotency_key="mine"), told(BUSY), 2),
        (call(1, "create_agent"), told(OFTEN), 2),
        (call(1, "create_agent"), told(BUSY), 1),
        (call(1, "create_agent"), ("503 Service Unavailable", of_problem(BUSY)), 1),
        (call(1, "of_a_later_rota"), told(BUSY), 1),
        (call(1, "list_runs"), told({**BUSY, "status": 409}), 1),
        ([PING, call(1, "create_agent")], ("503 Service Unavailable", of_problem(BUSY)), 1),
    ],
)  # fmt: skip
async def test_it_asks_again_while_the_server_is_busy_unless_that_might_do_it_twice(
    message: Any, first: tuple[str, dict[str, Any]], asked: int
) -> None:
    answers = [first, ("200 OK", DONE), ("200 OK", DONE)]
    given: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [size] = [int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")]
        status, body = answers[len(given)]
        given.append(await reader.readexactly(size))
        content = json.dumps(body)
        writer.write(
            f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode()
        )
        writer.close()

    said: list[bytes] = []

    async def lines() -> AsyncIterator[bytes]:
        yield json.dumps(message).encode()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await bridge_of.Bridge(url, "rota_x", write=said.append, warn=lambda _: None).run(lines())
    assert len(given) == asked
    assert len(set(given)) == 1
    assert (json.loads(said[0]) == DONE) is (asked == 2)


@pytest.mark.parametrize(("patience", "most"), [(0.0, 1), (60.0, 3)])
async def test_a_server_that_stays_busy_is_told_of_when_patience_ends(patience: float, most: int) -> None:
    """The third answer asks for a longer wait than the rest of the patience."""
    asked, said = 0, list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        content = json.dumps(of_problem(BUSY))
        status = "429 Too Many Requests\r\nRetry-After: 60" if asked == 3 else "503 Service Unavailable"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode())
        writer.close()

    async def lines() -> AsyncIterator[bytes]:
        yield json.dumps(PING).encode()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = bridge_of.Bridge(url, "rota_x", write=said.append, warn=lambda _: None, patience=patience)
        await client.run(lines())
    assert json.loads(said[0])["error"]["data"] == BUSY
    assert asked == most


async def test_what_is_not_answered_soon_after_the_input_has_ended_is_told_to_be_late() -> None:
    asked, said, warned = asyncio.Event(), list[bytes](), list[str]()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async def lines() -> AsyncIterator[bytes]:
        yield json.dumps(PING).encode()
        await asked.wait()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        late = bridge_of.Bridge(url, "rota_x", write=said.append, warn=warned.append, last_words_within=0.0)
        await late.run(lines())
    assert [json.loads(line)["id"] for line in said] == [1]
    assert json.loads(said[0])["error"]["code"] == -32603
    assert len(warned) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_at_once_and_without_a_traceback(bridge: Bridge, number: signal.Signals) -> None:
    await bridge.ask(PING)
    bridge.process.send_signal(number)
    _, said, logged = await bridge.ended()
    assert said == b""
    assert b"Traceback" not in logged


async def test_a_client_that_goes_away_ends_it_too(bridge: Bridge) -> None:
    reading = bridge.process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
    await bridge.ask(PING)
    reading.close()
    bridge.say(PING, PING)
    async with asyncio.timeout(60):
        assert await bridge.process.wait() == 0
    assert b"Traceback" not in await bridge.log.read()
