"""Reports of runs with a budget: judged one after the other, under the locks of their runs and of the months they draw on.

The caller holds the runs exclusively (`events.hold(alone=True)`). Purses are locked last, as everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import orjson

from rota.db.pool import Connection
from rota.db.usage import Charge
from rota.model.budget import Exceeded, Month, Purse, Report, Spender, judge
from rota.model.ids import RunId

HOLD_MONTHS = """
-- Lock the purses of these runs, in the order of those who fire. A budget that was changed has no purse until the next run
-- is fired: until then its runs are held to what one run may spend.
SELECT s.unit
  FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
       JOIN reservations r ON r.workspace_id = g.workspace_id AND r.run_id = g.id
       JOIN spending s ON s.workspace_id = r.workspace_id AND s.holder_id = r.holder_id AND s.month = r.month AND s.unit = r.unit
ORDER BY s.workspace_id, s.holder_id, s.month, s.unit
   FOR UPDATE OF s
"""

SPENT = """
-- What each run may spend and has spent, over all attempts, and what the recorder has stored of each attempt.
SELECT r.id, r.budget,
       (SELECT jsonb_object_agg(u.unit, u.amount::text)
          FROM (SELECT unit, sum(amount) AS amount FROM usage
                 WHERE workspace_id = r.workspace_id AND run_id = r.id GROUP BY unit) u),
       (SELECT jsonb_object_agg(attempt || ' ' || unit, recorded::text) FROM usage
         WHERE workspace_id = r.workspace_id AND run_id = r.id)
  FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.id = g.id
"""

MONTHS = """
-- In a statement of its own: it must see what was charged while this transaction waited for the purses.
SELECT g.id, s.workspace_id, s.holder_id, s.month, s.unit,
       CASE WHEN s.holder_id = (SELECT r.automation_id FROM runs r WHERE r.workspace_id = g.workspace_id AND r.id = g.id)
            THEN 'automation' ELSE 'account' END, s.spent + live.spent, s.cap
  FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
       JOIN reservations own ON own.workspace_id = g.workspace_id AND own.run_id = g.id
       JOIN spending s ON s.workspace_id = own.workspace_id AND s.holder_id = own.holder_id AND s.month = own.month
                      AND s.unit = own.unit
       CROSS JOIN LATERAL (
           SELECT coalesce(sum(coalesce(r.settled, (
                      SELECT sum(u.amount) FROM usage u
                       WHERE u.workspace_id = r.workspace_id AND u.run_id = r.run_id AND u.unit = r.unit))), 0) AS spent
             FROM reservations r
            WHERE r.workspace_id = s.workspace_id AND r.holder_id = s.holder_id AND r.month = s.month AND r.unit = s.unit) live
"""

STOP = """
-- Whoever settles, rescues or hands back a run that is marked so ends it as failed.
UPDATE runs r SET cancel_requested_at = clock_timestamp(), cancel_reason = 'budget_exceeded', cancel_detail = g.detail
  FROM json_to_recordset(%(stops)s::json) AS g(workspace_id uuid, id uuid, detail text)
 WHERE r.workspace_id = g.workspace_id AND r.id = g.id AND r.cancel_requested_at IS NULL
"""


class Judged(NamedTuple):
    """Which charges may be written, and which runs have reached a cap and are marked to stop."""

    accepted: list[Charge]
    exceeded: dict[RunId, Exceeded]


async def judge_charges(conn: Connection, charges: Sequence[Charge], *, totals: bool) -> Judged:
    """Judge what runs with a budget report, and mark those that reach a cap. The caller writes what is accepted, in the
    same transaction. With `totals`, a charge is all that its attempt has reported so far, else this much more."""
    runs = _json({"workspace_id": w, "id": r} for w, r in sorted({(c.workspace_id, c.run_id) for c in charges}))
    has_months = (await conn.execute(HOLD_MONTHS, {"runs": runs})).rowcount > 0
    months = await (await conn.execute(MONTHS, {"runs": runs})).fetchall() if has_months else []
    drawn_on: dict[RunId, list[Purse]] = {}
    for run_id, *purse, _, _, _ in months:
        drawn_on.setdefault(run_id, []).append(Purse(*purse))
    spenders: dict[RunId, Spender] = {}
    stored: dict[tuple[RunId, str], Decimal] = {}
    for run_id, caps, spent, recorded in await (await conn.execute(SPENT, {"runs": runs})).fetchall():
        spenders[run_id] = Spender(_amounts(caps), _amounts(spent), drawn_on.get(run_id, ()))
        stored |= {(run_id, key): amount for key, amount in _amounts(recorded).items()}

    def increase(charge: Charge) -> Decimal:
        before = stored.get((charge.run_id, f"{charge.attempt} {charge.unit}"), Decimal()) if totals else Decimal()
        return max(charge.amount - before, Decimal())

    reports = [Report(each.run_id, each.unit, increase(each)) for each in charges]
    accepted, exceeded = judge(reports, spenders, (Month(Purse(*row[1:5]), *row[5:]) for row in months))
    if exceeded:
        await _stop(conn, charges, exceeded)
    return Judged([each for each, ok in zip(charges, accepted, strict=True) if ok], exceeded)


async def _stop(conn: Connection, charges: Sequence[Charge], exceeded: Mapping[RunId, Exceeded]) -> None:
    workspaces = {each.run_id: each.workspace_id for each in charges}
    stops = ({"workspace_id": workspaces[r], "id": r, "detail": over.told()} for r, over in exceeded.items())
    await conn.execute(STOP, {"stops": _json(stops)})


def _json(rows: Iterable[Mapping[str, Any]]) -> str:
    return orjson.dumps(list(rows)).decode()


def _amounts(stored: Mapping[str, str] | None) -> dict[str, Decimal]:
    return {unit: Decimal(amount) for unit, amount in (stored or {}).items()}
