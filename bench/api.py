"""What scripts ask for, over HTTP of a real server, with as much stored as a busy house has after half a year."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from bench import run_state, stock
from bench.goals import Goal, at_most
from bench.process import Client, started
from bench.stage import Stage, staged
from rota.access import tokens

GOAL_MS = 50.0
BUSIEST = 20_000  # runs of one automation
OTHERS = 50_000  # workspaces on the same server
WARMING = 12  # PostgreSQL settles on a plan after ten times
OTHER_WORKSPACES = (
    "INSERT INTO workspaces (id, slug, name) SELECT gen_random_uuid(), 'w' || n, 'W' FROM generate_series(1, %s) n"
)


class Call(NamedTuple):
    """One request, for each of these things in turn."""

    method: str
    path: str
    things: Sequence[str] = ("",)
    body: Any = None


async def measure(*, quick: bool) -> tuple[dict[str, Any], list[Goal]]:
    automations, runs, times = (1_000, 100_000, 20) if quick else (10_000, 1_000_000, 50)
    async with staged() as stage:
        await stage.fill(automations, datetime.now(UTC) + timedelta(days=1), tidy=False)
        await stock.fill(stage, automations=automations, runs=runs, busiest=BUSIEST)
        async with stage.db.transaction() as conn:
            await conn.execute(OTHER_WORKSPACES, [OTHERS])
            token = await tokens.create_as_operator(conn, "default", "bench")
        await stage.tidy()
        calls = await _calls(stage, times + WARMING)
        took = await asyncio.to_thread(_ask, stage.url, token, calls, times)
    figures: dict[str, Any] = {"stored": f"{automations:,} automations, {runs:,} runs, {OTHERS:,} other workspaces"}
    for name, each in took.items():
        figures[f"{name}, p50 / p95 ms"] = f"{statistics.median(each):.1f} / {_p95(each):.1f}"
    slowest = max(took, key=lambda name: _p95(took[name]))
    return figures, [at_most(f"p95 ms of the slowest ({slowest})", _p95(took[slowest]), GOAL_MS)]


def _p95(took: Sequence[float]) -> float:
    return sorted(took)[int(len(took) * 0.95)]


def _ask(url: str, token: str, calls: dict[str, Call], times: int) -> dict[str, list[float]]:
    unbounded = {"ROTA_RATE_LIMIT": "0", "ROTA_WORKSPACE_RATE_LIMIT": "0"}
    with (
        tempfile.TemporaryDirectory(prefix="rota-bench-") as home,
        started("serve", "--only", "api", home=Path(home), ROTA_DATABASE_URL=url, **unbounded) as rota,
    ):
        client = Client(rota.port, token)
        took = {name: _times(client, call, times) for name, call in calls.items()}
        client.close()
    return took


def _times(client: Client, call: Call, times: int) -> list[float]:
    took = []
    for number in range(times + WARMING):
        path = call.path.format(call.things[number % len(call.things)])
        began = time.perf_counter()
        status, answer = client.ask(call.method, path, call.body)
        took.append(1000 * (time.perf_counter() - began))
        assert status < 300, f"{call.method} {path} answered {status}: {answer[:500]!r}"
    return took[WARMING:]


async def _calls(stage: Stage, count: int) -> dict[str, Call]:
    """The oldest of each kind: whoever reads from the newest on has the longest way to them."""

    async def some(query: str) -> list[str]:
        async with stage.db.connection() as conn:
            return [str(row[0]) for row in await (await conn.execute(f"{query} LIMIT {count}".encode())).fetchall()]

    slugs = await some("SELECT slug FROM automations WHERE status = 'active' ORDER BY id DESC")
    async with stage.db.connection() as conn:
        runs = await run_state.failed_runs(conn, count)
    sessions = await some("SELECT id FROM sessions WHERE kind = 'automation' AND last_seq BETWEEN 1 AND 3 ORDER BY id")
    approvals = await some("SELECT id FROM approvals ORDER BY id")
    notifications = await some("SELECT id FROM notifications ORDER BY id")
    grants = await some("SELECT id FROM grants WHERE automation_id IS NOT NULL ORDER BY id DESC")
    [account] = await some("SELECT id FROM accounts")
    return {
        "automations": Call("GET", "/automations"),
        "one automation": Call("GET", "/automations/{}", slugs),
        "its runs": Call("GET", "/automations/{}/runs", slugs),
        "runs": Call("GET", "/runs"),
        "runs, failed": Call("GET", "/runs?status=failed"),
        "one run": Call("GET", "/runs/{}", runs),
        "sessions": Call("GET", "/sessions"),
        "one session": Call("GET", "/sessions/{}", sessions),
        "its events": Call("GET", "/sessions/{}/events", sessions),
        "approvals": Call("GET", "/approvals"),
        "one approval": Call("GET", "/approvals/{}", approvals),
        "notifications": Call("GET", "/notifications"),
        "grants": Call("GET", "/grants"),
        "audit": Call("GET", "/audit"),
        "usage": Call("GET", "/usage"),
        "usage of an account": Call("GET", "/accounts/{}/usage", [account]),
        "workers": Call("GET", "/workers"),
        "run an agent": Call("POST", "/agents/agent/runs", body={"prompt": "go"}),
        "retry a run": Call("POST", "/runs/{}/retry", runs),
        "change an automation": Call("PATCH", "/automations/{}", slugs, {"prompt": "Do it well."}),
        "run an automation": Call("POST", "/automations/{}/run", slugs),
        "pause it": Call("POST", "/automations/{}/pause", slugs),
        "resume it": Call("POST", "/automations/{}/resume", slugs),
        "read a notification": Call("POST", "/notifications/{}/read", notifications),
        "archive a session": Call("POST", "/sessions/{}/archive", sessions),
        "revoke a grant": Call("POST", "/grants/{}/revoke", grants),
        "delete an automation": Call("DELETE", "/automations/{}", slugs),
    }  # fmt: skip
