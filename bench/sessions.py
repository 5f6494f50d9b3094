"""Sessions: how soon a message is delivered, how many events are stored, how many may follow, how soon one opens."""

import asyncio
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import delivery
from bench.goals import Goal, at_least, at_most
from bench.stage import Stage, staged
from rota.access import signing_in, tokens
from rota.db import events, runs
from rota.db.events import NewEvent
from rota.db.listener import session_channel
from rota.model.ids import SessionId
from rota.roster import running

SESSIONS = 100
MESSAGES_A_SECOND = 1_000
FOLLOWERS = 1_000
LONG = 100_000
BATCH = 500

APPENDED = f"events appended a second, {BATCH} a batch"
OPENED = f"page of a session of {LONG:,} events"
FOLLOWED = f"written → seen by {FOLLOWERS:,} followers of one session"


async def measure(*, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    figures: dict[str, Any] = {}
    async with staged() as stage:
        sessions = [await _session(stage) for _ in range(SESSIONS)]
        figures |= await delivery.measure(stage, sessions, a_second=MESSAGES_A_SECOND, seconds=3 if quick else 20)
        figures |= await _append(stage, sessions, batches=40 if quick else 200)
        long = await _session(stage)
        for place in range(0, LONG, 10_000):
            await _write(stage, long, range(place, place + 10_000))
        async with _server(stage) as url:
            figures |= await _opening(stage, url, long)
            figures |= await _following(stage, url, sessions[0], followers=FOLLOWERS, writes=10 if quick else 50)
    return figures, [
        at_most("publish → delivered, p99 ms", figures[f"{delivery.DELIVERED}, p99 ms"], 10),
        at_least("events appended a second", figures[APPENDED], 20_000),
        at_most("followers of one session, p99 ms", figures[f"{FOLLOWED}, p99 ms"], 150),
        at_most("the first page of a session, ms", figures[f"{OPENED}, the first, ms"], 200),
        at_most("a page of a session, p99 ms", figures[f"{OPENED}, p99 ms"], 200),
    ]


async def _session(stage: Stage) -> SessionId:
    async with stage.db.transaction() as conn:
        run_id = await running.run_agent(conn, stage.caller, "agent", {"prompt": "go"})
        run = await runs.find(conn, stage.caller.workspace_id, run_id)
    assert run
    return SessionId(run["session_id"])


async def _append(stage: Stage, sessions: list[SessionId], *, batches: int) -> dict[str, int]:
    began = time.perf_counter()
    for number in range(batches):
        await _write(stage, sessions[number % len(sessions)], range(BATCH))
    return {APPENDED: int(batches * BATCH / (time.perf_counter() - began))}


async def _write(stage: Stage, session_id: SessionId, numbers: range) -> None:
    told = [
        NewEvent(stage.caller.workspace_id, session_id, "output", {"text": f"Line {number} of many.\n"})
        for number in numbers
    ]
    async with stage.db.transaction() as conn:
        await events.append(conn, told)


@asynccontextmanager
async def _server(stage: Stage) -> AsyncIterator[str]:
    """The API as a process of its own."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-api-") as home:
        program = Path(sys.executable).with_name("rota")
        process = await asyncio.create_subprocess_exec(
            program, "serve", "--only", "api", "--home", home, "--port", "0",
            env={**os.environ, "ROTA_DATABASE_URL": stage.url, "ROTA_MAX_STREAMS": "0"}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr
        url = ""
        while not url:
            line = (await process.stderr.readline()).decode()
            found = re.search(r'"rota.started".*"url": "([^"]+)"', line)
            url = found[1] if found else ""
        draining = asyncio.create_task(process.stderr.read())
        try:
            yield url
        finally:
            process.terminate()
            await asyncio.gather(process.wait(), draining)


async def _opening(stage: Stage, url: str, session_id: SessionId) -> dict[str, float]:
    async with stage.db.transaction() as conn:
        login = await signing_in.sign_in(conn, await signing_in.create_link(conn, stage.caller.user_id))
    path = f"/w/{stage.caller.workspace_slug}/sessions/{session_id}"
    times = []
    for _ in range(30):
        began = time.perf_counter()
        status = await _get(url, path, f"Cookie: rota_login={login}", _whole)
        times.append(time.perf_counter() - began)
        assert b" 200 " in status, status
    first, *others = times
    return {f"{OPENED}, the first, ms": first * 1000, **_spread(OPENED, others)}


async def _get(url: str, path: str, header: str, read: Callable[[asyncio.StreamReader], Awaitable[Any]]) -> Any:
    there = urlsplit(url)
    reader, writer = await asyncio.open_connection(there.hostname, there.port, limit=2**22)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {there.netloc}\r\nConnection: close\r\n{header}\r\n\r\n".encode())
    try:
        return await read(reader)
    finally:
        writer.close()


async def _whole(reader: asyncio.StreamReader) -> bytes:
    return (await reader.read()).split(b"\r\n", 1)[0]


async def _following(stage: Stage, url: str, session_id: SessionId, *, followers: int, writes: int) -> dict[str, float]:
    """From before an event is written until each of the followers has it."""
    async with stage.db.transaction() as conn:
        token = await tokens.create_as_operator(conn, stage.caller.workspace_slug, "bench")
        last = await events.last_seq(conn, stage.caller.workspace_id, session_id)
    path = f"/api/v1/workspaces/{stage.caller.workspace_slug}/sessions/{session_id}/trace?after={last}"
    written: dict[int, float] = {}
    waits: list[float] = []
    begun = 0

    async def read(reader: asyncio.StreamReader) -> None:
        nonlocal begun
        status = await reader.readline()
        assert b" 200 " in status, status
        while (line := await reader.readline()).strip():
            pass
        begun += 1
        while line := await reader.readline():
            if line.startswith(b"data: "):
                waits.append(time.perf_counter() - written[json.loads(line[6:])["seq"]])

    crowd: list[asyncio.Task[None]] = []
    while len(crowd) < followers:
        crowd += [asyncio.create_task(_get(url, path, f"Authorization: Bearer {token}", read)) for _ in range(50)]
        while begun < len(crowd):
            await asyncio.sleep(0.01)
            assert not any(each.done() for each in crowd)
    for number in range(writes):
        written[last + number + 1] = time.perf_counter()
        await _write(stage, session_id, range(1))
        stage.wakes.send(session_channel(session_id))
        async with asyncio.timeout(30):
            while len(waits) < followers * (number + 1):
                await asyncio.sleep(0.005)
    for each in crowd:
        each.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*crowd, return_exceptions=True)
    return _spread(FOLLOWED, waits)


def _spread(name: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"{name}, p50 ms": statistics.median(ordered) * 1000,
        f"{name}, p99 ms": ordered[int(len(ordered) * 0.99)] * 1000,
    }
