"""What was spent, summed up by quarters of an hour: written by `watch` once no run of a span lives, never changed."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
from psycopg.rows import args_row

from rota.db.pool import Connection
from rota.model.ids import RunId, WorkspaceId, id_at
from rota.model.tally import EPOCH

# An id begins with the milliseconds of its making.
STARTED_AT = "to_timestamp(('x' || left(replace(u.run_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)"
FIRST_ID = "rpad(lpad(to_hex((extract(epoch FROM coalesce(t.until, 'epoch')) * 1000)::bigint), 12, '0'), 32, '0')::uuid"

STANDINGS = f"""
-- Workspaces that have spent something since they were summed up: how far that was, what was spent first, and the oldest
-- run that may still spend.
SELECT w.id, t.until, now(), first.run_id, (SELECT r.id FROM live_runs r WHERE r.workspace_id = w.id ORDER BY r.id LIMIT 1)
  FROM workspaces w LEFT JOIN usage_tallies t ON t.workspace_id = w.id
       CROSS JOIN LATERAL (
           SELECT u.run_id FROM usage u WHERE u.workspace_id = w.id AND u.run_id >= {FIRST_ID}
         ORDER BY u.workspace_id, u.run_id LIMIT 1) first
ORDER BY w.id
"""  # noqa: S608 — constants of this module, also below

SUM_UP = f"""
-- Whoever moves a mark from where it stood writes the span; another process finds it moved, or held.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(spans)s::json) AS g(
        workspace_id uuid, stood timestamptz, until timestamptz, since uuid, before uuid)),
begun AS (
    INSERT INTO usage_tallies (workspace_id, until) SELECT workspace_id, until FROM given WHERE stood IS NULL ORDER BY 1
    ON CONFLICT (workspace_id) DO NOTHING RETURNING workspace_id),
held AS MATERIALIZED (
    SELECT t.workspace_id, g.until FROM given g JOIN usage_tallies t ON t.workspace_id = g.workspace_id AND t.until = g.stood
  ORDER BY t.workspace_id FOR NO KEY UPDATE OF t SKIP LOCKED),
moved AS (
    UPDATE usage_tallies t SET until = h.until FROM held h WHERE t.workspace_id = h.workspace_id RETURNING t.workspace_id)
INSERT INTO usage_spans (workspace_id, starts_at, account_id, unit, amount)
SELECT g.workspace_id, spent.starts_at, spent.account_id, spent.unit, spent.amount
  FROM (SELECT workspace_id FROM begun UNION ALL SELECT workspace_id FROM moved) mine
       JOIN given g ON g.workspace_id = mine.workspace_id
       CROSS JOIN LATERAL (
           SELECT date_bin('15 minutes', {STARTED_AT}, 'epoch') AS starts_at, u.account_id, u.unit, sum(u.amount) AS amount
             FROM usage u
            WHERE u.workspace_id = g.workspace_id AND u.run_id >= g.since AND u.run_id < g.before
         GROUP BY 1, 2, 3) spent
"""  # noqa: S608

# Euros and dollars have no sum: `money` is that of the workspace's first account's currency, any other stands by its name.
APART = """
       LEFT JOIN (SELECT c.id, 'money ' || c.currency AS unit FROM accounts c
                   WHERE c.workspace_id = %(workspace_id)s AND c.currency <> (
                             SELECT f.currency FROM accounts f WHERE f.workspace_id = %(workspace_id)s
                           ORDER BY f.created_at, f.id LIMIT 1)) apart
              ON apart.id = u.account_id AND u.unit = 'money'
"""

UNTIL = "SELECT until FROM usage_tallies WHERE workspace_id = %(workspace_id)s"

DAYS = f"""
SELECT (u.starts_at AT TIME ZONE %(zone)s)::date AS day, coalesce(apart.unit, u.unit), sum(u.amount)
  FROM usage_spans u {APART}
 WHERE u.workspace_id = %(workspace_id)s AND u.starts_at >= %(start)s AND u.starts_at < %(end)s
GROUP BY 1, 2
"""  # noqa: S608


class Standing(NamedTuple):
    """A workspace whose sums lack what was spent from `first` on. `until` is None before the first tally; a run that
    lives, the `oldest` of them, may still spend."""

    workspace_id: WorkspaceId
    until: datetime | None
    now: datetime
    first: RunId
    oldest: RunId | None


async def standings(conn: Connection) -> list[Standing]:
    async with conn.cursor(row_factory=args_row(Standing)) as cursor:
        await cursor.execute(STANDINGS)
        return await cursor.fetchall()


async def sum_up(conn: Connection, spans: Sequence[tuple[Standing, datetime]]) -> None:
    """Bring the sums of each of these workspaces forward to an instant."""
    given = [
        {"workspace_id": standing.workspace_id, "stood": standing.until, "until": end, "before": id_at(end),
         "since": id_at(standing.until or EPOCH)}
        for standing, end in spans
    ]  # fmt: skip
    await conn.execute(SUM_UP, {"spans": orjson.dumps(given).decode()})


async def until(conn: Connection, workspace_id: WorkspaceId) -> datetime | None:
    row = await (await conn.execute(UNTIL, {"workspace_id": workspace_id})).fetchone()
    return row[0] if row else None


async def days(
    conn: Connection, workspace_id: WorkspaceId, start: datetime, end: datetime, zone: str
) -> dict[tuple[Any, str], Decimal]:
    """What was spent by day of a zone and unit, as far as it is summed up."""
    given = {"workspace_id": workspace_id, "start": start, "end": end, "zone": zone}
    rows = await (await conn.execute(DAYS.encode(), given)).fetchall()
    return {(day, unit): amount for day, unit, amount in rows}
