"""The web application for tests: in this process behind a client, or as a real `rota up` in front of a real browser."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE, Popen, run
from typing import Any
from urllib.error import HTTPError

import pytest
import pytest_asyncio
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Request
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from rota.access.signing_in import csrf_of
from rota.access.vault import open_vault
from rota.db.listener import Listener, Wakes
from rota.db.pool import Database
from rota.http.app import create_app
from rota.http.context import CSRF_HEADER, Web
from rota.settings import Settings
from support.house import House
from support.rota_process import furnished

ROTA = Path(sys.executable).with_name("rota")
# The first is the same browser without windows, which none of this looks at, and takes a fifth less of a processor.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
ARGUMENTS = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


# ── In this process ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def web(db: Database, wakes: Wakes, listener: Listener, tmp_path: Path) -> Web:
    return Web(db, wakes, listener, Settings(allowed_hosts=("rota.test",)), open_vault(tmp_path))


@pytest.fixture
def app(web: Web) -> FastAPI:
    return create_app(web)


async def as_from_a_page(request: Request) -> None:
    """Send with a change what the page would: the secret of its sign-in. `X-Rota-CSRF: none` says that it is lost."""
    found = re.search(r"rota_(?:\d+_)?login=([^;]+)", request.headers.get("Cookie", ""))
    if found and request.method == "POST":
        request.headers.setdefault(CSRF_HEADER, csrf_of(found.group(1)))


@asynccontextmanager
async def visiting(app: FastAPI, address: str = "127.0.0.1") -> AsyncIterator[AsyncClient]:
    """A browser as far as the server can tell, without scripts."""
    headers = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    hooks = {"request": [as_from_a_page]}
    async with AsyncClient(
        transport=ASGITransport(app, client=(address, 123)),
        base_url="http://rota.test",
        headers=headers,
        event_hooks=hooks,
    ) as client:
        yield client


@pytest.fixture
def visit(app: FastAPI) -> Callable[[], Any]:
    """One more visitor."""
    return lambda: visiting(app)


@pytest.fixture
async def guest(app: FastAPI) -> AsyncIterator[AsyncClient]:
    """Somebody who is not signed in."""
    async with visiting(app) as client:
        yield client


@pytest.fixture
async def admin(app: FastAPI, house: House) -> AsyncIterator[AsyncClient]:
    """The admin, signed in by a link."""
    async with visiting(app) as client:
        answer = await client.post("/sign-in", data={"link": await house.link()})
        assert answer.status_code == 303
        yield client


@pytest.fixture
def proxy() -> type["Proxy"]:
    return Proxy


@pytest.fixture
def running() -> type["Running"]:
    return Running


# ── A real one ───────────────────────────────────────────────────────────────────────────────────────────────────


class Running:
    """A `rota up` of its own, on an embedded PostgreSQL in a temporary home."""

    def __init__(self, home: Path) -> None:
        self.home = furnished(home)
        self.port = "0"
        self._login = ""
        self.process: Popen[str] | None = None
        self.start()
        made = run(
            [str(ROTA), "tokens", "create", "tests", "--home", str(home)],
            check=True, capture_output=True, text=True, env=self.environment,
        )  # fmt: skip
        self.token = made.stdout.strip()

    @property
    def cookie(self) -> str:
        return cookie_at(self.url)

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}

    def start(self) -> None:
        command = [str(ROTA), "up", "--home", str(self.home), "--port", self.port]
        self.process = Popen(command, stderr=PIPE, text=True, env=self.environment)
        assert self.process.stderr
        told = ""
        while not (found := re.search(r"(http://\S+:(\d+))/sign-in\?token=[\w-]+", told)):
            line = self.process.stderr.readline()
            assert line, f"rota did not start: {told}"
            told += line
        self.link, self.url, self.port = found.group(), found.group(1), found.group(2)
        self._drain()

    def _drain(self) -> None:
        """Read on, so that the process never waits for somebody to read its log."""
        assert self.process
        stream = self.process.stderr
        assert stream
        self.reader = threading.Thread(target=lambda: [None for _ in stream], daemon=True)
        self.reader.start()

    def rest(self) -> None:
        """Stop whatever is at work or waits. What is counted afterwards is a test's own, and a stop has nobody to wait
        for."""
        while live := [
            each["id"]
            for status in ("queued", "running", "awaiting_approval")
            for each in self.api("GET", f"/runs?status={status}")["items"]
        ]:
            for run_id in live:
                try:
                    self.api("POST", f"/runs/{run_id}/cancel")
                except HTTPError as refused:  # it ended meanwhile
                    refused.close()

    def stop(self) -> None:
        assert self.process
        self.rest()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.reader.join(10)
        assert self.process.stderr
        self.process.stderr.close()

    def login(self) -> str:
        """The login behind the cookie: the link works once, so it is traded once and shared."""
        self._login = self._login or traded(self.link)
        return self._login

    def login_of(self, name: str) -> str:
        """The login of somebody else, who may sign out: another admin."""
        person = {"email": f"{name}@example.org", "name": name, "level": "admin"}
        return traded(self.api("POST", "/members", person)["link"])

    def api(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        url = f"{self.url}/api/v1/workspaces/default{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
            return None if answer.status == 204 else json.load(answer)

    def automation(self, name: str, script: str, **values: Any) -> dict[str, Any]:
        """An automation whose agent is this shell script."""
        agent = self.api(
            "POST",
            "/agents",
            {"name": name, "executor": "command", "config": {"argv": ["sh", "-c", script], "stdin": "none"}},
        )
        given = {"name": name, "agent": agent["slug"], "prompt": f"Do {name}.", **values}
        saved: dict[str, Any] = self.api("POST", "/automations", given)
        return saved


def cookie_at(url: str) -> str:
    """What browsers keep a login in."""
    return f"rota_{url.rpartition(':')[2]}_login"


def traded(link: str) -> str:
    """The login that a link is good for, once."""
    address, _, token = link.partition("?token=")
    sent = urllib.parse.urlencode({"link": token}).encode()
    with urllib.request.build_opener(_Stay()).open(address, sent, timeout=30) as answer:
        found = re.search(r"_login=([^;]+)", answer.headers["Set-Cookie"])
    assert found
    return found.group(1)


@pytest.fixture(scope="session")
def rota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all browser tests; each makes automations of its own."""
    folder = tmp_path_factory.mktemp("rota")
    started = Running(folder / "home")
    yield started
    started.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for all; each test sits down at a context of its own."""
    if not CHROMIUM:
        pytest.skip("no Chromium here")
    async with async_playwright() as playwright:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *root])
        yield browser
        await browser.close()


TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation",
    (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
"""


class Reader:
    """A person at a browser, signed in; whatever their console complains of is kept."""

    def __init__(self, context: BrowserContext, rota: Running) -> None:
        self.context, self.rota = context, rota
        self.complaints: list[str] = []

    async def page(self, path: str = "", *, origin: str | None = None) -> Page:
        page = await self.context.new_page()
        await page.add_init_script(TELL_VIOLATIONS)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if origin:
            await self._sign_in_at(origin)
        if path:
            await page.goto((origin or self.rota.url) + path)
        return page

    async def _sign_in_at(self, origin: str) -> None:
        """By another port, a login has another name."""
        kept = [each for each in await self.context.cookies(self.rota.url) if each.get("name") == self.rota.cookie]
        for each in kept:
            await self.context.add_cookies([{"name": cookie_at(origin), "value": each["value"], "url": origin}])

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)


Sit = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="session")
async def sit(chromium: Browser, rota: Running) -> AsyncIterator[Sit]:
    """Sit down at a browser with these options; `signed_in=False` for a stranger, `login` for somebody else."""
    contexts: list[BrowserContext] = []

    async def down(*, signed_in: bool = True, login: str = "", **options: Any) -> Reader:
        context = await chromium.new_context(**options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        if signed_in:
            await context.add_cookies([{"name": rota.cookie, "value": login or rota.login(), "url": rota.url}])
        return Reader(context, rota)

    yield down
    for each in contexts:
        await each.close()


class _Stay(urllib.request.HTTPRedirectHandler):
    def http_error_303(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        return fp


class Proxy:
    """A line between browser and server that a test can cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for each in self._open:
            each.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, back}
        await asyncio.gather(pump(reader, back), pump(there, writer))
        self._open -= {writer, back}


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
