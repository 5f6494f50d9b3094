"""Two replicas behind a round-robin, one of them killed: an open page goes on without a reload."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from support.rota_process import Rota

from .conftest import Running, pump
from .test_browser import LIST, remembers, was_never_reloaded

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def replicas(rota: Running) -> Iterator[list[Rota]]:
    """Two that only answer; the house behind them schedules and works."""
    started = [Rota(rota.home, "serve", "--only", "api") for _ in range(2)]
    yield started
    for each in started:
        each.stop()


class RoundRobin:
    """Sends each connection to the next replica that takes it, and knows where a page's stream went."""

    def __init__(self, replicas: list[Rota]) -> None:
        self._ports = [urlsplit(each.url()).port for each in replicas]
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.streams: list[int] = []

    async def __aenter__(self) -> "RoundRobin":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            there, back, number = await self._next()
            try:
                await asyncio.gather(self._forward(reader, back, number), pump(there, writer))
            finally:
                back.close()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        for _ in self._ports:
            self._turn += 1
            number = self._turn % len(self._ports)
            try:
                return *await asyncio.open_connection("127.0.0.1", self._ports[number]), number
            except ConnectionError:
                continue
        raise ConnectionError

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while data := await reader.read(65536):
            if b"live=" in data.split(b"\r\n", 1)[0]:
                self.streams.append(number)
            writer.write(data)
            await writer.drain()
        writer.close()


async def test_a_page_goes_on_when_the_replica_of_its_stream_is_killed(
    rota: Running, replicas: list[Rota], sit: Any
) -> None:
    saved = rota.automation("Outlives", "echo still here", schedule={"cron": "0 9 * * *"})
    reader = await sit()
    async with RoundRobin(replicas) as front:
        page = await reader.page(LIST, origin=front.url)
        await remembers(page)
        row = page.locator("tr", has_text="Outlives")
        rota.api("POST", f"/automations/{saved['slug']}/pause")
        await expect(row.locator(".pill")).to_have_text("Paused")  # the stream is there
        held = front.streams[-1]
        replicas[held].process.kill()
        rota.api("POST", f"/automations/{saved['slug']}/resume")
        await expect(row.locator(".pill")).to_have_text("Active")
        rota.api("POST", f"/automations/{saved['slug']}/run")
        await expect(row.locator("td.last")).to_contain_text("still here")
        assert front.streams[-1] != held
        assert await was_never_reloaded(page)
        await row.get_by_role("button", name="Pause").click()  # and can be worked with
        await expect(row.locator(".pill")).to_have_text("Paused")
        await page.close()
