"""Which names a request may be for: a page of another site must not reach Rota by its own name."""

from typing import Any

import pytest

from rota.errors import CannotStart
from rota.http.app import create_app
from rota.http.hosts import HostGuard, allowed_hosts
from rota.settings import Settings, read_settings
from support import api_client
from support.api_client import Api, Site, assert_refused

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api = api_client.site, api_client.office, api_client.api

ALLOWED = [
    "rota.test", "ROTA.test:8080", "rota.test.", "localhost", "localhost:7682", "LOCALHOST:1", "rota.localhost:7682",
    "127.0.0.1", "127.0.0.1:7682", "127.9.9.9", "[::1]", "[::1]:7682", "10.1.2.3:7682", "192.0.2.7", "[2001:db8::1]:80",
]  # fmt: skip
REFUSED = [
    "evil.test", "evil.test:7682", "rota.test.evil.test", "evilrota.test", "localhost.evil.test", "notlocalhost",
    "127.0.0.1.evil.test", "127.0.0.1.nip.io", "rota.test@evil.test", "evil.test/rota.test", "", "[", "]", "[::1", "::1",
    "[evil.test]", "rota.test:port", "rota.test:99999", "rota.test:", "rota.test rota.test", "2130706433", "0x7f.1", "*",
]  # fmt: skip


@pytest.mark.parametrize("host", ALLOWED)
async def test_names_of_this_server_and_addresses_are_let_in(api: Api, host: str) -> None:
    assert (await api.send("GET", "/agents", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", REFUSED)
async def test_another_name_is_refused_whatever_the_token(api: Api, host: str) -> None:
    told = assert_refused(await api.send("GET", "/agents", headers={"Host": host}), 421, "host_not_allowed")
    assert "ROTA_ALLOWED_HOSTS" in told["detail"]
    assert "ROTA_URL" in told["detail"]


async def test_a_request_for_two_hosts_is_refused_if_one_is_wrong(site: Site) -> None:
    async with site.client() as client:
        for hosts in (["rota.test", "evil.test"], ["evil.test", "rota.test"]):
            answer = await client.get("/sign-in", headers=[("Host", each) for each in hosts])
            assert answer.status_code == 421


async def test_everything_but_the_probes_is_guarded(site: Site, api: Api) -> None:
    """Pages, streams, webhooks, files, the protocol and the figures; a load balancer's probe may send any name."""
    headers = {"Host": "evil.test", "Authorization": f"Bearer {api.token}"}
    paths = [
        "/",
        "/sign-in",
        "/metrics",
        "/mcp",
        "/hooks/x",
        "/api/openapi.json",
        f"/w/{api.workspace}/runs",
        "/nothing",
    ]
    async with site.client() as client:
        for path in [*paths, api.url("/sessions/x/trace")]:
            for method in ("GET", "HEAD", "POST"):
                assert (await client.request(method, path, headers=headers)).status_code == 421, path
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path, headers=headers)).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await client.get(path, headers={"Host": "10.1.2.3:7682"})).status_code == 200


@pytest.mark.parametrize("host", ["rota.lan", "[", "[::1", "rota.test:99999", "<b>"])
async def test_a_person_is_told_on_a_page(site: Site, host: str) -> None:
    async with site.client() as client:
        answer = await client.get("/sign-in", headers={"Host": host, "Accept": "text/html"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (421, "text/html; charset=utf-8")
    assert "ROTA_ALLOWED_HOSTS" in answer.text
    assert "<b>" not in answer.text


async def test_tools_of_the_protocol_reach_their_routes(site: Site, api: Api) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_agents", "arguments": {}}}
    headers = {"Authorization": f"Bearer {api.token}", "MCP-Protocol-Version": "2025-06-18"}
    for host in ("rota.test", "127.0.0.1:7682"):
        answer = await api.client.post("/mcp", json=call, headers={**headers, "Host": host})
        assert answer.json()["result"]["isError"] is False


async def test_a_web_socket_is_closed_before_it_is_open(site: Site) -> None:
    sent: list[Any] = []

    async def never(*_: Any) -> Any:
        raise AssertionError("it was let in")

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    guard = HostGuard(never, allowed={"rota.test"}, show=never)
    await guard({"type": "websocket", "path": "/", "headers": [(b"host", b"evil.test")]}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_the_names_of_a_server_are_those_of_its_settings() -> None:
    settings = Settings(
        host="box.lan", url="https://Rota.Example:8443/", kubernetes_url="http://rota.ns.svc:7682",
        allowed_hosts=("api", "Other.Example."),
    )  # fmt: skip
    found = allowed_hosts(settings, "https://Rota.Example:8443")
    assert found == {"box.lan", "rota.example", "rota.ns.svc", "api", "other.example"}


async def test_a_star_lets_every_name_in_that_is_one(site: Site) -> None:
    web = site.web
    before = web.settings
    object.__setattr__(web, "settings", before.with_options(allowed_hosts=("*",)))
    try:
        async with Site(web, create_app(web), "").client() as client:
            assert (await client.get("/sign-in", headers={"Host": "anything.example"})).status_code == 200
            for host in ("[", "rota.test:99999"):
                assert (await client.get("/sign-in", headers={"Host": host})).status_code == 421
    finally:
        object.__setattr__(web, "settings", before)


@pytest.mark.parametrize("value", ["http://rota.example", "rota.example:80", "a b", "*.example", "rota..example", ","])
async def test_a_value_that_is_no_host_name_stops_the_start(value: str) -> None:
    with pytest.raises(CannotStart, match=r"ROTA_ALLOWED_HOSTS is .* must be host names with commas, without ports"):
        read_settings({"ROTA_ALLOWED_HOSTS": value})


async def test_host_names_are_read_with_commas() -> None:
    assert read_settings({"ROTA_ALLOWED_HOSTS": "api, rota.lan ,"}).allowed_hosts == ("api", "rota.lan")
