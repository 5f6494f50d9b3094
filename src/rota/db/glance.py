"""What the top of every page tells: how much waits for the person who reads it."""

from typing import NamedTuple

from rota.db.pool import Connection
from rota.model.ids import UserId, WorkspaceId

WAITING = """
-- Unread notifications, and questions that can be answered now; nobody needs to know of more than a hundred.
SELECT (SELECT count(*) FROM (
           SELECT FROM notifications n
            WHERE n.workspace_id = %(workspace_id)s AND n.user_id = %(user_id)s AND n.read_at IS NULL LIMIT 100) unread),
       (SELECT count(*) FROM (
           SELECT FROM approvals a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
            WHERE a.workspace_id = %(workspace_id)s AND a.status = 'pending' AND a.expires_at > now() AND r.finished_at IS NULL
            LIMIT 100) asked)
"""


class Counts(NamedTuple):
    """Of a hundred and more, a hundred."""

    unread: int
    approvals: int


async def waiting(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> Counts:
    row = await (await conn.execute(WAITING, {"workspace_id": workspace_id, "user_id": user_id})).fetchone()
    assert row
    return Counts(*row)
