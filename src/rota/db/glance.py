"""What the top of every page tells: how much waits for the person who reads it, and whether the workspace is paused."""

import hashlib
from datetime import datetime
from typing import NamedTuple

from rota.db.pauses import GOES_ON
from rota.db.pool import Connection
from rota.model.caller import Caller, Level

UNREAD = """
SELECT count(*) FROM (
    SELECT FROM notifications n
     WHERE n.workspace_id = %(workspace_id)s AND n.user_id = %(user_id)s AND n.read_at IS NULL LIMIT 100) unread
"""


class Pause(NamedTuple):
    """Why, since when and by whom all automations are paused, and until when if it ends by itself."""

    reason: str
    paused_at: datetime
    paused_by: str
    until: datetime | None


# Questions that can be answered now: by an admin all, by a member those on their own automations and sessions.
ASKED = """
SELECT count(*) FROM (
    SELECT FROM approvals a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id {of}
     WHERE a.workspace_id = %(workspace_id)s AND a.status = 'pending' AND a.expires_at > now() AND r.finished_at IS NULL
       {whose} LIMIT 100) asked
"""
OWNERS = """
            JOIN sessions s ON s.workspace_id = a.workspace_id AND s.id = a.session_id
            LEFT JOIN automations m ON m.workspace_id = r.workspace_id AND m.id = r.automation_id
"""
ANSWERABLE = {
    Level.ADMIN: ASKED.format(of="", whose=""),
    Level.MEMBER: ASKED.format(of=OWNERS, whose="AND %(user_id)s IN (s.owner_id, m.owner_id)"),
    Level.VIEWER: "SELECT 0",
}
# Nobody needs to know of more than a hundred.
WAITING = {
    level: f"""
SELECT ({UNREAD}), ({asked}), p.reason, p.paused_at, u.name, p.until
  FROM (VALUES (1)) AS always
       LEFT JOIN (pauses p JOIN users u ON u.id = p.paused_by) ON p.workspace_id = %(workspace_id)s AND {GOES_ON}
"""  # noqa: S608 — constants of this package
    for level, asked in ANSWERABLE.items()
}


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


async def waiting(conn: Connection, caller: Caller) -> Counts:
    """Unread notifications, and the questions that the caller may answer now."""
    given = {"workspace_id": caller.workspace_id, "user_id": caller.user_id}
    row = await (await conn.execute(WAITING[caller.level].encode(), given)).fetchone()
    assert row
    unread, approvals, *pause = row
    return Counts(unread, approvals, Pause(*pause) if pause[0] else None)
