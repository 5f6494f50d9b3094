"""Accounts: who is charged, in which currency, and what a month may cost."""

from datetime import date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import AccountId, GrantId, WorkspaceId

SHOWN = """
SELECT id, name, currency, budget, created_at, updated_at FROM accounts WHERE workspace_id = %(workspace_id)s
"""

FIND = f"{SHOWN} AND id = %(id)s"

PAGE = f"""
{SHOWN} AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s
"""

CURRENCY = """
SELECT a.currency FROM grants g JOIN accounts a ON a.workspace_id = g.workspace_id AND a.id = g.account_id
 WHERE g.workspace_id = %(workspace_id)s AND g.id = %(grant_id)s
"""

NAMED = "SELECT id FROM accounts WHERE workspace_id = %(workspace_id)s AND name = %(name)s"

INSERT = """
INSERT INTO accounts (workspace_id, id, name, currency, budget)
VALUES (%(workspace_id)s, %(id)s, %(name)s, %(currency)s, %(budget)s)
"""

UPDATE = """
UPDATE accounts SET name = %(name)s, currency = %(currency)s, budget = %(budget)s, updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

MONTH = """
SELECT month::date, month AT TIME ZONE %(zone)s, (month + interval '1 month') AT TIME ZONE %(zone)s
  FROM date_trunc('month', now() AT TIME ZONE %(zone)s) AS month
"""


class Month(NamedTuple):
    """The present month in a zone."""

    first_day: date
    start: datetime
    end: datetime


async def currency(conn: Connection, workspace_id: WorkspaceId, grant_id: GrantId) -> str:
    """Of the account that a grant charges."""
    rows = await named_rows(conn, CURRENCY, {"workspace_id": workspace_id, "grant_id": grant_id})
    return str(rows[0]["currency"]) if rows else ""


async def find(
    conn: Connection, workspace_id: WorkspaceId, account_id: AccountId, *, lock: bool = False
) -> dict[str, Any] | None:
    query = FIND + (" FOR NO KEY UPDATE" if lock else "")
    found = await named_rows(conn, query, {"workspace_id": workspace_id, "id": account_id})
    return found[0] if found else None


async def page(conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int) -> list[dict[str, Any]]:
    return await named_rows(
        conn, PAGE, {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit}
    )


async def named(conn: Connection, workspace_id: WorkspaceId, name: str) -> AccountId | None:
    row = await (await conn.execute(NAMED, {"workspace_id": workspace_id, "name": name})).fetchone()
    return row[0] if row else None


def _given(account: dict[str, Any]) -> dict[str, Any]:
    return {**account, "budget": None if account["budget"] is None else Jsonb(account["budget"])}


async def insert(conn: Connection, account: dict[str, Any]) -> None:
    await conn.execute(INSERT, _given(account))


async def update(conn: Connection, account: dict[str, Any]) -> None:
    await conn.execute(UPDATE, _given(account))


async def month(conn: Connection, zone: str) -> Month:
    row = await (await conn.execute(MONTH, {"zone": zone})).fetchone()
    assert row
    return Month(*row)
