"""Idempotency keys of requests that start or make something: the run, the session, the agent … that they led to."""

from collections.abc import Sequence
from uuid import UUID

from psycopg.rows import TupleRow

from rota.db import at_once
from rota.db.at_once import Step
from rota.db.pool import Connection
from rota.model.ids import WorkspaceId

Earlier = tuple[bytes, UUID]  # the hash of the request, and what it made

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(workspace_id)s::text || %(key)s::text, 0))"
FIND = "SELECT body_hash, run_id FROM start_keys WHERE workspace_id = %(workspace_id)s AND key = %(key)s"
ADD = """
INSERT INTO start_keys (workspace_id, key, body_hash, run_id) VALUES (%(workspace_id)s, %(key)s, %(body_hash)s, %(run_id)s)
"""


def turn(workspace_id: WorkspaceId, key: str) -> list[Step]:
    """Let requests with one key pass one after the other; the second then finds what the first did."""
    given = {"workspace_id": workspace_id, "key": key}
    return [(LOCK, given), (FIND, given)]


def earlier(rows: Sequence[Sequence[TupleRow]]) -> Earlier | None:
    """What these steps found."""
    [_, found] = rows
    return (bytes(found[0][0]), found[0][1]) if found else None


async def take_turn(conn: Connection, workspace_id: WorkspaceId, key: str) -> Earlier | None:
    return earlier(await at_once.run(conn, *turn(workspace_id, key)))


async def add(conn: Connection, workspace_id: WorkspaceId, key: str, body_hash: bytes, run_id: UUID) -> None:
    await conn.execute(ADD, {"workspace_id": workspace_id, "key": key, "body_hash": body_hash, "run_id": run_id})
