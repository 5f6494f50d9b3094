"""From the answer to "run now" until the agent's code begins: of Rota over HTTP, in processes of its own."""

import asyncio
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.noop_kind import installed
from bench.process import Client, started
from bench.stage import Stage
from rota.access import tokens

REST_SECONDS = 0.01
WARMING = 10  # statements are prepared after their fifth time


async def over_http(stage: Stage, count: int, *parts: str) -> tuple[list[float], list[float]]:
    """How long after the answer the agent's code began, and how long the answer took. `parts` run in as many processes;
    none of them named means all in one."""
    async with stage.db.transaction() as conn:
        token = await tokens.create_as_operator(conn, "default", "bench")
    return await asyncio.to_thread(_measure, stage.url, token, count, parts)


def _measure(url: str, token: str, count: int, parts: Sequence[str]) -> tuple[list[float], list[float]]:
    with _served(url, parts) as (port, told):
        client = Client(port, token)
        assert client.ask("POST", "/agents", {"name": "Noop", "executor": "noop", "config": {}})[0] in {201, 409}
        found = [_once(client, told) for _ in range(WARMING + count)][WARMING:]
        client.close()
    return [began for began, _ in found], [answered for _, answered in found]


@contextmanager
def _served(url: str, parts: Sequence[str]) -> Iterator[tuple[int, socket.socket]]:
    """The port of the first of these processes, and where the agent tells that it began."""
    with ExitStack() as stack:
        told, environment = stack.enter_context(installed())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rota-bench-")))
        given = {**environment, "ROTA_DATABASE_URL": url, "ROTA_RATE_LIMIT": "0", "ROTA_WORKSPACE_RATE_LIMIT": "0"}
        only: list[tuple[str, ...]] = [("--only", part) for part in parts] or [()]
        processes = [stack.enter_context(started("serve", *each, home=home, **given)) for each in only]
        yield processes[0].port, told


def _once(client: Client, told: socket.socket) -> tuple[float, float]:
    sent = time.perf_counter()
    status, body = client.ask("POST", "/agents/noop/runs", {"prompt": "go"})
    answered = time.perf_counter()
    assert status == 201, body
    began = float(told.recv(100))
    time.sleep(REST_SECONDS)
    return began - answered, answered - sent
