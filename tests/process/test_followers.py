"""Promise 7 with real replicas: what 500 readers see over a killed one equals the table."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import pytest

from rota.access import tokens
from rota.db import events
from rota.db.events import NewEvent
from rota.db.listener import Wakes, session_channel
from rota.model.ids import AutomationId, SessionId
from rota.roster import running
from support.house import House
from support.rota_process import Rota
from support.waiting import until

READERS = 500
WRITES = 40
AT_ONCE = 5
KILLED_AFTER = 15


@pytest.fixture
def replicas(tmp_path: Path, database_url: str) -> Iterator[list[Rota]]:
    settings = {"ROTA_DATABASE_URL": database_url, "ROTA_MAX_STREAMS": str(READERS)}
    started = [Rota(tmp_path, "serve", "--only", "api", **settings) for _ in range(2)]
    yield started
    for each in started:
        each.stop()


class Reader:
    """Follows over whichever replica answers, from where it stopped."""

    def __init__(self, replicas: list[SplitResult], path: str, token: str, number: int) -> None:
        self._replicas, self._path, self._token = replicas, path, token
        self._turn = number
        self.seen: list[int] = []

    async def until_seen(self, last: int) -> list[int]:
        while not self.seen or self.seen[-1] < last:
            try:
                await self._read(self._replicas[self._turn % len(self._replicas)], last)
            except (OSError, EOFError):
                self._turn += 1
        return self.seen

    async def _read(self, there: SplitResult, last: int) -> None:
        reader, writer = await asyncio.open_connection(there.hostname, there.port)
        after = f"Last-Event-ID: {self.seen[-1]}\r\n" if self.seen else ""
        writer.write(
            f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n{after}\r\n".encode()
        )
        try:
            while not self.seen or self.seen[-1] < last:
                line = await reader.readline()
                if not line:
                    raise EOFError
                if told := re.fullmatch(rb"id: (\d+)\n", line):
                    self.seen.append(int(told[1]))
        finally:
            writer.close()


async def _begin(house: House) -> tuple[SessionId, str]:
    """A session with one event in its log, and a token to read it with."""
    automation_id = AutomationId(await house.automation())
    async with house.db.transaction() as conn:
        await running.run_now(conn, house.caller, automation_id)
        token = await tokens.create_as_operator(conn, "default", "readers")
    return SessionId(await house.value("SELECT id FROM sessions")), token


async def _write(house: House, wakes: Wakes, session: SessionId, number: int) -> None:
    words = [
        NewEvent(house.caller.workspace_id, session, "output", {"text": f"{number}.{each} "}) for each in range(AT_ONCE)
    ]
    async with house.db.transaction() as conn:
        await events.append(conn, words)
    wakes.send(session_channel(session))


async def test_500_readers_over_two_replicas_one_killed_see_the_table(
    replicas: list[Rota], house: House, wakes: Wakes
) -> None:
    session, token = await _begin(house)
    path = f"/api/v1/workspaces/{house.caller.workspace_slug}/sessions/{session}/trace"
    urls = [urlsplit(await asyncio.to_thread(each.url)) for each in replicas]
    readers = [Reader(urls, path, token, number) for number in range(READERS)]
    last = 1 + WRITES * AT_ONCE
    following = [asyncio.create_task(each.until_seen(last)) for each in readers]
    for number in range(WRITES):
        await _write(house, wakes, session, number)
        if number == KILLED_AFTER:
            await until(lambda: _all_have_begun(readers), within=60)
            replicas[0].process.kill()
    async with asyncio.timeout(60):
        seen = await asyncio.gather(*following)
    assert seen == [list(range(1, last + 1))] * READERS
    assert await house.value("SELECT array_agg(seq ORDER BY seq) FROM events") == seen[0]


async def _all_have_begun(readers: list[Reader]) -> bool:
    return all(each.seen for each in readers)
