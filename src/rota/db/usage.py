"""The usage ledger: what each attempt spent, charged to the account of its grant."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from uuid import UUID

import orjson

from rota.db.pool import Connection
from rota.model.budget import Exceeded, exceeded
from rota.model.ids import RunId, WorkspaceId

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

SPENT = """
SELECT u.unit, sum(u.amount) FROM usage u WHERE u.workspace_id = %(workspace_id)s AND u.run_id = %(run_id)s GROUP BY u.unit
"""

OF_BUDGETED = """
-- What runs with a budget have spent, over all their attempts, and what they may.
SELECT r.id, r.budget, jsonb_object_agg(u.unit, u.amount::text)
  FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.id = g.id
       CROSS JOIN LATERAL (
           SELECT u.unit, sum(u.amount) AS amount FROM usage u
            WHERE u.workspace_id = r.workspace_id AND u.run_id = r.id GROUP BY u.unit) u
 WHERE r.budget IS NOT NULL
GROUP BY r.id, r.budget
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


async def spent(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> dict[str, Decimal]:
    """What a run has spent over all its attempts."""
    rows = await conn.execute(SPENT, {"workspace_id": workspace_id, "run_id": run_id})
    return dict(await rows.fetchall())


async def over_budget(conn: Connection, runs: Iterable[tuple[UUID, UUID]]) -> dict[UUID, Exceeded]:
    """Of these runs, those that have spent what they may."""
    given = orjson.dumps([{"workspace_id": workspace_id, "id": run_id} for workspace_id, run_id in runs]).decode()
    rows = await (await conn.execute(OF_BUDGETED, {"runs": given})).fetchall()
    found = {run_id: exceeded(_amounts(caps), _amounts(used)) for run_id, caps, used in rows}
    return {run_id: over for run_id, over in found.items() if over}


def _amounts(stored: Mapping[str, str]) -> dict[str, Decimal]:
    return {unit: Decimal(amount) for unit, amount in stored.items()}
