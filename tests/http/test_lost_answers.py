"""A write whose answer is lost on its way is repeated by the client, and comes out as if nothing had happened."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from rota.client import AsyncClient
from support import api_client
from support.api_client import DAILY, Api, Office, assert_ok, example

from .test_api_approvals import park

pytestmark = pytest.mark.asyncio(loop_scope="module")
site, office, api, address = api_client.site, api_client.office, api_client.api, api_client.address


class Lossy(ThreadingHTTPServer):
    """Passes every request on, and loses the first answer to each write."""

    upstream: str
    lost: set[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Passing(BaseHTTPRequestHandler):
    server: Lossy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = httpx.request(self.command, self.server.upstream + self.path, headers=dict(self.headers), content=body)
        key = self.headers["Idempotency-Key"]
        if key and key not in self.server.lost:
            self.server.lost.add(key)
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _pass  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def lossy(address: str) -> Iterator[Lossy]:
    with Lossy(("127.0.0.1", 0), Passing) as server:
        server.upstream, server.lost = address, set()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_each_write_is_answered_as_if_its_first_answer_had_come(office: Office, api: Api, lossy: Lossy) -> None:
    automation = assert_ok(await api.post("/automations", example(schedule=DAILY)))
    path = f"/automations/{automation['id']}"
    queued = assert_ok(await api.post("/agents/worker-bee/runs", {"prompt": "Sweep."}))
    chat = assert_ok(await api.post("/sessions", {"agent": "worker-bee"}))
    async with AsyncClient(lossy.url, token=api.token, workspace=api.workspace) as client:
        cancelled = await client.request("POST", f"/runs/{queued['id']}/cancel")
        assert cancelled["status"] == "cancelled"
        asked = await park(office, api, automation)
        answered = await client.request("POST", f"/approvals/{asked['id']}", {"answer": "approve"})
        assert (answered["status"], answered["answered_by_name"]) == ("approved", "Local admin")
        edited = await client.request("PATCH", path, {"prompt": "Tell it in one line"})
        assert edited["revision"] == automation["revision"] + 1
        granted = await client.request("POST", f"{path}/renew-grant")
        assert len(assert_ok(await api.get("/grants", automation=automation["id"]), 200)["items"]) == 2
        assert assert_ok(await api.get(path), 200)["grant_id"] == granted["grant_id"] != automation["grant_id"]
        for verb, status in (("pause", "paused"), ("resume", "active"), ("complete", "done"), ("archive", "archived")):
            assert (await client.request("POST", f"/sessions/{chat['id']}/{verb}"))["status"] == status
        saved = await client.request("POST", "/credentials", {"name": "mine", "value": "some long secret"})
        assert await client.request("DELETE", f"/credentials/{saved['id']}") is None
        assert await client.request("DELETE", path) is None
        assert (await client.request("POST", f"{path}/restore"))["id"] == automation["id"]
    assert len(lossy.lost) == 12
