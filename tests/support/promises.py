"""Reads the whole ledger and the whole log, and says which of promises 1 to 5 and 9 were broken.

Nothing here trusts what Rota says about itself: the tables are the evidence.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from support import live_run_tables as mirror
from support.run_state import Run, find_columns

TERMINAL = {"succeeded", "failed", "skipped", "cancelled"}

HALTED = "CREATE TABLE IF NOT EXISTS halted (id uuid PRIMARY KEY, next_fire_at timestamptz)"
HALT = """
WITH held AS (SELECT id, next_fire_at FROM triggers WHERE next_fire_at IS NOT NULL FOR UPDATE),
kept AS (INSERT INTO halted SELECT * FROM held ON CONFLICT (id) DO UPDATE SET next_fire_at = excluded.next_fire_at)
UPDATE triggers t SET next_fire_at = NULL FROM held WHERE t.id = held.id
"""
INTERVALS = """
-- An interval counts from its anchor without drift, so the due slots are known without asking Rota.
SELECT t.id, round(extract(epoch FROM h.next_fire_at - t.anchor_at) / extract(epoch FROM t.every))::integer - 1 AS due
  FROM triggers t JOIN halted h ON h.id = t.id WHERE t.kind = 'every' AND t.time_of_day IS NULL
"""
COLUMNS = (
    "id", "trigger_id", "session_id", "idempotency_key", "lane", "status", "attempt", "tries", "rescues", "max_attempts",
    "max_rescues", "missed_count", "ready_at", "slot::text",
)  # fmt: skip
EVENTS = "SELECT session_id, seq, run_id, attempt, kind, data FROM events ORDER BY session_id, seq"
SESSIONS = "SELECT id, last_seq FROM sessions"


async def halt(conn: AsyncConnection[Any]) -> None:
    """Let nothing fire any more, and remember up to where everything was fired."""
    async with conn.transaction():
        await conn.execute(HALTED)
        await conn.execute(HALT)


async def broken(conn: AsyncConnection[Any]) -> list[str]:
    """Every promise that does not hold, in words. After `halt`, when nothing is at work any more."""
    runs = await find_columns(conn, *COLUMNS)
    events = await _all(conn, EVENTS)
    told: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["run_id"]:
            told[event["run_id"]].append(event)
    return [
        *[f"promise 1: {what} started {count} runs" for what, count in _starts(runs).items() if count > 1],
        *_slots(runs, await _all(conn, INTERVALS)),
        *[f"promise 3: {count} runs hold lane {lane}" for lane, count in _lanes(runs).items() if count > 1],
        *[f"promise 3: {row} in the mirror of live runs" for row in await mirror.astray(conn)],
        *[f"{flaw} in run {run['id']} ({run['status']})" for run in runs for flaw in _flaws(run, told[run["id"]])],
        *_gaps(events, {row["id"]: row["last_seq"] for row in await _all(conn, SESSIONS)}),
    ]


async def _all(conn: AsyncConnection[Any], query: str) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode())
        return await cursor.fetchall()


def _starts(runs: Sequence[Run]) -> Counter[tuple[Any, str]]:
    """How many runs each slot or key of a trigger started."""
    starts = [(run["trigger_id"], run["slot"] or run["idempotency_key"]) for run in runs if run["trigger_id"]]
    return Counter((trigger_id, what) for trigger_id, what in starts if what is not None)


def _slots(runs: Sequence[Run], intervals: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Each slot that was due has its run, or is counted by the run that stands for it."""
    told: Counter[UUID] = Counter()
    for run in runs:
        told[run["trigger_id"]] += 1 + run["missed_count"]
    for trigger in intervals:
        if trigger["due"] != told[trigger["id"]]:
            yield f"promise 2: {trigger['due']} slots of trigger {trigger['id']} were due and {told[trigger['id']]} have runs"


def _lanes(runs: Sequence[Run]) -> Counter[UUID]:
    """How many runs hold each lane."""
    return Counter(run["lane"] for run in runs if run["lane"] and _holds_its_lane(run))


def _holds_its_lane(run: Run) -> bool:
    return run["status"] in {"running", "awaiting_approval"} or (
        run["status"] == "queued" and run["ready_at"] is not None
    )


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
