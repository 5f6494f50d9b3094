"""The usage ledger: what each attempt spent, charged to the account of its grant."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from psycopg.rows import dict_row

from rota.db import tallies
from rota.db.pool import Connection
from rota.model.cron import load_zone
from rota.model.ids import RunId, WorkspaceId, id_at

CHARGE = """
-- A total: written twice it charges once, and what the agent added over HTTP stays.
INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, recorded, account_id)
SELECT g.workspace_id, g.run_id, g.attempt, g.unit, g.amount, g.amount, held.account_id
  FROM json_to_recordset(%(charges)s::json) AS g(workspace_id uuid, run_id uuid, attempt integer, unit text, amount numeric)
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.id = g.run_id
       JOIN grants held ON held.workspace_id = r.workspace_id AND held.id = r.grant_id
    ON CONFLICT (workspace_id, run_id, attempt, unit) DO UPDATE
   SET amount = usage.amount + greatest(excluded.recorded - usage.recorded, 0),
       recorded = greatest(usage.recorded, excluded.recorded)
"""

ADD = """
INSERT INTO usage (workspace_id, run_id, attempt, unit, amount, account_id)
SELECT r.workspace_id, r.id, %(attempt)s, %(unit)s, %(amount)s, held.account_id
  FROM runs r JOIN grants held ON held.workspace_id = r.workspace_id AND held.id = r.grant_id
 WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s
    ON CONFLICT (workspace_id, run_id, attempt, unit) DO UPDATE SET amount = usage.amount + excluded.amount
"""

COUNTED = """
-- How many units an attempt has reported, this one not counted; none where it has reported this one before.
SELECT CASE WHEN bool_or(unit = %(unit)s) THEN 0 ELSE count(*) END FROM usage
 WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s AND attempt = %(attempt)s
"""

SPENT = """
SELECT u.unit, sum(u.amount) FROM usage u WHERE u.workspace_id = %(workspace_id)s AND u.run_id = %(run_id)s GROUP BY u.unit
"""


@dataclass(frozen=True, slots=True)
class Charge:
    """All that an attempt has spent of a unit so far: a total, so that writing it twice charges once."""

    workspace_id: WorkspaceId
    run_id: RunId
    attempt: int
    unit: str
    amount: Decimal


async def charge(conn: Connection, charges: Sequence[Charge]) -> None:
    if charges:
        await conn.execute(CHARGE, {"charges": orjson.dumps([asdict(each) for each in charges], default=str).decode()})


async def add(conn: Connection, charge: Charge) -> None:
    """Charge this much more. Whoever may repeat it guards it with a key."""
    await conn.execute(ADD, asdict(charge))


async def others(conn: Connection, charge: Charge) -> int:
    """How many units its attempt has reported beside this one; none if this one is not new."""
    row = await (await conn.execute(COUNTED, asdict(charge))).fetchone()
    return int(row[0]) if row else 0


async def spent(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> dict[str, Decimal]:
    """What a run has spent over all its attempts."""
    rows = await conn.execute(SPENT, {"workspace_id": workspace_id, "run_id": run_id})
    return dict(await rows.fetchall())


# Ids of runs are in the order of time: a span of days is a span of the ledger's primary key, or of an account's index.
_SPENT = """
SELECT ({started_at} AT TIME ZONE %(zone)s)::date AS day, coalesce(r.automation_id, %(none)s) AS subject, {unit} AS unit, sum(u.amount) AS amount
  FROM usage u JOIN runs r ON r.workspace_id = u.workspace_id AND r.id = u.run_id {apart}
 WHERE u.workspace_id = %(workspace_id)s AND u.run_id >= %(since)s AND u.run_id < %(until)s {of_account}
GROUP BY 1, 2, 3
"""

BY_DAY = """
SELECT spent.day, nullif(spent.subject, %(none)s) AS automation_id, a.slug AS automation, a.name, spent.usage, spent.subject
  FROM (SELECT day, subject, jsonb_object_agg(unit, amount) AS usage FROM ({spent}) every
         WHERE %(last_day)s::date IS NULL OR day < %(last_day)s OR (day = %(last_day)s AND subject > %(last_subject)s)
      GROUP BY day, subject) spent
       LEFT JOIN automations a ON a.workspace_id = %(workspace_id)s AND a.id = spent.subject
ORDER BY spent.day DESC, spent.subject
 LIMIT %(limit)s
"""

DAYS = "SELECT day, unit, sum(amount) AS amount FROM ({spent}) every GROUP BY day, unit"

FIRST = f"""
SELECT least((SELECT {tallies.STARTED_AT} FROM usage u WHERE u.workspace_id = %(workspace_id)s ORDER BY u.run_id LIMIT 1),
             (SELECT min(t.starts_at) FROM usage_spans t WHERE t.workspace_id = %(workspace_id)s))
"""  # noqa: S608 — constants

MEAN = f"""
-- What a run of each automation cost of late: of its newest that have ended, at most so many.
SELECT g.id, recent.runs, (SELECT jsonb_object_agg(unit, amount) FROM (
           SELECT coalesce(apart.unit, u.unit) AS unit, sum(u.amount) / recent.runs AS amount FROM usage u {tallies.APART}
            WHERE u.workspace_id = %(workspace_id)s AND u.run_id = ANY(recent.ids) GROUP BY 1) mean)
  FROM unnest(%(ids)s::uuid[]) AS g(id)
       CROSS JOIN LATERAL (
           SELECT count(*) AS runs, array_agg(newest.id) AS ids FROM (
               SELECT r.id FROM runs r
                WHERE r.workspace_id = %(workspace_id)s AND r.automation_id = g.id AND r.status IN ('succeeded', 'failed')
             ORDER BY r.id DESC LIMIT %(newest)s) newest) recent
 WHERE recent.runs > 0
"""  # noqa: S608 — constants

DAY = timedelta(days=1)
NOBODY = UUID(int=0)  # what was spent by runs of no automation


class Span(NamedTuple):
    """Which part of the ledger: runs of these ids, of one account or of all, by the days of a zone."""

    since: UUID
    until: UUID
    zone: str
    account_id: UUID | None = None


class Days(NamedTuple):
    """From the first to the last of these days in a zone; of one account or of all."""

    first: date
    last: date
    zone: str
    account_id: UUID | None = None

    @property
    def span(self) -> Span:
        zone = load_zone(self.zone)
        start, end = (datetime.combine(day, time(), zone) for day in (self.first, self.last + DAY))
        return Span(id_at(start), id_at(end), self.zone, self.account_id)


def _of(span: Span, query: str) -> bytes:
    of_account = "AND u.account_id = %(account_id)s" if span.account_id else ""
    unit, apart = ("u.unit", "") if span.account_id else ("coalesce(apart.unit, u.unit)", tallies.APART)
    spent = _SPENT.format(started_at=tallies.STARTED_AT, of_account=of_account, unit=unit, apart=apart)
    return query.format(spent=spent).encode()


async def by_day(
    conn: Connection, workspace_id: WorkspaceId, days: Days, *, after: tuple[date, UUID] | None, limit: int
) -> list[dict[str, Any]]:
    """What was spent by day and automation, the newest day first. Read from there back, each time twice as many days,
    until there is enough: a page costs what it shows, not what the days hold."""
    last_day, last_subject = after or (None, NOBODY)
    given = {"workspace_id": workspace_id, "none": NOBODY, "last_day": last_day, "last_subject": last_subject}
    found: list[dict[str, Any]] = []
    end, many = min(days.last, last_day or days.last), DAY
    while end >= days.first and len(found) < limit:
        start = max(days.first, end - many + DAY)
        span = days._replace(first=start, last=end).span
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_of(span, BY_DAY), {**given, **span._asdict(), "limit": limit - len(found)})
            found += await cursor.fetchall()
        end, many = start - DAY, 2 * many
    return found


async def days(
    conn: Connection, workspace_id: WorkspaceId, start: datetime, end: datetime, zone: str
) -> dict[tuple[date, str], Decimal]:
    """What was spent by day of a zone and unit: what is summed up, and from there on what the ledger says."""
    summed = await tallies.until(conn, workspace_id) or start
    spent = await tallies.days(conn, workspace_id, start, min(end, summed), zone)
    span = Span(id_at(max(start, summed)), id_at(end), zone)
    rows = await conn.execute(_of(span, DAYS), {"workspace_id": workspace_id, "none": NOBODY, **span._asdict()})
    for day, unit, amount in await rows.fetchall():
        spent[day, unit] = spent.get((day, unit), Decimal()) + amount
    return spent


async def first_at(conn: Connection, workspace_id: WorkspaceId) -> datetime | None:
    """When the first run started that has reported what it spent."""
    row = await (await conn.execute(FIRST.encode(), {"workspace_id": workspace_id})).fetchone()
    return row[0] if row else None


async def mean(
    conn: Connection, workspace_id: WorkspaceId, automation_ids: Sequence[UUID], *, newest: int
) -> dict[UUID, tuple[int, dict[str, Decimal]]]:
    """By automation: how many of its newest runs were looked at, and what one of them cost."""
    given = {"workspace_id": workspace_id, "ids": list(automation_ids), "newest": newest}
    rows = await (await conn.execute(MEAN.encode(), given)).fetchall()
    return {
        each: (runs, {unit: Decimal(str(amount)) for unit, amount in (cost or {}).items()}) for each, runs, cost in rows
    }
