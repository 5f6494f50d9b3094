"""Where people want to be told outside, and what waits to be sent there. What is sealed is read by the sender alone."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import UserId, WorkspaceId

SHOWN = """
SELECT t.id, t.name, t.scheme, t.created_at, t.sent_at, t.failed_at, t.error, t.tries, t.given_up,
       (SELECT count(*) FROM notification_outbox o WHERE o.workspace_id = t.workspace_id AND o.target_id = t.id) AS waiting
  FROM notification_targets t
 WHERE t.workspace_id = %(workspace_id)s AND t.user_id = %(user_id)s
"""

LIST = f"{SHOWN} ORDER BY t.id DESC"
FIND = f"{SHOWN} AND t.id = %(id)s"

INSERT = """
INSERT INTO notification_targets (workspace_id, id, user_id, name, scheme, sealed)
VALUES (%(workspace_id)s, %(id)s, %(user_id)s, %(name)s, %(scheme)s, %(sealed)s)
"""

DELETE = """
DELETE FROM notification_targets WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND id = %(id)s
"""

DELETE_OF_USER = """
DELETE FROM notification_targets WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s
"""

TEST = """
-- At once, unless a message was sent or tried just now; one that waits already is the same.
WITH soon AS (
    UPDATE notification_targets SET not_before = least(not_before, coalesce(greatest(sent_at, failed_at), now()) + interval '5 s')
     WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND tries = 0)
INSERT INTO notification_outbox (workspace_id, target_id, kind, subject_id, about)
VALUES (%(workspace_id)s, %(id)s, 'test', %(id)s, '') ON CONFLICT DO NOTHING
"""

CLAIM = """
-- Each target is one sender's until `not_before`, which is also what it proves by that it still is. What waits for somebody
-- who is switched off rests with them. Proven is a target that took the last message.
WITH due AS MATERIALIZED (
    SELECT t.workspace_id, t.id FROM notification_targets t JOIN users u ON u.id = t.user_id AND u.disabled_at IS NULL
     WHERE t.not_before <= now() AND (t.sent_at IS NOT NULL AND t.failed_at IS NULL) = %(proven)s AND EXISTS (
               SELECT FROM notification_outbox o WHERE o.workspace_id = t.workspace_id AND o.target_id = t.id)
  ORDER BY t.not_before LIMIT %(limit)s FOR NO KEY UPDATE OF t SKIP LOCKED),
claimed AS (
    UPDATE notification_targets t SET not_before = clock_timestamp() + %(lease)s, tries = t.tries + 1
      FROM due WHERE t.workspace_id = due.workspace_id AND t.id = due.id
 RETURNING t.workspace_id, t.id, t.user_id, t.sealed, t.tries, t.not_before)
SELECT c.workspace_id, c.id, c.sealed, c.tries, c.not_before, w.slug AS workspace_slug,
       (SELECT json_agg(o ORDER BY o.created_at) FROM notification_outbox o
         WHERE o.workspace_id = c.workspace_id AND o.target_id = c.id) AS waiting
  FROM claimed c JOIN workspaces w ON w.id = c.workspace_id
"""

# What was sent goes; what happened again meanwhile stays with what is left of its count.
DONE = """
sent AS (
    DELETE FROM notification_outbox o USING mine, json_to_recordset(%(waiting)s::json) AS g(kind text, subject_id uuid, count integer)
     WHERE o.workspace_id = mine.workspace_id AND o.target_id = mine.id AND o.kind = g.kind
       AND o.subject_id = g.subject_id AND o.count <= g.count),
again AS (
    UPDATE notification_outbox o SET count = o.count - g.count
      FROM mine, json_to_recordset(%(waiting)s::json) AS g(kind text, subject_id uuid, count integer)
     WHERE o.workspace_id = mine.workspace_id AND o.target_id = mine.id AND o.kind = g.kind
       AND o.subject_id = g.subject_id AND o.count > g.count)
SELECT 1 FROM mine
"""
_MINE = "workspace_id = %(workspace_id)s AND id = %(id)s AND not_before = %(not_before)s RETURNING workspace_id, id"

SENT = f"""
WITH mine AS (
    UPDATE notification_targets SET sent_at = now(), not_before = now() + %(pause)s, tries = 0, error = NULL, failed_at = NULL
     WHERE {_MINE}),
{DONE}"""

GIVEN_UP = f"""
WITH mine AS (
    UPDATE notification_targets SET failed_at = now(), not_before = now() + %(pause)s, tries = 0, error = %(error)s,
           given_up = given_up + 1
     WHERE {_MINE}),
{DONE}"""

FAILED = f"""
UPDATE notification_targets SET failed_at = now(), not_before = now() + %(pause)s, error = %(error)s WHERE {_MINE}
"""


class Claim(NamedTuple):
    """A target that this process sends to, and what waits for it."""

    workspace_id: WorkspaceId
    id: UUID
    sealed: bytes
    tries: int
    not_before: datetime
    workspace_slug: str
    waiting: list[dict[str, Any]]


async def all_of(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> list[dict[str, Any]]:
    return await named_rows(conn, LIST, {"workspace_id": workspace_id, "user_id": user_id})


async def find(conn: Connection, workspace_id: WorkspaceId, user_id: UserId, target_id: UUID) -> dict[str, Any] | None:
    found = await named_rows(conn, FIND, {"workspace_id": workspace_id, "user_id": user_id, "id": target_id})
    return found[0] if found else None


async def insert(conn: Connection, target: dict[str, Any]) -> None:
    await conn.execute(INSERT, target)


async def delete(conn: Connection, workspace_id: WorkspaceId, user_id: UserId, target_id: UUID) -> bool:
    given = {"workspace_id": workspace_id, "user_id": user_id, "id": target_id}
    return (await conn.execute(DELETE, given)).rowcount == 1


async def delete_of_user(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> None:
    """With what waits for them."""
    await conn.execute(DELETE_OF_USER, {"workspace_id": workspace_id, "user_id": user_id})


async def test(conn: Connection, workspace_id: WorkspaceId, target_id: UUID) -> None:
    await conn.execute(TEST, {"workspace_id": workspace_id, "id": target_id})


async def claim(conn: Connection, *, proven: bool, limit: int, lease: timedelta) -> list[Claim]:
    found = await named_rows(conn, CLAIM, {"proven": proven, "limit": limit, "lease": lease})
    return [Claim(**{**each, "sealed": bytes(each["sealed"])}) for each in found]


async def sent(conn: Connection, claim: Claim, *, pause: timedelta) -> None:
    await conn.execute(SENT.encode(), {**_given(claim), "pause": pause})


async def failed(conn: Connection, claim: Claim, error: str, *, pause: timedelta) -> None:
    await conn.execute(FAILED.encode(), {**_given(claim), "pause": pause, "error": error})


async def given_up(conn: Connection, claim: Claim, error: str, *, pause: timedelta) -> None:
    await conn.execute(GIVEN_UP.encode(), {**_given(claim), "pause": pause, "error": error})


def _given(claim: Claim) -> dict[str, Any]:
    waiting: Sequence[dict[str, Any]] = [
        {name: each[name] for name in ("kind", "subject_id", "count")} for each in claim.waiting
    ]
    return {
        "workspace_id": claim.workspace_id, "id": claim.id, "not_before": claim.not_before,
        "waiting": orjson.dumps(waiting).decode(),
    }  # fmt: skip
