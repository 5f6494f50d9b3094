"""What webhooks are signed with, sealed."""

from datetime import timedelta
from uuid import UUID

from rota.db.pool import Connection

ADD = """
WITH older AS (
    UPDATE webhook_secrets SET expires_at = least(expires_at, now() + %(overlap)s)
     WHERE workspace_id = %(workspace_id)s AND trigger_id = %(trigger_id)s)
INSERT INTO webhook_secrets (workspace_id, trigger_id, id, sealed)
VALUES (%(workspace_id)s, %(trigger_id)s, %(id)s, %(sealed)s)
"""

VALID = """
SELECT id, sealed FROM webhook_secrets
 WHERE workspace_id = %(workspace_id)s AND trigger_id = %(trigger_id)s AND (expires_at IS NULL OR expires_at > now())
ORDER BY created_at DESC
"""


async def add(
    conn: Connection, workspace_id: UUID, trigger_id: UUID, secret_id: UUID, *, sealed: bytes, overlap: timedelta
) -> None:
    """Add a secret; the older ones stay valid for `overlap`, so that senders can change over."""
    given = {
        "workspace_id": workspace_id,
        "trigger_id": trigger_id,
        "id": secret_id,
        "sealed": sealed,
        "overlap": overlap,
    }
    await conn.execute(ADD, given)


async def valid(conn: Connection, workspace_id: UUID, trigger_id: UUID) -> list[tuple[UUID, bytes]]:
    rows = await conn.execute(VALID, {"workspace_id": workspace_id, "trigger_id": trigger_id})
    return [(secret_id, bytes(sealed)) for secret_id, sealed in await rows.fetchall()]
