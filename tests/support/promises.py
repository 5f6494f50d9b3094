"""Reads the whole ledger and the whole log, and says which of promises 1 to 5 and 9 were broken.

Nothing here trusts what Rota says about itself: the tables are the evidence.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from support import live_run_tables as mirror

TERMINAL = {"succeeded", "failed", "skipped", "cancelled"}

HALTED = "CREATE TABLE IF NOT EXISTS halted (id uuid PRIMARY KEY, next_fire_at timestamptz)"
HALT = """
WITH held AS (SELECT id, next_fire_at FROM triggers WHERE next_fire_at IS NOT NULL FOR UPDATE),
kept AS (INSERT INTO halted SELECT * FROM held ON CONFLICT (id) DO UPDATE SET next_fire_at = excluded.next_fire_at)
UPDATE triggers t SET next_fire_at = NULL FROM held WHERE t.id = held.id
"""
DUPLICATES = """
SELECT trigger_id, coalesce(slot::text, idempotency_key) AS what, count(*) FROM runs
 WHERE trigger_id IS NOT NULL AND (slot IS NOT NULL OR idempotency_key IS NOT NULL)
GROUP BY 1, 2 HAVING count(*) > 1
"""
SLOTS = """
-- An interval counts from its anchor without drift, so what was due is known without asking Rota.
SELECT t.id, round(extract(epoch FROM h.next_fire_at - t.anchor_at) / extract(epoch FROM t.every))::integer - 1 AS due,
       (SELECT coalesce(sum(1 + r.missed_count), 0)::integer FROM runs r WHERE r.trigger_id = t.id) AS told
  FROM triggers t JOIN halted h ON h.id = t.id WHERE t.kind = 'every' AND t.time_of_day IS NULL
"""
LANES = """
SELECT lane, count(*) FROM runs
 WHERE lane IS NOT NULL AND (status IN ('running', 'awaiting_approval') OR (status = 'queued' AND ready_at IS NOT NULL))
GROUP BY lane HAVING count(*) > 1
"""
RUNS = "SELECT id, session_id, status, attempt, tries, rescues, max_attempts, max_rescues, lease_until FROM runs"
EVENTS = "SELECT session_id, seq, run_id, attempt, kind, data FROM events ORDER BY session_id, seq"
SESSIONS = "SELECT id, last_seq FROM sessions"


async def halt(conn: AsyncConnection[Any]) -> None:
    """Let nothing fire any more, and remember up to where everything was fired."""
    async with conn.transaction():
        await conn.execute(HALTED)
        await conn.execute(HALT)


async def broken(conn: AsyncConnection[Any]) -> list[str]:
    """Every promise that does not hold, in words. After `halt`, when nothing is at work any more."""
    runs = await _all(conn, RUNS)
    events = await _all(conn, EVENTS)
    told: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["run_id"]:
            told[event["run_id"]].append(event)
    return [
        *[f"promise 1: {row}" for row in await _all(conn, DUPLICATES)],
        *[f"promise 2: {row}" for row in await _all(conn, SLOTS) if row["due"] != row["told"]],
        *[f"promise 3: {row}" for row in await _all(conn, LANES)],
        *[f"promise 3: {row} in the mirror of live runs" for row in await mirror.astray(conn)],
        *[f"{flaw} in run {run['id']} ({run['status']})" for run in runs for flaw in _flaws(run, told[run["id"]])],
        *_gaps(events, {row["id"]: row["last_seq"] for row in await _all(conn, SESSIONS)}),
    ]


async def _all(conn: AsyncConnection[Any], query: str) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode())
        return await cursor.fetchall()


def _flaws(run: dict[str, Any], told: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield from _attempts(told)
    yield from _end(run, told)
    yield from _bounds(run, told)


def _attempts(told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Between the claim of an attempt and its end only that attempt speaks."""
    live, last = 0, 0
    for event in told:
        status = event["data"].get("status") if event["kind"] == "run" else None
        if status == "running":
            if live:
                yield f"promise 3: attempt {event['attempt']} began while {live} was live"
            if event["attempt"] <= last:
                yield f"promise 3: attempt {event['attempt']} came after {last}"
            live = last = event["attempt"]
        elif status is not None:
            live = 0
        elif event["kind"] != "run" and event["attempt"] != live:
            yield f"promise 5: attempt {event['attempt']} wrote {event['kind']} {event['seq']} while {live or 'none'} was live"


def _end(run: dict[str, Any], told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A run ends once, the log and the ledger agree how, and nothing of it follows."""
    statuses = [event["data"]["status"] for event in told if event["kind"] == "run" and "status" in event["data"]]
    ends = [status for status in statuses if status in TERMINAL]
    if run["session_id"] and ends != ([run["status"]] if run["status"] in TERMINAL else []):
        yield f"promise 4: the log says that it ended as {ends}"
    if ends and told[-1]["data"].get("status") not in TERMINAL:
        yield f"promise 4: {told[-1]['kind']} {told[-1]['seq']} came after its end"


def _bounds(run: dict[str, Any], told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Nothing stays stuck, and every attempt is accounted for by a try, a rescue or a hand-back."""
    claims = [event for event in told if event["data"].get("status") == "running"]
    handed = [event for event in told if str(event["data"].get("reason", "")).startswith("handed back")]
    if run["status"] not in TERMINAL:
        yield "promise 9: it is stuck"
    if run["rescues"] > run["max_rescues"] or run["tries"] > run["max_attempts"]:
        yield f"promise 9: {run['rescues']} rescues and {run['tries']} tries"
    if len(claims) > run["max_attempts"] + run["max_rescues"] + len(handed):
        yield f"promise 9: {len(claims)} attempts"


def _gaps(events: Sequence[dict[str, Any]], last: dict[UUID, int]) -> Iterator[str]:
    numbers: dict[UUID, list[int]] = defaultdict(list)
    for event in events:
        numbers[event["session_id"]].append(event["seq"])
    for session_id, seen in numbers.items():
        if seen != list(range(1, last.get(session_id, 0) + 1)):
            yield f"the log of session {session_id} has gaps: {seen} up to {last.get(session_id)}"
