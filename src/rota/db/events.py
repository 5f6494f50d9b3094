"""The event log: one sequence for each session, numbered under the session's row lock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import args_row

from rota.db.paging import LARGEST_SEQ, or_end
from rota.db.pool import Connection
from rota.model.export import ImportedEvent
from rota.model.ids import RunId, SessionId, WorkspaceId

PAGE_BYTES = 1024 * 1024

APPEND = """
-- Sessions are locked in id order, so that writers over several sessions never deadlock. The chain goes by RETURNING:
-- a join of two CTEs is planned for one row and compares every pair.
WITH locked AS MATERIALIZED (
    SELECT s.workspace_id, s.id, given.events
      FROM json_to_recordset(%(batches)s::json) AS given(workspace_id uuid, session_id uuid, events json)
           JOIN sessions s ON s.workspace_id = given.workspace_id AND s.id = given.session_id
  ORDER BY s.workspace_id, s.id
       FOR NO KEY UPDATE OF s),
numbered AS (
    UPDATE sessions s
       SET last_seq = s.last_seq + json_array_length(locked.events), updated_at = now()
      FROM locked
     WHERE s.workspace_id = locked.workspace_id AND s.id = locked.id
 RETURNING s.workspace_id, s.id, s.last_seq - json_array_length(locked.events) AS before, locked.events)
INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
SELECT n.workspace_id, n.id, n.before + event.position, event.value ->> 'kind', (event.value ->> 'run_id')::uuid,
       (event.value ->> 'attempt')::integer, (event.value -> 'data')::jsonb
  FROM numbered n, json_array_elements(n.events) WITH ORDINALITY AS event(value, position)
"""

RESTORE = """
-- Events of another place, with their own numbers and times.
INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data, created_at)
SELECT %(workspace_id)s, %(session_id)s, seq, kind, run_id, attempt, data, created_at
  FROM json_to_recordset(%(events)s::json) AS g(
       seq bigint, kind text, run_id uuid, attempt integer, data jsonb, created_at timestamptz)
"""

# The fence of promise 5: the run's row is locked against a rescue, and must still belong to this attempt.
_HOLD = """
-- `expected` as in SETTLE: found by the primary key, not among all that runs.
WITH given AS MATERIALIZED (
    SELECT *, ARRAY['running', 'awaiting_approval'] AS expected
      FROM json_to_recordset(%(attempts)s::json) AS g(workspace_id uuid, run_id uuid, attempt integer))
SELECT r.workspace_id, r.id, r.attempt
  FROM given JOIN runs r ON r.workspace_id = given.workspace_id AND r.id = given.run_id
 WHERE r.attempt = given.attempt AND r.status = ANY(given.expected) AND r.lease_until > clock_timestamp()
ORDER BY r.workspace_id, r.id
   FOR {strength} OF r
"""
HOLD = _HOLD.format(strength="SHARE")
HOLD_ALONE = _HOLD.format(strength="NO KEY UPDATE")

PAGES = """
-- As many bytes as are stored, which is known without reading them; and of those as many as they are when read, since what is
-- large is compressed.
SELECT given.number, e.more, e.seq, e.kind, e.run_id, e.attempt, e.data, e.created_at
  FROM json_to_recordset(%(asked)s::json) AS given(number integer, session_id uuid, after bigint)
       CROSS JOIN LATERAL (
           SELECT *, sum(octet_length(data::text)) OVER before AS read
             FROM (SELECT e.*, sum(pg_column_size(e.data)) OVER before AS stored,
                          lead(e.seq) OVER (ORDER BY e.seq) IS NOT NULL AS more
                     FROM events e
                    WHERE e.workspace_id = %(workspace_id)s AND e.session_id = given.session_id AND e.seq > given.after
                   WINDOW before AS (ORDER BY e.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                 ORDER BY e.seq LIMIT %(limit)s) e
            WHERE coalesce(stored, 0) < %(bytes)s
           WINDOW before AS (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) e
 WHERE coalesce(e.read, 0) < %(bytes)s
ORDER BY given.number, e.seq
"""

LAST_SEQ = "SELECT last_seq FROM sessions WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s"

OF_RUN = """
SELECT seq, kind, run_id, attempt, data, created_at FROM events
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND run_id = %(run_id)s AND kind = 'run'
ORDER BY seq
"""

LAST_WORDS = """
-- The newest pieces of what one attempt said, wherever it said it, without its standard error. Only the end of the log is
-- read: others may have said much in the session since.
SELECT data ->> 'text'
  FROM (SELECT * FROM events
         WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s ORDER BY seq DESC LIMIT 200) newest
 WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND kind = 'output' AND data ->> 'stream' IS DISTINCT FROM 'stderr'
ORDER BY seq DESC LIMIT 20
"""

FIND = """
SELECT seq, kind, run_id, attempt, data, created_at FROM events
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND seq = %(seq)s
"""

TAIL = """
-- As PAGES, from the end.
SELECT more, seq, kind, run_id, attempt, data, created_at
  FROM (SELECT *, sum(octet_length(data::text)) OVER newer AS read
          FROM (SELECT e.*, sum(pg_column_size(e.data)) OVER newer AS stored,
                       lead(e.seq) OVER (ORDER BY e.seq DESC) IS NOT NULL AS more
                  FROM events e
                 WHERE e.workspace_id = %(workspace_id)s AND e.session_id = %(session_id)s
                   AND e.seq < %(before)s
                WINDOW newer AS (ORDER BY e.seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
              ORDER BY e.seq DESC LIMIT %(limit)s) e
         WHERE coalesce(stored, 0) < %(bytes)s
        WINDOW newer AS (ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) e
 WHERE coalesce(read, 0) < %(bytes)s
ORDER BY seq
"""

EARLIER = """
-- What others said in the session, the newest of it: as many bytes as are stored, which is known without reading them, and of
-- those as many as they are when read, since what is large is compressed.
SELECT seq, kind, run_id, attempt, data, created_at
  FROM (SELECT *, sum(octet_length(data ->> CASE kind WHEN 'output' THEN 'text' ELSE 'prompt' END)) OVER newest AS bytes
          FROM (SELECT *, sum(pg_column_size(data)) OVER newest AS stored
                  FROM (SELECT * FROM events
                         WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
                      ORDER BY seq DESC LIMIT %(limit)s) last
                 WHERE kind IN ('output', 'run') AND run_id IS DISTINCT FROM %(run_id)s
                WINDOW newest AS (ORDER BY seq DESC ROWS UNBOUNDED PRECEDING)) said
         WHERE stored <= %(bytes)s
        WINDOW newest AS (ORDER BY seq DESC ROWS UNBOUNDED PRECEDING)) told
 WHERE coalesce(bytes, 0) <= %(bytes)s
ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class NewEvent:
    workspace_id: WorkspaceId
    session_id: SessionId
    kind: str
    data: Mapping[str, Any]
    run_id: RunId | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """As every query here shows it, column by column."""

    seq: int
    kind: str
    run_id: RunId | None
    attempt: int | None
    data: dict[str, Any]
    created_at: datetime


@dataclass(slots=True)
class Page:
    events: list[Event] = field(default_factory=list)
    more: bool = False  # than these, in the direction in which they were read


async def append(conn: Connection, events: Iterable[NewEvent]) -> None:
    """Write events in the order given, each session's in its own sequence."""
    batches: dict[tuple[UUID, UUID], dict[str, Any]] = {}
    for each in events:
        new: dict[str, Any] = {"workspace_id": each.workspace_id, "session_id": each.session_id, "events": []}
        batch = batches.setdefault((each.workspace_id, each.session_id), new)
        batch["events"].append({"kind": each.kind, "run_id": each.run_id, "attempt": each.attempt, "data": each.data})
    if batches:
        await conn.execute(APPEND, {"batches": orjson.dumps(list(batches.values())).decode()})


async def restore(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, events: Sequence[ImportedEvent]
) -> None:
    given = {"workspace_id": workspace_id, "session_id": session_id}
    await conn.execute(RESTORE, {**given, "events": orjson.dumps(events).decode()})


async def hold(
    conn: Connection, attempts: Iterable[tuple[WorkspaceId, RunId, int]], *, alone: bool = False
) -> set[tuple[UUID, UUID, int]]:
    """Those attempts that still hold their lease; nobody can take it from them before this transaction ends. `alone` also
    keeps out others who hold them: for a caller that changes the run, since two that share it could not."""
    given = [{"workspace_id": w, "run_id": r, "attempt": a} for w, r, a in attempts]
    rows = await conn.execute(HOLD_ALONE if alone else HOLD, {"attempts": orjson.dumps(given).decode()})
    return {(w, r, a) for w, r, a in await rows.fetchall()}


async def pages(
    conn: Connection, workspace_id: WorkspaceId, asked: Sequence[tuple[SessionId, int]], *, limit: int
) -> list[Page]:
    """For each session and number asked for, the page after it: so many events, or those with which PAGE_BYTES are
    full."""
    given = [{"number": n, "session_id": session_id, "after": after} for n, (session_id, after) in enumerate(asked)]
    found = [Page() for _ in asked]
    rows = await conn.execute(
        PAGES,
        {"workspace_id": workspace_id, "asked": orjson.dumps(given).decode(), "limit": limit, "bytes": PAGE_BYTES},
    )
    for number, more, *event in await rows.fetchall():
        page = found[number]
        page.events.append(Event(*event))
        page.more = more
    return found


async def find(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, seq: int) -> Event | None:
    async with conn.cursor(row_factory=args_row(Event)) as cursor:
        await cursor.execute(FIND, {"workspace_id": workspace_id, "session_id": session_id, "seq": seq})
        return await cursor.fetchone()


async def last_seq(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> int:
    """Where the session's log ends."""
    row = await (await conn.execute(LAST_SEQ, {"workspace_id": workspace_id, "session_id": session_id})).fetchone()
    return row[0] if row else 0


async def tail(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, *, limit: int, before: int | None = None
) -> Page:
    """The newest events, oldest first: so many, or those with which PAGE_BYTES are full."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "before": or_end(before, LARGEST_SEQ)}
    rows = await (await conn.execute(TAIL, {**given, "limit": limit, "bytes": PAGE_BYTES})).fetchall()
    return Page([Event(*event) for _, *event in rows], bool(rows) and rows[0][0])


async def earlier(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, run_id: RunId, *, limit: int, size: int
) -> list[Event]:
    """What other runs asked and said among the newest `limit` events, oldest first: the newest that fit in `size` bytes."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "run_id": run_id, "limit": limit, "bytes": size}
    async with conn.cursor(row_factory=args_row(Event)) as cursor:
        await cursor.execute(EARLIER, given)
        return await cursor.fetchall()


async def last_words(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, run_id: RunId, attempt: int
) -> str:
    given = {"workspace_id": workspace_id, "session_id": session_id, "run_id": run_id, "attempt": attempt}
    pieces = [text for (text,) in await (await conn.execute(LAST_WORDS, given)).fetchall()]
    return "".join(reversed(pieces))


async def of_run(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, run_id: RunId) -> list[Event]:
    """What became of one run, in order."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "run_id": run_id}
    async with conn.cursor(row_factory=args_row(Event)) as cursor:
        await cursor.execute(OF_RUN, given)
        return await cursor.fetchall()
