"""The usage ledger: what each attempt spent, charged to the account of its grant."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from rota.db.pool import Connection
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


@dataclass(frozen=True, slots=True)
class Charge:
    """All that an attempt has spent of a unit so far: a total, so that writing it twice charges once."""

    workspace_id: WorkspaceId
    run_id: RunId
    attempt: int
    unit: str
    amount: float


async def charge(conn: Connection, charges: Sequence[Charge]) -> None:
    if charges:
        await conn.execute(CHARGE, {"charges": orjson.dumps([asdict(each) for each in charges]).decode()})


async def add(conn: Connection, charge: Charge) -> None:
    """Charge this much more. Whoever may repeat it guards it with a key."""
    await conn.execute(ADD, asdict(charge))
