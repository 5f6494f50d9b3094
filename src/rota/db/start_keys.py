"""Idempotency keys of requests that start or make something: the run, the session, the agent … that they led to."""

from uuid import UUID

from rota.db.pool import Connection
from rota.model.ids import WorkspaceId

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(workspace_id)s::text || %(key)s, 0))"
FIND = "SELECT body_hash, run_id FROM start_keys WHERE workspace_id = %(workspace_id)s AND key = %(key)s"
ADD = """
INSERT INTO start_keys (workspace_id, key, body_hash, run_id) VALUES (%(workspace_id)s, %(key)s, %(body_hash)s, %(run_id)s)
"""


async def lock(conn: Connection, workspace_id: WorkspaceId, key: str) -> None:
    """Let requests with one key pass one after the other; the second then finds what the first did."""
    await conn.execute(LOCK, {"workspace_id": workspace_id, "key": key})


async def find(conn: Connection, workspace_id: WorkspaceId, key: str) -> tuple[bytes, UUID] | None:
    row = await (await conn.execute(FIND, {"workspace_id": workspace_id, "key": key})).fetchone()
    return (bytes(row[0]), row[1]) if row else None


async def add(conn: Connection, workspace_id: WorkspaceId, key: str, body_hash: bytes, run_id: UUID) -> None:
    await conn.execute(ADD, {"workspace_id": workspace_id, "key": key, "body_hash": body_hash, "run_id": run_id})
