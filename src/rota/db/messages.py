"""Messages: events with a delivery for each recipient, written together under the session's row lock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from rota.db.pool import Connection
from rota.model.ids import RunId, SessionId, WorkspaceId

LOCK = """
-- In id order, so that writers over several sessions never deadlock. Who holds the row numbers the session's events.
SELECT s.workspace_id, s.id, s.status, s.last_seq, now()
  FROM json_to_recordset(%(sessions)s::json) AS given(workspace_id uuid, id uuid)
       JOIN sessions s ON s.workspace_id = given.workspace_id AND s.id = given.id
ORDER BY s.workspace_id, s.id
   FOR NO KEY UPDATE OF s
"""

ROLES = """
SELECT r.workspace_id, r.session_id, array_agg(r.name ORDER BY r.name)
  FROM json_to_recordset(%(sessions)s::json) AS given(workspace_id uuid, id uuid)
       JOIN session_roles r ON r.workspace_id = given.workspace_id AND r.session_id = given.id
GROUP BY r.workspace_id, r.session_id
"""

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
-- A page is chosen among deliveries, whose indexes are in the order of the session, before events are looked up.
SELECT given.number, e.seq, e.run_id, e.attempt, e.data, e.created_at, d.deliveries
  FROM json_to_recordset(%(asked)s::json) AS given(number integer, session_id uuid, role text, after bigint)
       CROSS JOIN LATERAL (
           SELECT seq, json_agg(json_build_object('role', d.role, 'acked_at', acked_at) ORDER BY d.role) AS deliveries
             FROM deliveries d
            WHERE d.workspace_id = %(workspace_id)s AND d.session_id = given.session_id AND d.seq > given.after {chosen}
         GROUP BY seq ORDER BY seq LIMIT %(limit)s) d
       CROSS JOIN LATERAL (
           SELECT * FROM events e
            WHERE e.workspace_id = %(workspace_id)s AND e.session_id = given.session_id AND e.seq = d.seq LIMIT 1) e
ORDER BY given.number, e.seq
"""

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


@dataclass(frozen=True, slots=True)
class Locked:
    status: str
    last_seq: int
    now: datetime


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it stands in the log. Its id is its number in the session's one sequence."""

    id: int
    run_id: RunId | None
    attempt: int | None
    data: dict[str, Any]
    created_at: datetime
    deliveries: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """An inbox after a number: everybody's, or what one role got or has yet to acknowledge."""

    session_id: SessionId
    after: int = 0
    role: str | None = None
    unacked: bool = False

    @property
    def chosen(self) -> str:
        """A condition of its own for each make, so that each finds its index."""
        of_role = " AND d.role = given.role" if self.role is not None else ""
        return of_role + (" AND acked_at IS NULL" if self.unacked else "")


Where = tuple[UUID, UUID]


async def lock(conn: Connection, sessions: Iterable[Where]) -> dict[Where, Locked]:
    rows = await conn.execute(LOCK, {"sessions": _listed(sessions)})
    return {(w, s): Locked(status, last_seq, now) for w, s, status, last_seq, now in await rows.fetchall()}


async def roles(conn: Connection, sessions: Iterable[Where]) -> dict[Where, list[str]]:
    """The roles that these sessions declare; a session without any is not among them."""
    rows = await conn.execute(ROLES, {"sessions": _listed(sessions)})
    return {(w, s): names for w, s, names in await rows.fetchall()}


async def write(conn: Connection, messages: Sequence[Mapping[str, Any]]) -> None:
    if messages:
        await conn.execute(WRITE, {"messages": orjson.dumps(messages).decode()})


async def pages(
    conn: Connection, workspace_id: WorkspaceId, asked: Sequence[Asked], *, limit: int
) -> list[list[Message]]:
    """For each inbox asked for, which are all of the same make, the page of messages after a number, oldest first."""
    given = [
        {"number": n, "session_id": each.session_id, "role": each.role, "after": each.after}
        for n, each in enumerate(asked)
    ]
    found: list[list[Message]] = [[] for _ in asked]
    rows = await conn.execute(
        PAGES.replace("{chosen}", asked[0].chosen).encode(),
        {"workspace_id": workspace_id, "asked": orjson.dumps(given).decode(), "limit": limit},
    )
    for number, *message in await rows.fetchall():
        found[number].append(Message(*message))
    return found


async def page(conn: Connection, workspace_id: WorkspaceId, asked: Asked, *, limit: int) -> list[Message]:
    return (await pages(conn, workspace_id, [asked], limit=limit))[0]


async def ack(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, role: str, ids: Sequence[int]
) -> set[int]:
    """Acknowledge; which of these messages the role was ever given."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "role": role, "ids": list(ids)}
    rows = await conn.execute(ACK, given)
    return {seq for (seq,) in await rows.fetchall()}


def _listed(sessions: Iterable[Where]) -> str:
    return orjson.dumps([{"workspace_id": w, "id": s} for w, s in sessions]).decode()
