"""What was spent, summed up by quarters of an hour: written by `watch` once no run of a span lives, never changed."""

from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import args_row

from rota.db.pool import Connection
from rota.model.ids import WorkspaceId, id_at

STANDINGS = """
-- How far each workspace is summed up, or where its ledger begins; and its oldest run that may still spend.
SELECT w.id, t.until, now(),
       CASE WHEN t.until IS NULL THEN (
           SELECT u.run_id FROM usage u WHERE u.workspace_id = w.id ORDER BY u.workspace_id, u.run_id LIMIT 1) END,
       (SELECT r.id FROM live_runs r WHERE r.workspace_id = w.id ORDER BY r.id LIMIT 1)
  FROM workspaces w LEFT JOIN usage_tallies t ON t.workspace_id = w.id
ORDER BY w.id
"""

BEGIN = """
INSERT INTO usage_tallies (workspace_id, until) VALUES (%(workspace_id)s, %(start)s) ON CONFLICT (workspace_id) DO NOTHING
"""

# An id begins with the milliseconds of its making.
STARTED_AT = "to_timestamp(('x' || left(replace(u.run_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)"

SUM_UP = f"""
-- Whoever moves the mark from where it stood writes the span; another process finds it moved.
WITH moved AS (
    UPDATE usage_tallies SET until = %(end)s WHERE workspace_id = %(workspace_id)s AND until = %(start)s RETURNING workspace_id)
INSERT INTO usage_spans (workspace_id, starts_at, account_id, unit, amount)
SELECT u.workspace_id,
       date_bin('15 minutes', {STARTED_AT}, 'epoch'),
       u.account_id, u.unit, sum(u.amount)
  FROM moved JOIN usage u ON u.workspace_id = moved.workspace_id AND u.run_id >= %(since)s AND u.run_id < %(before)s
GROUP BY 1, 2, 3, 4
"""  # noqa: S608 — constants of this module

UNTIL = "SELECT until FROM usage_tallies WHERE workspace_id = %(workspace_id)s"

DAYS = """
SELECT (starts_at AT TIME ZONE %(zone)s)::date AS day, unit, sum(amount) FROM usage_spans
 WHERE workspace_id = %(workspace_id)s AND starts_at >= %(start)s AND starts_at < %(end)s
GROUP BY 1, 2
"""


class Standing(NamedTuple):
    """`until` is None before the first tally; then `first` is the ledger's first run."""

    workspace_id: WorkspaceId
    until: datetime | None
    now: datetime
    first: UUID | None
    oldest: UUID | None


async def standings(conn: Connection) -> list[Standing]:
    async with conn.cursor(row_factory=args_row(Standing)) as cursor:
        await cursor.execute(STANDINGS)
        return await cursor.fetchall()


async def begin(conn: Connection, workspace_id: WorkspaceId, start: datetime) -> None:
    await conn.execute(BEGIN, {"workspace_id": workspace_id, "start": start})


async def sum_up(conn: Connection, workspace_id: WorkspaceId, start: datetime, end: datetime) -> None:
    given = {"workspace_id": workspace_id, "start": start, "end": end, "since": id_at(start), "before": id_at(end)}
    await conn.execute(SUM_UP, given)


async def until(conn: Connection, workspace_id: WorkspaceId) -> datetime | None:
    row = await (await conn.execute(UNTIL, {"workspace_id": workspace_id})).fetchone()
    return row[0] if row else None


async def days(
    conn: Connection, workspace_id: WorkspaceId, start: datetime, end: datetime, zone: str
) -> dict[tuple[Any, str], Decimal]:
    """What was spent by day of a zone and unit, as far as it is summed up."""
    given = {"workspace_id": workspace_id, "start": start, "end": end, "zone": zone}
    rows = await (await conn.execute(DAYS, given)).fetchall()
    return {(day, unit): amount for day, unit, amount in rows}
