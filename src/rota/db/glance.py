"""What the top of every page tells: how much waits for the person who reads it, and whether the workspace is paused."""

import hashlib
from datetime import datetime
from typing import NamedTuple

from rota.db.pauses import GOES_ON
from rota.db.pool import Connection
from rota.model.ids import UserId, WorkspaceId

WAITING = f"""
-- Unread notifications, and questions that can be answered now; nobody needs to know of more than a hundred.
SELECT (SELECT count(*) FROM (
           SELECT FROM notifications n
            WHERE n.workspace_id = %(workspace_id)s AND n.user_id = %(user_id)s AND n.read_at IS NULL LIMIT 100) unread),
       (SELECT count(*) FROM (
           SELECT FROM approvals a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
            WHERE a.workspace_id = %(workspace_id)s AND a.status = 'pending' AND a.expires_at > now() AND r.finished_at IS NULL
            LIMIT 100) asked),
       p.reason, p.paused_at, u.name, p.until
  FROM (VALUES (1)) AS always
       LEFT JOIN (pauses p JOIN users u ON u.id = p.paused_by) ON p.workspace_id = %(workspace_id)s AND {GOES_ON}
"""  # noqa: S608 — a constant of this package


class Pause(NamedTuple):
    """Why, since when and by whom all automations are paused, and until when if it ends by itself."""

    reason: str
    paused_at: datetime
    paused_by: str
    until: datetime | None


class Counts(NamedTuple):
    """Of a hundred and more, a hundred."""

    unread: int
    approvals: int
    pause: Pause | None

    @property
    def mark(self) -> str:
        """Tells these facts from all others, in the address of a page's stream."""
        paused = f"-{hashlib.blake2b(repr(self.pause).encode(), digest_size=6).hexdigest()}" if self.pause else ""
        return f"{self.unread}-{self.approvals}{paused}"


async def waiting(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> Counts:
    row = await (await conn.execute(WAITING, {"workspace_id": workspace_id, "user_id": user_id})).fetchone()
    assert row
    unread, approvals, *pause = row
    return Counts(unread, approvals, Pause(*pause) if pause[0] else None)
