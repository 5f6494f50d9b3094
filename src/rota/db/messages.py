"""Messages: events with a delivery for each recipient, written together under the session's row lock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from rota.db import at_once
from rota.db.events import PAGE_BYTES
from rota.db.pool import Connection
from rota.db.write_keys import Key
from rota.model.ids import RunId, SessionId, WorkspaceId

# Who has an inbox: the session's roles, and `agent` as long as nobody gave the agent that it belongs to one. Roles which that
# agent named, for tasks, are others' (attempts.SEAT).
SEATS = """
ARRAY(SELECT r.name FROM session_roles r WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id
      UNION ALL
      SELECT 'agent' WHERE NOT EXISTS (
          SELECT FROM session_roles r WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id
             AND r.agent_id = s.agent_id AND NOT r.named_by_agent)
      ORDER BY 1)
"""

LOOK = f"""
-- All that a group of messages is judged by, in one round trip. First the attempts are held (as in events.HOLD), then the
-- sessions locked, each in id order, so that writers over several of them never deadlock. Who holds a session's row
-- numbers its events. Seats and keys are as the statement found them when it began: `seen_seq` tells whether somebody
-- wrote in the session while it waited for the lock.
WITH held AS MATERIALIZED (
    SELECT given.number
      FROM (SELECT *, ARRAY['running', 'awaiting_approval'] AS expected
              FROM json_to_recordset(%(attempts)s::json)
                   AS g(number integer, workspace_id uuid, run_id uuid, attempt integer)) given
           JOIN runs r ON r.workspace_id = given.workspace_id AND r.id = given.run_id
     WHERE r.attempt = given.attempt AND r.status = ANY(given.expected) AND r.lease_until > clock_timestamp()
  ORDER BY r.workspace_id, r.id
       FOR SHARE OF r),
locked AS MATERIALIZED (
    SELECT given.number, s.workspace_id, s.id, s.status, s.agent_id, s.last_seq
      FROM json_to_recordset(%(sessions)s::json) AS given(number integer, workspace_id uuid, id uuid)
           JOIN sessions s ON s.workspace_id = given.workspace_id AND s.id = given.id
     WHERE (SELECT count(*) FROM held) >= 0
  ORDER BY s.workspace_id, s.id
       FOR NO KEY UPDATE OF s)
SELECT now(), ARRAY(SELECT number FROM held),
       (SELECT json_agg(json_build_array(s.number, s.status, s.last_seq, seen.last_seq, {SEATS}))
          FROM locked s CROSS JOIN LATERAL (
                   SELECT n.last_seq FROM sessions n WHERE n.workspace_id = s.workspace_id AND n.id = s.id LIMIT 1) seen),
       (SELECT json_agg(json_build_array(given.number, encode(k.body_hash, 'hex'), k.answer))
          FROM json_to_recordset(%(keys)s::json) AS given(number integer, workspace_id uuid, scope_id uuid, key text)
               CROSS JOIN LATERAL (
                   SELECT * FROM write_keys k
                    WHERE k.workspace_id = given.workspace_id AND k.scope_id = given.scope_id AND k.key = given.key
                    LIMIT 1) k)
"""  # noqa: S608

OF_SESSION = f"""
SELECT {SEATS} || ARRAY(SELECT p.name FROM imported_parts p
                         WHERE p.workspace_id = s.workspace_id AND p.session_id = s.id AND p.what = 'role' ORDER BY line)
  FROM sessions s WHERE s.workspace_id = %(workspace_id)s AND s.id = %(session_id)s
"""  # noqa: S608

WRITE = """
-- The sessions are locked and the messages numbered: event, deliveries and key of each go in together.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(messages)s::json) AS m(
        workspace_id uuid, session_id uuid, seq bigint, run_id uuid, attempt integer, data jsonb, recipients text[],
        scope_id uuid, key text, body_hash text, answer jsonb)),
raised AS (
    UPDATE sessions s
       SET last_seq = newest.seq, updated_at = now()
      FROM (SELECT workspace_id, session_id, max(seq) AS seq FROM given GROUP BY workspace_id, session_id) newest
     WHERE s.workspace_id = newest.workspace_id AND s.id = newest.session_id),
told AS (
    INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
    SELECT workspace_id, session_id, seq, 'message', run_id, attempt, data FROM given),
keyed AS (
    INSERT INTO write_keys (workspace_id, scope_id, key, body_hash, answer)
    SELECT workspace_id, scope_id, key, decode(body_hash, 'hex'), answer FROM given WHERE key IS NOT NULL)
INSERT INTO deliveries (workspace_id, session_id, seq, role)
SELECT workspace_id, session_id, seq, unnest(recipients) FROM given
"""

PAGES = """
-- A page is chosen among deliveries, whose indexes are in the order of the session, before events are looked up; and of these
-- as many bytes as in events.PAGES.
SELECT number, more, seq, run_id, attempt, data, created_at, deliveries
  FROM (SELECT *, sum(octet_length(data::text)) OVER before AS read
          FROM (SELECT given.number, d.more, e.*, d.deliveries, sum(pg_column_size(e.data)) OVER before AS stored
                  FROM json_to_recordset(%(asked)s::json) AS given(number integer, session_id uuid, role text, after bigint)
                       CROSS JOIN LATERAL (
                           SELECT *, lead(seq) OVER (ORDER BY seq) IS NOT NULL AS more FROM ({chosen}) chosen
                         ORDER BY seq LIMIT %(limit)s) d
                       CROSS JOIN LATERAL (
                           SELECT e.seq, e.run_id, e.attempt, e.data, e.created_at FROM events e
                            WHERE e.workspace_id = %(workspace_id)s AND e.session_id = given.session_id AND e.seq = d.seq
                            LIMIT 1) e
                WINDOW before AS (PARTITION BY given.number ORDER BY e.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
               ) page
         WHERE coalesce(stored, 0) < %(bytes)s
        WINDOW before AS (PARTITION BY number ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) fitting
 WHERE coalesce(read, 0) < %(bytes)s
ORDER BY number, seq
"""

DELIVERED = """
SELECT seq, json_agg(json_build_object('role', d.role, 'acked_at', acked_at) ORDER BY d.role) AS deliveries
  FROM deliveries d
 WHERE d.workspace_id = %(workspace_id)s AND d.session_id = given.session_id AND d.seq > given.after {which}
GROUP BY seq
"""

IMPORTED = """
-- As the log tells of them: to whom they came is not in an export.
SELECT seq, '[]'::json AS deliveries
  FROM events m
 WHERE m.workspace_id = %(workspace_id)s AND m.session_id = given.session_id AND m.seq > given.after AND m.kind = 'message'
   AND jsonb_typeof(m.data -> 'from') = 'string' AND jsonb_typeof(m.data -> 'to') = 'string' {which}
"""

TO_ROLE = " AND (m.data ->> 'to' = given.role OR m.data ->> 'to' = 'all' AND m.data ->> 'from' <> given.role)"

ACK = """
-- Once only: a repeat finds the first acknowledgement and changes nothing.
WITH acked AS (
    UPDATE deliveries SET acked_at = clock_timestamp()
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND role = %(role)s
       AND seq = ANY(%(ids)s) AND acked_at IS NULL
 RETURNING seq)
SELECT seq FROM acked
UNION
SELECT seq FROM deliveries
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND role = %(role)s AND seq = ANY(%(ids)s)
"""


Where = tuple[UUID, UUID]
Attempt = tuple[UUID, UUID, int]


@dataclass(frozen=True, slots=True)
class Locked:
    status: str
    last_seq: int
    seats: list[str]


@dataclass(frozen=True, slots=True)
class Seen:
    """What messages are judged by, and what cannot change before the transaction ends."""

    now: datetime
    held: set[Attempt]
    sessions: dict[Where, Locked]
    keys: dict[Key, tuple[bytes, Any]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it stands in the log. Its id is its number in the session's one sequence."""

    id: int
    run_id: RunId | None
    attempt: int | None
    data: dict[str, Any]
    created_at: datetime
    deliveries: list[dict[str, Any]]


@dataclass(slots=True)
class Page:
    messages: list[Message] = field(default_factory=list)
    more: bool = False  # follow


@dataclass(frozen=True, slots=True)
class Asked:
    """An inbox after a number: everybody's, or what one role got or has yet to acknowledge. In a session that was
    imported nobody acknowledges anything."""

    session_id: SessionId
    after: int = 0
    role: str | None = None
    unacked: bool = False
    imported: bool = False

    @property
    def chosen(self) -> str:
        """A query of its own for each make, so that each finds its index."""
        if self.imported:
            which = (TO_ROLE if self.role is not None else "") + (" AND false" if self.unacked else "")
            return IMPORTED.replace("{which}", which)
        of_role = " AND d.role = given.role" if self.role is not None else ""
        return DELIVERED.replace("{which}", of_role + (" AND acked_at IS NULL" if self.unacked else ""))


async def look(
    conn: Connection,
    attempts: Sequence[Attempt],
    sessions: Sequence[Where],
    keys: Sequence[Key],
    *,
    begin: bool = False,
) -> Seen:
    """Hold those attempts that still have their lease, lock the sessions, and see what else decides. With `begin`, the
    transaction begins with it."""
    given = {
        "attempts": _numbered(attempts, "workspace_id", "run_id", "attempt"),
        "sessions": _numbered(sessions, "workspace_id", "id"),
        "keys": _numbered(keys, "workspace_id", "scope_id", "key"),
    }
    for number in range(2):  # who waited for a lock looks again, now that nobody else can write
        *_, [row] = await at_once.run(conn, *(["BEGIN"] if begin and not number else []), (LOOK, given))
        now, held, locked, found = row
        if all(last_seq == seen_seq for _, _, last_seq, seen_seq, _ in locked or ()):
            break
    return Seen(
        now,
        {attempts[number] for number in held},
        {sessions[number]: Locked(status, last_seq, seats) for number, status, last_seq, _, seats in locked or ()},
        {keys[number]: (bytes.fromhex(body_hash), answer) for number, body_hash, answer in found or ()},
    )


async def seats(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> list[str]:
    """Who of the session's agents has an inbox."""
    rows = await conn.execute(OF_SESSION.encode(), {"workspace_id": workspace_id, "session_id": session_id})
    found = await rows.fetchone()
    return found[0] if found else []


async def write(conn: Connection, messages: Sequence[Mapping[str, Any]], *, commit: bool = False) -> None:
    """With `commit`, the transaction ends with it."""
    written: list[at_once.Step] = [(WRITE, {"messages": orjson.dumps(messages).decode()})] if messages else []
    if steps := [*written, *(["COMMIT"] if commit else [])]:
        await at_once.run(conn, *steps)


async def pages(
    conn: Connection,
    workspace_id: WorkspaceId,
    asked: Sequence[Asked],
    *,
    limit: int,
    confined: Sequence[at_once.Step] = (),
) -> list[Page]:
    """For each inbox asked for, which are all of the same make, the page of messages after a number, oldest first: so
    many, or those with which PAGE_BYTES are full. With `confined`, in a transaction of its own that begins so."""
    given = [
        {"number": n, "session_id": each.session_id, "role": each.role, "after": each.after}
        for n, each in enumerate(asked)
    ]
    found = [Page() for _ in asked]
    statement = PAGES.replace("{chosen}", asked[0].chosen)
    values = {"workspace_id": workspace_id, "asked": orjson.dumps(given).decode(), "limit": limit, "bytes": PAGE_BYTES}
    steps: list[at_once.Step] = (
        ["BEGIN", *confined, (statement, values), "COMMIT"] if confined else [(statement, values)]
    )
    rows = (await at_once.run(conn, *steps))[-2 if confined else -1]
    for number, more, *message in rows:
        found[number].messages.append(Message(*message))
        found[number].more = more
    return found


async def page(conn: Connection, workspace_id: WorkspaceId, asked: Asked, *, limit: int) -> Page:
    return (await pages(conn, workspace_id, [asked], limit=limit))[0]


async def ack(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, role: str, ids: Sequence[int]
) -> set[int]:
    """Acknowledge; which of these messages the role was ever given."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "role": role, "ids": list(ids)}
    rows = await conn.execute(ACK, given)
    return {seq for (seq,) in await rows.fetchall()}


def _numbered(given: Sequence[tuple[Any, ...]], *names: str) -> str:
    return orjson.dumps([{"number": n, **dict(zip(names, each, strict=True))} for n, each in enumerate(given)]).decode()
