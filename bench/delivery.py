"""Messages: how soon one that is published here is delivered in another process, and what that costs."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psutil

from bench.stage import Stage
from rota.db import events
from rota.db.listener import Listener, Wakes, session_channel
from rota.db.pool import Database
from rota.model.ids import SessionId, WorkspaceId
from rota.model.message import NewMessage
from rota.service import keep_for_good, look_for_cycles_rarely
from rota.sessions.messages import Post, subscribe

DELIVERED = "publish called → delivered in another process"
WARM_UP = 1_000  # messages that are delivered but not counted: plans, connections, imports


async def measure(stage: Stage, sessions: Sequence[SessionId], *, a_second: int, seconds: int) -> dict[str, Any]:
    """Publish at a steady rate, as a worker does for its agents; a subscriber of each session in another process takes
    the time from the call of `publish` until `subscribe` hands the message out. One machine, so one clock."""
    count = WARM_UP + seconds * a_second
    reader = await _reader(stage, sessions, count)
    assert reader.stdin
    assert reader.stdout
    await reader.stdout.readline()  # it listens to all of them
    wakes = Wakes(stage.db, Listener(stage.url))  # nobody listens here: subscribers hear of it by NOTIFY alone
    post = Post(stage.db, wakes)
    server = await _server_processes(stage)
    publishing = set()
    look_for_cycles_rarely()
    keep_for_good()
    began = time.monotonic()
    for number in range(count):
        if number == WARM_UP:
            spent = time.process_time(), _spent(server)
        await asyncio.sleep(max(0.0, began + number / a_second - time.monotonic()))
        message = NewMessage(stage.caller.workspace_id, sessions[number % len(sessions)], time.monotonic())
        publishing.add(asyncio.create_task(post.publish(message)))
    await asyncio.gather(*publishing)
    await wakes.close()
    told = json.loads(await asyncio.wait_for(reader.stdout.readline(), 60))
    ours, theirs = time.process_time() - spent[0], _spent(server) - spent[1]
    reader.stdin.close()
    await reader.wait()
    waits, each = sorted(told["waits"]), 1e6 / (count - WARM_UP)
    return {
        "messages a second, and over how many sessions": f"{a_second:,} over {len(sessions)}",
        "messages lost or repeated": abs(told["seen"] - told["different"]) + count - told["different"],
        f"{DELIVERED}, p50 ms": waits[len(waits) // 2] * 1000,
        f"{DELIVERED}, p99 ms": waits[int(len(waits) * 0.99)] * 1000,
        "CPU µs per message, publisher": ours * each,
        "CPU µs per message, subscribers": told["cpu"] * each,
        "CPU µs per message, PostgreSQL": theirs * each,
    }


async def _reader(stage: Stage, sessions: Sequence[SessionId], count: int) -> asyncio.subprocess.Process:
    workspace_id = stage.caller.workspace_id
    async with stage.db.connection() as conn:
        known = [(each, await events.last_seq(conn, workspace_id, each)) for each in sessions]
    given = {"workspace": workspace_id, "sessions": known, "count": count, "url": stage.url}
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.delivery", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        limit=2**26,
    )  # fmt: skip
    assert reader.stdin
    reader.stdin.write(json.dumps(given, default=str).encode() + b"\n")
    return reader


async def _server_processes(stage: Stage) -> psutil.Process | None:
    """PostgreSQL, if it runs on this machine."""
    async with stage.db.connection() as conn:
        row = await (await conn.execute("SELECT pg_backend_pid()")).fetchone()
    try:
        parent = psutil.Process(row[0]).parent() if row else None
    except psutil.NoSuchProcess:
        return None
    return parent if parent and parent.name() == "postgres" else None


def _spent(server: psutil.Process | None) -> float:
    spent = 0.0
    for each in server.children() if server else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            spent += times.user + times.system
    return spent


async def _read(given: dict[str, Any]) -> None:
    """The other process: one subscriber for each session."""
    look_for_cycles_rarely()
    keep_for_good()
    db, listener, closing = Database(given["url"]), Listener(given["url"]), asyncio.Event()
    await db.open()
    listening = asyncio.create_task(listener.run())
    workspace_id, seen = WorkspaceId(UUID(given["workspace"])), []
    different: set[float] = set()
    waits: list[float] = []
    began = time.process_time()

    async def read(session_id: SessionId, after: int) -> None:
        nonlocal began
        async for page in subscribe(db, listener, workspace_id, session_id, after=after, until=closing):
            now = time.monotonic()
            for message in page:
                seen.append(message.id)
                different.add(message.data["body"])
                if len(seen) == WARM_UP:
                    began = time.process_time()
                elif len(seen) > WARM_UP:
                    waits.append(now - message.data["body"])
            if len(different) >= given["count"]:
                closing.set()

    reading = [asyncio.create_task(read(SessionId(UUID(each)), after)) for each, after in given["sessions"]]
    heard = asyncio.Event()  # told once LISTEN stands
    async with listener.subscribed(session_channel(UUID(given["sessions"][-1][0])), lambda _: heard.set()):
        await heard.wait()
    print("listening", flush=True)
    await closing.wait()
    spent = time.process_time() - began
    print(json.dumps({"seen": len(seen), "different": len(different), "waits": waits, "cpu": spent}), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # its connections are counted until we are told to go
    listening.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await db.close()


if __name__ == "__main__":
    asyncio.run(_read(json.loads(sys.stdin.readline())))
