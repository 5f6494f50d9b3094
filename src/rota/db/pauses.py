"""Pauses of whole workspaces, present and past. At most one of a workspace has not been resumed.

The row of a pause is locked before triggers and automations. Whoever holds one of those never waits for it.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import UserId, WorkspaceId, new_id

# A pause whose end has passed is over, even if nobody has resumed the schedules yet.
GOES_ON = "p.resumed_at IS NULL AND (p.until IS NULL OR p.until > statement_timestamp())"

COLUMNS = "p.reason, p.paused_at, u.name AS paused_by, p.until, least(p.resumed_at, p.until) AS over_at"

FIND = f"""
SELECT {COLUMNS} FROM pauses p JOIN users u ON u.id = p.paused_by
 WHERE p.workspace_id = %(workspace_id)s AND {GOES_ON}
"""  # noqa: S608 — constants of this module, here and below

FIND_AT = f"""
-- The pause within which an instant lies.
SELECT {COLUMNS} FROM pauses p JOIN users u ON u.id = p.paused_by
 WHERE p.workspace_id = %(workspace_id)s AND p.paused_at <= %(at)s
   AND (p.resumed_at IS NULL OR p.resumed_at > %(at)s) AND (p.until IS NULL OR p.until > %(at)s)
ORDER BY p.paused_at DESC LIMIT 1
"""  # noqa: S608

IS_PAUSED = f"SELECT EXISTS (SELECT FROM pauses p WHERE p.workspace_id = %(workspace_id)s AND {GOES_ON})"  # noqa: S608

HOLD = """
-- Whoever resumes the workspace waits for this transaction, and then sees what it has saved.
SELECT FROM pauses p WHERE p.workspace_id = %(workspace_id)s AND p.resumed_at IS NULL FOR SHARE
"""

AMONG = """
SELECT p.workspace_id FROM pauses p
 WHERE p.workspace_id = ANY(%(workspaces)s) AND p.resumed_at IS NULL
   AND (p.until IS NULL OR p.until > coalesce(%(now)s::timestamptz, statement_timestamp()))
"""

# Another who pauses at the same time, or somebody who resumes, is waited for.
BEGIN = """
INSERT INTO pauses AS p (workspace_id, id, reason, until, paused_by)
VALUES (%(workspace_id)s, %(id)s, %(reason)s, %(until)s, %(user_id)s)
    ON CONFLICT (workspace_id) WHERE resumed_at IS NULL
    DO UPDATE SET reason = excluded.reason, until = excluded.until, paused_by = excluded.paused_by
 WHERE (p.reason, p.until) IS DISTINCT FROM (excluded.reason, excluded.until)
"""

END = """
UPDATE pauses p
   SET resumed_at = least(p.until, clock_timestamp()),
       resumed_by = CASE WHEN p.until <= clock_timestamp() THEN NULL ELSE %(user_id)s::uuid END
 WHERE p.workspace_id = %(workspace_id)s AND p.resumed_at IS NULL
   AND (NOT %(if_over)s OR p.until <= clock_timestamp())
RETURNING p.resumed_at
"""

END_NEXT = """
-- One at a time: its automations are locked next. One that another replica ends, or somebody changes, is left to them.
UPDATE pauses p SET resumed_at = p.until
  FROM (SELECT workspace_id, id FROM pauses
         WHERE resumed_at IS NULL AND until <= coalesce(%(now)s::timestamptz, statement_timestamp())
      ORDER BY until LIMIT 1
           FOR NO KEY UPDATE SKIP LOCKED) over
 WHERE p.workspace_id = over.workspace_id AND p.id = over.id
RETURNING p.workspace_id, p.resumed_at
"""


async def find(conn: Connection, workspace_id: WorkspaceId) -> dict[str, Any] | None:
    """The pause that goes on, if there is one."""
    return next(iter(await named_rows(conn, FIND, {"workspace_id": workspace_id})), None)


async def find_at(conn: Connection, workspace_id: WorkspaceId, at: datetime) -> dict[str, Any] | None:
    return next(iter(await named_rows(conn, FIND_AT, {"workspace_id": workspace_id, "at": at})), None)


async def is_paused(conn: Connection, workspace_id: WorkspaceId) -> bool:
    """For those who hold an automation: nobody resumes its schedules until they commit."""
    row = await (await conn.execute(IS_PAUSED, {"workspace_id": workspace_id})).fetchone()
    return bool(row and row[0])


async def hold(conn: Connection, workspace_id: WorkspaceId) -> None:
    """For those who add an automation, which nobody else can see and lock yet. Call it before anything is locked."""
    await conn.execute(HOLD, {"workspace_id": workspace_id})


async def among(conn: Connection, workspaces: Iterable[UUID], now: datetime | None) -> set[UUID]:
    """Those of the workspaces that are paused."""
    rows = await conn.execute(AMONG, {"workspaces": list(workspaces), "now": now})
    return {workspace_id for (workspace_id,) in await rows.fetchall()}


async def begin(
    conn: Connection, workspace_id: WorkspaceId, user_id: UserId, *, reason: str, until: datetime | None
) -> None:
    """Pause, or give the pause that goes on another reason and end."""
    given = {"workspace_id": workspace_id, "id": new_id(), "user_id": user_id, "reason": reason, "until": until}
    await conn.execute(BEGIN, given)


async def end(
    conn: Connection, workspace_id: WorkspaceId, user_id: UserId | None, *, if_over: bool = False
) -> datetime | None:
    """End the pause, or only one whose end has passed. Returns since when the workspace is resumed; None if it was not
    paused."""
    given = {"workspace_id": workspace_id, "user_id": user_id, "if_over": if_over}
    row = await (await conn.execute(END, given)).fetchone()
    return row[0] if row else None


async def end_next(conn: Connection, now: datetime | None) -> tuple[WorkspaceId, datetime] | None:
    """End a pause of any workspace whose end has passed, if there is one. Returns the workspace, and since when it is
    resumed."""
    row = await (await conn.execute(END_NEXT, {"now": now})).fetchone()
    return (WorkspaceId(row[0]), row[1]) if row else None
