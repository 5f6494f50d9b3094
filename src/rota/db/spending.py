"""Purses: what accounts and automations may spend in a month, what is spent, and what is set aside for runs."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from rota.db.pool import Connection
from rota.model.budget import LOW, Concern, Demand, Purse
from rota.model.ids import RunId, WorkspaceId, id_at

MONTH = "date_trunc('month', now() AT TIME ZONE w.timezone)"

CONCERNS = f"""
-- Of these runs, those that a budget concerns: their automation's or their account's.
SELECT g.workspace_id, g.id, {MONTH}::date, {MONTH} AT TIME ZONE w.timezone, held.account_id, c.budget,
       g.automation_id, a.budget
  FROM json_to_recordset(%(starts)s::json) AS g(
           workspace_id uuid, id uuid, automation_id uuid, grant_id uuid, position integer)
       JOIN workspaces w ON w.id = g.workspace_id
       JOIN grants held ON held.workspace_id = g.workspace_id AND held.id = g.grant_id
       JOIN accounts c ON c.workspace_id = held.workspace_id AND c.id = held.account_id
       LEFT JOIN automations a ON a.workspace_id = g.workspace_id AND a.id = g.automation_id
 WHERE a.budget IS NOT NULL OR c.budget IS NOT NULL
ORDER BY g.position
"""  # noqa: S608 — constants of this module, here and below

_GIVEN = """
    SELECT * FROM json_to_recordset(%(purses)s::json) AS g(
        workspace_id uuid, holder_id uuid, month date, unit text, cap numeric, since uuid)
"""

# What the month's runs have spent of a purse. Its holder is an account or an automation: one half finds nothing.
_LEDGER = """
SELECT u.run_id, u.amount FROM usage u
 WHERE u.workspace_id = g.workspace_id AND u.account_id = g.holder_id AND u.run_id >= g.since AND u.unit = g.unit
UNION ALL
SELECT u.run_id, u.amount FROM runs r JOIN usage u ON u.workspace_id = r.workspace_id AND u.run_id = r.id
 WHERE r.workspace_id = g.workspace_id AND r.automation_id = g.holder_id AND r.id >= g.since AND u.unit = g.unit
"""

OPEN = f"""
-- A new month, or a new budget: what the ledger shows of the month's runs counts, except what is set aside for a run or
-- waits to be folded.
INSERT INTO spending (workspace_id, holder_id, month, unit, cap, spent)
SELECT g.workspace_id, g.holder_id, g.month, g.unit, g.cap, (
           SELECT coalesce(sum(u.amount), 0) FROM ({_LEDGER}) u
            WHERE NOT EXISTS (SELECT FROM reservations x WHERE x.workspace_id = g.workspace_id AND x.run_id = u.run_id
                                 AND x.holder_id = g.holder_id AND x.unit = g.unit))
  FROM ({_GIVEN}) g
 WHERE NOT EXISTS (SELECT FROM spending s WHERE s.workspace_id = g.workspace_id AND s.holder_id = g.holder_id
                      AND s.month = g.month AND s.unit = g.unit)
ORDER BY g.workspace_id, g.holder_id, g.month, g.unit
    ON CONFLICT DO NOTHING
"""  # noqa: S608

HOLD = f"""
-- One at a time decides about a purse. In one order, so that two who need the same ones never wait for each other.
SELECT s.unit
  FROM ({_GIVEN}) g
       JOIN spending s ON s.workspace_id = g.workspace_id AND s.holder_id = g.holder_id AND s.month = g.month AND s.unit = g.unit
ORDER BY s.workspace_id, s.holder_id, s.month, s.unit
   FOR UPDATE OF s
"""  # noqa: S608

FOLD = f"""
-- In a statement of its own: it must see what the one before has set aside. What ends meanwhile still counts in full.
WITH given AS MATERIALIZED ({_GIVEN}),
folded AS (
    DELETE FROM reservations r USING given g
     WHERE r.workspace_id = g.workspace_id AND r.holder_id = g.holder_id AND r.month = g.month AND r.unit = g.unit
       AND r.settled IS NOT NULL
 RETURNING r.workspace_id, r.holder_id, r.month, r.unit, r.settled),
total AS (SELECT workspace_id, holder_id, month, unit, sum(settled) AS settled FROM folded GROUP BY 1, 2, 3, 4)
   UPDATE spending s SET spent = s.spent + coalesce(t.settled, 0), cap = g.cap
     FROM given g LEFT JOIN total t USING (workspace_id, holder_id, month, unit)
    WHERE s.workspace_id = g.workspace_id AND s.holder_id = g.holder_id AND s.month = g.month AND s.unit = g.unit
RETURNING s.workspace_id, s.holder_id, s.month, s.unit, s.spent + coalesce(
              (SELECT sum(r.amount) FROM reservations r
                WHERE r.workspace_id = s.workspace_id AND r.holder_id = s.holder_id AND r.month = s.month AND r.unit = s.unit
                  AND r.settled IS NULL), 0)
"""  # noqa: S608

RESERVE = """
INSERT INTO reservations (workspace_id, run_id, holder_id, unit, month, amount)
SELECT workspace_id, run_id, holder_id, unit, month, amount
  FROM json_to_recordset(%(demands)s::json) AS g(
       workspace_id uuid, run_id uuid, holder_id uuid, unit text, month date, amount numeric)
"""

SETTLE = """
-- What was really spent takes the place of what was set aside. Only the run's own rows: nobody waits for anybody.
   UPDATE reservations r
      SET settled = coalesce((SELECT sum(u.amount) FROM usage u
                               WHERE u.workspace_id = r.workspace_id AND u.run_id = r.run_id AND u.unit = r.unit), 0)
     FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
    WHERE r.workspace_id = g.workspace_id AND r.run_id = g.id AND r.settled IS NULL
RETURNING r.workspace_id, r.holder_id, r.month, r.unit
"""

RELEASE = """
DELETE FROM reservations r USING json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
 WHERE r.workspace_id = g.workspace_id AND r.run_id = g.id
"""

WARN = f"""
-- Once for each purse. Whoever holds it just now is not waited for: the next end looks again.
WITH near AS MATERIALIZED (
    SELECT s.workspace_id, s.holder_id, s.month, s.unit, s.spent + settled.amount AS spent
      FROM (SELECT DISTINCT workspace_id, holder_id, month, unit FROM ({_GIVEN}) every) g
           JOIN spending s ON s.workspace_id = g.workspace_id AND s.holder_id = g.holder_id AND s.month = g.month AND s.unit = g.unit
           CROSS JOIN LATERAL (
               SELECT coalesce(sum(r.settled), 0) AS amount FROM reservations r
                WHERE r.workspace_id = s.workspace_id AND r.holder_id = s.holder_id AND r.month = s.month AND r.unit = s.unit) settled
     WHERE s.warned_at IS NULL AND s.spent + settled.amount >= %(low)s * s.cap
  ORDER BY s.workspace_id, s.holder_id, s.month, s.unit
       FOR UPDATE OF s SKIP LOCKED)
   UPDATE spending s SET warned_at = now()
     FROM near n
    WHERE s.workspace_id = n.workspace_id AND s.holder_id = n.holder_id AND s.month = n.month AND s.unit = n.unit
RETURNING s.workspace_id, s.holder_id, s.month, s.unit, n.spent, s.cap
"""  # noqa: S608

FORGET = "DELETE FROM spending WHERE workspace_id = %(workspace_id)s AND holder_id = %(holder_id)s"

STANDING = f"""
-- How a holder's month stands: what the purse says, or the ledger where no run has needed it yet.
SELECT g.workspace_id, g.holder_id, g.month, g.unit, g.cap,
       coalesce(s.spent + (SELECT coalesce(sum(r.settled), 0) FROM reservations r
                            WHERE r.workspace_id = g.workspace_id AND r.holder_id = g.holder_id AND r.month = g.month
                              AND r.unit = g.unit),
                (SELECT sum(u.amount) FROM ({_LEDGER}) u), 0) AS spent,
       (SELECT coalesce(sum(r.amount), 0) FROM reservations r
         WHERE r.workspace_id = g.workspace_id AND r.holder_id = g.holder_id AND r.month = g.month AND r.unit = g.unit
           AND r.settled IS NULL) AS reserved
  FROM ({_GIVEN}) g
       LEFT JOIN spending s USING (workspace_id, holder_id, month, unit)
"""  # noqa: S608


class Low(NamedTuple):
    """A purse of which most is spent."""

    purse: Purse
    spent: Decimal
    cap: Decimal


def _json(rows: Iterable[Mapping[str, Any]]) -> str:
    return orjson.dumps(list(rows), default=str).decode()


def _purses(caps: Mapping[Purse, Decimal], since: Mapping[WorkspaceId, datetime]) -> str:
    """Run ids are in the order of time: the month's runs are those from an id on."""
    return _json(
        {**purse._asdict(), "cap": cap, "since": id_at(since[purse.workspace_id])} for purse, cap in caps.items()
    )


async def concerns(conn: Connection, starts: Iterable[Mapping[str, Any]]) -> list[Concern]:
    """Of the runs that are about to start, those that a budget concerns."""
    rows = await (await conn.execute(CONCERNS, {"starts": _json(starts)})).fetchall()
    return [Concern(*row) for row in rows]


async def hold(
    conn: Connection, caps: Mapping[Purse, Decimal], since: Mapping[WorkspaceId, datetime]
) -> dict[Purse, Decimal]:
    """Lock purses, made where they are missing; what of each is spent or set aside."""
    given = {"purses": _purses(caps, since)}
    while (await conn.execute(HOLD, given)).rowcount < len(caps):  # also if it was forgotten while we waited for it
        await conn.execute(OPEN, given)
    rows = await conn.execute(FOLD, given)
    return {Purse(*row[:4]): row[4] for row in await rows.fetchall()}


async def reserve(conn: Connection, demands: Sequence[tuple[RunId, Demand]]) -> None:
    rows = ({**each.purse._asdict(), "run_id": run_id, "amount": each.amount} for run_id, each in demands)
    await conn.execute(RESERVE, {"demands": _json(rows)})


async def settle(conn: Connection, runs: Iterable[tuple[UUID, UUID]]) -> set[Purse]:
    """Put what these runs have spent in place of what was set aside for them; the purses that it came from."""
    rows = await conn.execute(SETTLE, {"runs": _json({"workspace_id": w, "id": r} for w, r in runs)})
    return {Purse(*row) for row in await rows.fetchall()}


async def release(conn: Connection, runs: Iterable[tuple[UUID, UUID]]) -> None:
    """Give back what was set aside for runs that were not written."""
    await conn.execute(RELEASE, {"runs": _json({"workspace_id": w, "id": r} for w, r in runs)})


async def warn(conn: Connection, purses: Iterable[Purse]) -> list[Low]:
    """Of these, the ones of which most is spent now, each once."""
    given = {"purses": _json(each._asdict() for each in purses), "low": LOW}
    return [Low(Purse(*row[:4]), row[4], row[5]) for row in await (await conn.execute(WARN, given)).fetchall()]


async def forget(conn: Connection, workspace_id: WorkspaceId, holder_id: UUID) -> None:
    """The budget has changed: the next run that needs its purses has them counted anew from the ledger."""
    await conn.execute(FORGET, {"workspace_id": workspace_id, "holder_id": holder_id})


async def standings(
    conn: Connection, caps: Mapping[Purse, Decimal], since: datetime
) -> dict[Purse, dict[str, Decimal]]:
    """By purse: the cap, what is spent and what is set aside."""
    if not caps:
        return {}
    purses = _purses(caps, {purse.workspace_id: since for purse in caps})
    rows = await (await conn.execute(STANDING, {"purses": purses})).fetchall()
    return {Purse(*purse): {"cap": cap, "spent": spent, "reserved": reserved} for *purse, cap, spent, reserved in rows}


async def standing(conn: Connection, caps: Mapping[Purse, Decimal], since: datetime) -> dict[str, dict[str, Decimal]]:
    """The same of one holder, by unit."""
    return {purse.unit: each for purse, each in (await standings(conn, caps, since)).items()}
