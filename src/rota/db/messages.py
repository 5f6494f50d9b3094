"""Messages: events with a delivery for each recipient, written together under the session's row lock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import class_row

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

PAGE = """
-- The page is chosen among deliveries, whose indexes are in the order of the session, before events are looked up.
SELECT e.seq AS id, e.run_id, e.attempt, e.data, e.created_at, d.deliveries
  FROM (SELECT seq, json_agg(json_build_object('role', role, 'acked_at', acked_at) ORDER BY role) AS deliveries
          FROM deliveries
         WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND seq > %(after)s {chosen}
      GROUP BY seq ORDER BY seq LIMIT %(limit)s) d
       CROSS JOIN LATERAL (
           SELECT * FROM events e
            WHERE e.workspace_id = %(workspace_id)s AND e.session_id = %(session_id)s AND e.seq = d.seq LIMIT 1) e
ORDER BY e.seq
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


async def page(
    conn: Connection,
    workspace_id: WorkspaceId,
    session_id: SessionId,
    *,
    after: int,
    limit: int,
    role: str | None = None,
    unacked: bool = False,
) -> list[Message]:
    """Messages after a number, oldest first: of everybody, or those that one role got or has yet to acknowledge."""
    chosen = (" AND role = %(role)s" if role is not None else "") + (" AND acked_at IS NULL" if unacked else "")
    given = {"workspace_id": workspace_id, "session_id": session_id, "after": after, "limit": limit, "role": role}
    async with conn.cursor(row_factory=class_row(Message)) as cursor:
        await cursor.execute(PAGE.replace("{chosen}", chosen).encode(), given)
        return await cursor.fetchall()


async def ack(
    conn: Connection, workspace_id: WorkspaceId, session_id: SessionId, role: str, ids: Sequence[int]
) -> set[int]:
    """Acknowledge; which of these messages the role was ever given."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "role": role, "ids": list(ids)}
    rows = await conn.execute(ACK, given)
    return {seq for (seq,) in await rows.fetchall()}


def _listed(sessions: Iterable[Where]) -> str:
    return orjson.dumps([{"workspace_id": w, "id": s} for w, s in sessions]).decode()
