"""The audit log: who changed what, and who tried to. It is only ever added to."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rota.db import at_once
from rota.db.at_once import Step
from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.model.ids import UserId, WorkspaceId, as_uuid, id_at, new_id


class Table(NamedTuple):
    """Where a thing is kept, the column of its id, and how else routes name it."""

    name: str
    named: str = "false"
    id: str = "id"
    workspace: str = "workspace_id"
    more: str = "'{}'"

    @property
    def look(self) -> str:
        return LOOK.format(table=self.name, named=self.named, id=self.id, workspace=self.workspace, more=self.more)


# Of a person, and the same in every workspace.
DISABLED = "(SELECT jsonb_build_object('disabled', u.disabled_at IS NOT NULL) FROM users u WHERE u.id = t.user_id)"

PAUSE = """
coalesce((SELECT jsonb_build_object('paused_at', p.paused_at, 'pause_reason', p.reason, 'paused_until', p.until)
            FROM pauses p WHERE p.workspace_id = t.id AND p.resumed_at IS NULL), '{}')
"""

BY_SLUG = "t.slug = %(ref)s AND t.deleted_at IS NULL"

# What can be looked at before and after a change.
TABLES = {
    "workspace": Table("workspaces", "t.slug = %(ref)s", workspace="id", more=PAUSE),
    "agent": Table("agents", BY_SLUG),
    "automation": Table("automations", BY_SLUG),
    "trigger": Table("triggers"),
    "run": Table("runs"),
    "approval": Table("approvals"),
    "session": Table("sessions"),
    "grant": Table("grants"),
    "token": Table("tokens"),
    "member": Table("members", id="user_id", more=DISABLED),
    "account": Table("accounts"),
    "credential": Table("credentials", "t.name = %(ref)s"),
    "target": Table("notification_targets"),
}

LOOK = """
SELECT to_jsonb(t) || jsonb_build_object('id', t.{id}) || {more} FROM {table} t
 WHERE t.{workspace} = %(workspace_id)s AND (t.{id} = %(id)s OR ({named}))
"""

ADD = """
INSERT INTO audit (workspace_id, id, user_id, token_id, run_id, ip, action, object_kind, object_id, status, code, before, after)
VALUES (%(workspace_id)s, %(id)s, %(user_id)s, %(token_id)s, %(run_id)s, %(ip)s, %(action)s, %(object_kind)s,
        %(object_id)s, %(status)s, %(code)s, %(before)s, %(after)s)
"""

PAGE = """
SELECT a.id, a.created_at, a.user_id, u.name AS user, a.token_id, a.run_id, a.ip, a.action, a.object_kind, a.object_id,
       a.status, a.code, a.before, a.after
  FROM audit a LEFT JOIN users u ON u.id = a.user_id
 WHERE a.workspace_id = %(workspace_id)s
   AND a.id < %(cursor)s
"""

# Only what was chosen stands in the query, so that each has its index. Ids are in the order of time, except for the
# difference between the clocks of servers (`CLOCKS`).
CHOSEN = {
    "user_id": "a.user_id = %(user_id)s",
    "action": "a.action = %(action)s",
    "object_kind": "a.object_kind = %(object_kind)s",
    "object_id": "a.object_id = %(object_id)s",
    "since": "a.created_at >= %(since)s AND a.id >= %(first)s",
    "until": "a.created_at < %(until)s",
}
CLOCKS = timedelta(hours=1)

# A filter of these, and its index: PostgreSQL takes every user and every action for equally frequent, and would look for a
# rare one in the whole log. A range in the order of the index leads it there (see runs.OF_AGENT).
LEADING = {
    "user_id": ("a.user_id BETWEEN %(user_id)s AND %(user_id)s", "a.user_id DESC, a.id"),
    "action": ("a.action BETWEEN %(action)s AND %(action)s", "a.action DESC, a.id"),
}
REFUSED = {True: "a.code IS NOT NULL", False: "a.code IS NULL"}


class Entry(NamedTuple):
    workspace_id: WorkspaceId
    user_id: UserId | None  # None: whoever runs the server
    action: str
    object_kind: str
    object_id: str | None
    status: int
    code: str | None = None
    token_id: UUID | None = None
    run_id: UUID | None = None
    ip: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class Choice(NamedTuple):
    """Which rows of the log somebody wants to see."""

    user_id: UUID | None = None
    action: str | None = None
    object_kind: str | None = None
    object_id: str | None = None
    refused: bool | None = None
    since: datetime | None = None
    until: datetime | None = None


async def look(conn: Connection, workspace_id: WorkspaceId, kind: str, ref: str) -> dict[str, Any] | None:
    """A thing as it stands, whole; None for what has no table here."""
    if kind not in TABLES:
        return None
    given = {"workspace_id": workspace_id, "id": as_uuid(ref), "ref": ref}
    row = await (await conn.execute(TABLES[kind].look.encode(), given)).fetchone()
    return row[0] if row else None


async def add(conn: Connection, entry: Entry) -> None:
    await at_once.run(conn, adding(entry))


def adding(entry: Entry) -> Step:
    before, after = (None if each is None else Jsonb(each) for each in (entry.before, entry.after))
    return ADD, {**entry._asdict(), "id": new_id(), "before": before, "after": after}


async def page(
    conn: Connection, workspace_id: WorkspaceId, chosen: Choice, *, cursor: UUID | None, limit: int
) -> list[dict[str, Any]]:
    given = chosen._asdict()
    conditions = {name: CHOSEN[name] for name in CHOSEN if given[name] is not None}
    in_order = "a.id"
    if not chosen.object_id and (leading := next((name for name in LEADING if name in conditions), None)):
        conditions[leading], in_order = LEADING[leading]
    refused = [] if chosen.refused is None else [REFUSED[chosen.refused]]
    query = " AND ".join([PAGE, *conditions.values(), *refused]) + f" ORDER BY {in_order} DESC LIMIT %(limit)s"
    if chosen.since:
        given["first"] = id_at(chosen.since - CLOCKS)
    if chosen.until:
        cursor = min(or_end(cursor, LARGEST_ID), id_at(chosen.until + CLOCKS))
    async with conn.cursor(row_factory=dict_row) as rows:
        await rows.execute(
            query.encode(),
            {**given, "workspace_id": workspace_id, "cursor": or_end(cursor, LARGEST_ID), "limit": limit},
        )
        return await rows.fetchall()
