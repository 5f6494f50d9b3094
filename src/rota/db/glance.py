"""What the top of every page tells: how much waits for the person who reads it."""

from typing import NamedTuple

from rota.db.pool import Connection
from rota.model.caller import Caller, Level

UNREAD = """
SELECT count(*) FROM (
    SELECT FROM notifications n
     WHERE n.workspace_id = %(workspace_id)s AND n.user_id = %(user_id)s AND n.read_at IS NULL LIMIT 100) unread
"""

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
WAITING = {level: f"SELECT ({UNREAD}), ({asked})" for level, asked in ANSWERABLE.items()}


class Counts(NamedTuple):
    """Of a hundred and more, a hundred."""

    unread: int
    approvals: int


async def waiting(conn: Connection, caller: Caller) -> Counts:
    """Unread notifications, and the questions that the caller may answer now."""
    given = {"workspace_id": caller.workspace_id, "user_id": caller.user_id}
    row = await (await conn.execute(WAITING[caller.level].encode(), given)).fetchone()
    assert row
    return Counts(*row)
