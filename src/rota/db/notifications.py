"""Notifications: one for each person concerned, written with what they tell of; and what each wants to hear of."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import ApprovalId, AutomationId, GrantId, UserId, WorkspaceId

# Who is told of what (`told`) goes to the bell and the targets of members who did not choose otherwise. Unread, or unsent, ones
# about the same thing are one, which counts. In the order of their key, so that two batches never wait for each other.
RING = """
people AS MATERIALIZED (
    SELECT DISTINCT ON (t.workspace_id, t.user_id, t.kind, t.subject_id)
           t.*, count(*) OVER (PARTITION BY t.workspace_id, t.user_id, t.kind, t.subject_id) AS times,
           coalesce(c.bell, true) AS bell, coalesce(c.outward, true) AS outward
      FROM told t
           JOIN members m ON m.workspace_id = t.workspace_id AND m.user_id = t.user_id AND m.removed_at IS NULL
           JOIN users u ON u.id = t.user_id AND u.disabled_at IS NULL
           LEFT JOIN notification_choices c
                  ON c.workspace_id = t.workspace_id AND c.user_id = t.user_id AND c.kind = t.kind
  ORDER BY t.workspace_id, t.user_id, t.kind, t.subject_id, t.id DESC),
rung AS (
INSERT INTO notifications AS n (workspace_id, user_id, id, latest_id, kind, subject_id, automation_id, run_id, session_id,
                                approval_id, grant_id, account_id, about, detail, count)
SELECT workspace_id, user_id, id, id, kind, subject_id, automation_id, run_id, session_id, approval_id, grant_id,
       account_id, about, detail, times
  FROM people WHERE bell ORDER BY workspace_id, user_id, kind, subject_id
    ON CONFLICT (workspace_id, user_id, kind, subject_id) WHERE read_at IS NULL
    DO UPDATE SET latest_id = EXCLUDED.latest_id, run_id = EXCLUDED.run_id, session_id = EXCLUDED.session_id,
                  about = EXCLUDED.about, detail = EXCLUDED.detail, count = n.count + EXCLUDED.count, updated_at = now())
INSERT INTO notification_outbox AS o (workspace_id, target_id, kind, subject_id, automation_id, run_id, session_id, approval_id,
                                      grant_id, account_id, about, detail, count)
SELECT p.workspace_id, t.id, p.kind, p.subject_id, p.automation_id, p.run_id, p.session_id, p.approval_id, p.grant_id,
       p.account_id, p.about, p.detail, p.times
  FROM people p JOIN notification_targets t ON t.workspace_id = p.workspace_id AND t.user_id = p.user_id
 WHERE p.outward ORDER BY p.workspace_id, t.id, p.kind, p.subject_id
    ON CONFLICT (workspace_id, target_id, kind, subject_id)
    DO UPDATE SET run_id = EXCLUDED.run_id, session_id = EXCLUDED.session_id, about = EXCLUDED.about, detail = EXCLUDED.detail,
                  count = o.count + EXCLUDED.count
"""

# Whose it is hears of it; where they have left or are switched off, every admin: somebody must.
HEARS = """
told AS (
    SELECT w.*, h.user_id FROM whose w CROSS JOIN LATERAL (
        SELECT m.user_id FROM members m JOIN users u ON u.id = m.user_id AND u.disabled_at IS NULL
         WHERE m.workspace_id = w.workspace_id AND m.user_id = w.owner_id AND m.removed_at IS NULL
     UNION ALL
        SELECT m.user_id FROM members m
         WHERE m.workspace_id = w.workspace_id AND m.level = 'admin' AND NOT EXISTS (
                   SELECT FROM members o JOIN users u ON u.id = o.user_id AND u.disabled_at IS NULL
                    WHERE o.workspace_id = w.workspace_id AND o.user_id = w.owner_id AND o.removed_at IS NULL)) h),
"""

FAILED = f"""
WITH whose AS (
    SELECT g.workspace_id, coalesce(a.owner_id, s.owner_id) AS owner_id, 'run_failed' AS kind,
           coalesce(g.automation_id, g.session_id) AS subject_id, g.id, g.automation_id, g.run_id, g.session_id,
           NULL::uuid AS approval_id, NULL::uuid AS grant_id, NULL::uuid AS account_id,
           coalesce(a.name, s.title, w.name, 'A session') AS about, g.detail
      FROM json_to_recordset(%(given)s::json)
           AS g(workspace_id uuid, id uuid, automation_id uuid, run_id uuid, session_id uuid, detail text)
           LEFT JOIN automations a ON a.workspace_id = g.workspace_id AND a.id = g.automation_id
           LEFT JOIN sessions s ON s.workspace_id = g.workspace_id AND s.id = g.session_id
           LEFT JOIN agents w ON w.workspace_id = s.workspace_id AND w.id = s.agent_id),
{HEARS}{RING}"""

PAUSED = f"""
WITH whose AS (
    SELECT a.workspace_id, a.owner_id, 'paused' AS kind, a.id AS subject_id, g.id, a.id AS automation_id,
           NULL::uuid AS run_id, NULL::uuid AS session_id, NULL::uuid AS approval_id, NULL::uuid AS grant_id,
           NULL::uuid AS account_id, a.name AS about, a.paused_reason AS detail
      FROM json_to_recordset(%(given)s::json) AS g(workspace_id uuid, id uuid, automation_id uuid)
           JOIN automations a ON a.workspace_id = g.workspace_id AND a.id = g.automation_id),
{HEARS}{RING}"""

ASKED = f"""
-- The owners who may answer; where there is none, every admin.
WITH asked AS (
    SELECT p.workspace_id, p.id, p.run_id, p.session_id, p.question, r.automation_id, s.owner_id, a.owner_id AS automation_owner_id,
           coalesce(a.name, s.title, w.name) AS about
      FROM approvals p
           JOIN runs r ON r.workspace_id = p.workspace_id AND r.id = p.run_id
           JOIN sessions s ON s.workspace_id = p.workspace_id AND s.id = p.session_id
           JOIN agents w ON w.workspace_id = p.workspace_id AND w.id = r.agent_id
           LEFT JOIN automations a ON a.workspace_id = p.workspace_id AND a.id = r.automation_id
     WHERE p.workspace_id = %(workspace_id)s AND p.id = %(approval_id)s AND p.status = 'pending'),
owners AS (
    SELECT m.user_id FROM asked JOIN members m ON m.workspace_id = asked.workspace_id AND m.level IN ('member', 'admin') AND m.removed_at IS NULL
           AND m.user_id IN (asked.owner_id, asked.automation_owner_id)
           JOIN users u ON u.id = m.user_id AND u.disabled_at IS NULL),
told AS (
    SELECT q.workspace_id, m.user_id, 'needs_approval' AS kind, q.id AS subject_id, %(id)s::uuid AS id, q.automation_id, q.run_id,
           q.session_id, q.id AS approval_id, NULL::uuid AS grant_id, NULL::uuid AS account_id, q.about,
           CASE WHEN length(q.question) > 200 THEN left(q.question, 199) || '…' ELSE q.question END AS detail
      FROM asked q JOIN members m ON m.workspace_id = q.workspace_id
     WHERE m.user_id IN (SELECT user_id FROM owners) OR (m.level = 'admin' AND NOT EXISTS (SELECT FROM owners))),
{RING}"""

BUDGET_LOW = f"""
-- The admins, and the owner of the automation whose budget it is.
WITH low AS (
    SELECT g.workspace_id, g.id, g.holder_id, g.detail, a.id AS automation_id, a.owner_id, c.id AS account_id,
           coalesce(a.name, c.name) AS about
      FROM json_to_recordset(%(given)s::json) AS g(workspace_id uuid, id uuid, holder_id uuid, detail text)
           LEFT JOIN automations a ON a.workspace_id = g.workspace_id AND a.id = g.holder_id
           LEFT JOIN accounts c ON c.workspace_id = g.workspace_id AND c.id = g.holder_id),
told AS (
    SELECT l.workspace_id, m.user_id, 'budget_low' AS kind, l.holder_id AS subject_id, l.id, l.automation_id, NULL::uuid AS run_id,
           NULL::uuid AS session_id, NULL::uuid AS approval_id, NULL::uuid AS grant_id, l.account_id, l.about, l.detail
      FROM low l JOIN members m ON m.workspace_id = l.workspace_id AND (m.level = 'admin' OR m.user_id = l.owner_id)),
{RING}"""

EXPIRING = """
-- Each grant once, and only those that automations run on: others are short, or have been replaced.
WITH due AS MATERIALIZED (
    SELECT g.workspace_id, g.id FROM grants g
           JOIN automations a ON a.workspace_id = g.workspace_id AND a.id = g.automation_id AND a.grant_id = g.id
     WHERE g.automation_id IS NOT NULL AND g.revoked_at IS NULL AND g.expiry_told_at IS NULL AND a.deleted_at IS NULL
       AND g.expires_at > now() AND g.expires_at <= now() + %(ahead)s
     LIMIT %(limit)s FOR NO KEY UPDATE OF g SKIP LOCKED)
   UPDATE grants g SET expiry_told_at = now() FROM due
    WHERE g.workspace_id = due.workspace_id AND g.id = due.id AND g.expiry_told_at IS NULL
RETURNING g.workspace_id, g.id
"""

TELL_OF_EXPIRING = f"""
WITH told AS (
    SELECT g.workspace_id, g.user_id, 'grant_expiring' AS kind, g.id AS subject_id, new.id, a.id AS automation_id,
           NULL::uuid AS run_id, NULL::uuid AS session_id, NULL::uuid AS approval_id, g.id AS grant_id,
           NULL::uuid AS account_id, a.name AS about,
           'It ends on ' || to_char(g.expires_at AT TIME ZONE 'UTC', 'FMDD FMMonth YYYY, HH24:MI') || ' UTC.' AS detail
      FROM json_to_recordset(%(given)s::json) AS new(workspace_id uuid, id uuid, grant_id uuid)
           JOIN grants g ON g.workspace_id = new.workspace_id AND g.id = new.grant_id
           JOIN automations a ON a.workspace_id = g.workspace_id AND a.id = g.automation_id),
{RING}"""

COLUMNS = """
id, latest_id, kind, automation_id, run_id, session_id, approval_id, grant_id, account_id, about, detail, count, created_at,
updated_at, read_at
"""

PAGE = f"""
SELECT {COLUMNS} FROM notifications
 WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s
   AND latest_id < %(before)s
"""

READ_OR_NOT = {None: "", True: " AND read_at IS NULL", False: " AND read_at IS NOT NULL"}

FIND = f"""
SELECT {COLUMNS} FROM notifications WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND id = %(id)s
"""

UNREAD = """
SELECT count(*) FROM notifications WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND read_at IS NULL
"""

READ = """
UPDATE notifications SET read_at = now()
 WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND id = %(id)s AND read_at IS NULL
"""

READ_ALL = """
WITH unread AS MATERIALIZED (
    SELECT id FROM notifications WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s AND read_at IS NULL
  ORDER BY kind, subject_id FOR NO KEY UPDATE)
UPDATE notifications n SET read_at = now() FROM unread
 WHERE n.workspace_id = %(workspace_id)s AND n.user_id = %(user_id)s AND n.id = unread.id AND n.read_at IS NULL
"""

SETTLE = """
-- Nobody can answer any more, or somebody has: whoever was asked need not look.
WITH unsent AS (
    DELETE FROM notification_outbox
     WHERE workspace_id = %(workspace_id)s AND subject_id = ANY(%(approval_ids)s) AND kind = 'needs_approval')
UPDATE notifications SET read_at = now()
 WHERE workspace_id = %(workspace_id)s AND subject_id = ANY(%(approval_ids)s) AND kind = 'needs_approval' AND read_at IS NULL
"""

CHOICES = """
SELECT kind, bell, outward FROM notification_choices WHERE workspace_id = %(workspace_id)s AND user_id = %(user_id)s
"""

CHOOSE = """
INSERT INTO notification_choices (workspace_id, user_id, kind, bell, outward)
SELECT %(workspace_id)s, %(user_id)s, kind, bell, outward
  FROM json_to_recordset(%(given)s::json) AS g(kind text, bell boolean, outward boolean) ORDER BY kind
    ON CONFLICT (workspace_id, user_id, kind) DO UPDATE SET bell = EXCLUDED.bell, outward = EXCLUDED.outward
"""


def _json(rows: Sequence[Mapping[str, Any]]) -> str:
    return orjson.dumps(rows).decode()


async def tell_of_failed(conn: Connection, given: Sequence[Mapping[str, Any]]) -> None:
    """`given`: workspace_id, id, automation_id, run_id, session_id, detail."""
    await conn.execute(FAILED.encode(), {"given": _json(given)})


async def tell_of_paused(conn: Connection, given: Sequence[tuple[WorkspaceId, UUID, AutomationId]]) -> None:
    rows = [dict(zip(("workspace_id", "id", "automation_id"), each, strict=True)) for each in given]
    await conn.execute(PAUSED.encode(), {"given": _json(rows)})


async def tell_of_approval(conn: Connection, workspace_id: WorkspaceId, approval_id: ApprovalId, new: UUID) -> None:
    await conn.execute(ASKED.encode(), {"workspace_id": workspace_id, "approval_id": approval_id, "id": new})


async def tell_of_budgets(conn: Connection, given: Sequence[Mapping[str, Any]]) -> None:
    """`given`: workspace_id, id, holder_id (an automation or an account), detail."""
    await conn.execute(BUDGET_LOW.encode(), {"given": _json(given)})


async def expiring(conn: Connection, *, ahead: timedelta, limit: int) -> list[tuple[WorkspaceId, GrantId]]:
    """Grants that end soon and that nobody was told of; from now on they count as told."""
    rows = await conn.execute(EXPIRING, {"ahead": ahead, "limit": limit})
    return [(workspace_id, grant_id) for workspace_id, grant_id in await rows.fetchall()]


async def tell_of_expiring(conn: Connection, given: Sequence[tuple[WorkspaceId, UUID, GrantId]]) -> None:
    rows = [dict(zip(("workspace_id", "id", "grant_id"), each, strict=True)) for each in given]
    await conn.execute(TELL_OF_EXPIRING.encode(), {"given": _json(rows)})


async def page(
    conn: Connection,
    workspace_id: WorkspaceId,
    user_id: UserId,
    *,
    before: UUID | None,
    limit: int,
    unread: bool | None = None,
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "user_id": user_id, "before": or_end(before, LARGEST_ID), "limit": limit}
    return await named_rows(conn, f"{PAGE}{READ_OR_NOT[unread]} ORDER BY latest_id DESC LIMIT %(limit)s", given)


async def find(conn: Connection, workspace_id: WorkspaceId, user_id: UserId, told_id: UUID) -> dict[str, Any] | None:
    found = await named_rows(conn, FIND, {"workspace_id": workspace_id, "user_id": user_id, "id": told_id})
    return found[0] if found else None


async def unread(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> int:
    row = await (await conn.execute(UNREAD, {"workspace_id": workspace_id, "user_id": user_id})).fetchone()
    assert row
    return int(row[0])


async def read(conn: Connection, workspace_id: WorkspaceId, user_id: UserId, told_id: UUID) -> None:
    await conn.execute(READ, {"workspace_id": workspace_id, "user_id": user_id, "id": told_id})


async def read_all(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> None:
    await conn.execute(READ_ALL, {"workspace_id": workspace_id, "user_id": user_id})


async def settle(conn: Connection, workspace_id: WorkspaceId, approval_ids: Sequence[ApprovalId]) -> None:
    await conn.execute(SETTLE, {"workspace_id": workspace_id, "approval_ids": list(approval_ids)})


async def choices(conn: Connection, workspace_id: WorkspaceId, user_id: UserId) -> list[dict[str, Any]]:
    return await named_rows(conn, CHOICES, {"workspace_id": workspace_id, "user_id": user_id})


async def choose(
    conn: Connection, workspace_id: WorkspaceId, user_id: UserId, given: Sequence[Mapping[str, Any]]
) -> None:
    await conn.execute(CHOOSE, {"workspace_id": workspace_id, "user_id": user_id, "given": _json(given)})
