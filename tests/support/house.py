"""A furnished house for tests: a workspace with an agent, and quick ways to save automations and read the ledger."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rota.db import runs
from rota.db.pool import Database
from rota.model.caller import Caller
from rota.model.ids import AutomationId
from rota.roster import agents, automations
from rota.roster.first_start import settle_in

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


# Runs that wait, each in a session of its own, beside one another; many at once.
QUEUE = """
WITH model AS (SELECT * FROM automations LIMIT 1), opened AS (
    INSERT INTO sessions (workspace_id, id, kind, origin, automation_id, agent_id, owner_id, last_seq)
    SELECT workspace_id, gen_random_uuid(), 'automation', 'schedule', id, agent_id, owner_id, 1
      FROM model, generate_series(1, %(count)s)
 RETURNING workspace_id, id, automation_id, agent_id)
INSERT INTO runs (workspace_id, id, automation_id, session_id, agent_id, grant_id, revision, status, source, queue, pool, executor,
                  timeout, trace_id, ready_at)
SELECT o.workspace_id, gen_random_uuid(), o.automation_id, o.id, o.agent_id, m.grant_id, 1, 'queued', 'schedule', o.workspace_id,
       'default', 'command', '1 hour', 't', now()
  FROM opened o, model m
"""


class Clock:
    """The instant that a scheduler under test judges by."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **span: float) -> None:
        self.now += timedelta(**span)


class House:
    def __init__(self, db: Database, caller: Caller) -> None:
        self.db = db
        self.caller = caller

    @classmethod
    async def build(cls, db: Database) -> "House":
        async with db.transaction() as conn:
            house = cls(db, (await settle_in(conn, "default")).caller)
            values = {"name": "Worker bee", "executor": "command", "config": {"argv": ["true"]}}
            await agents.create(conn, house.caller, values)
        return house

    async def automation(
        self, schedule: dict[str, Any] | None = None, *, next_fire_at: datetime | None = None, **values: Any
    ) -> AutomationId:
        """Save an automation; `next_fire_at` puts its triggers' first slot where a test wants it."""
        forms = values.pop("triggers", None) or ([schedule] if schedule else [])
        given = {"name": "Errand", "agent": "worker-bee", "prompt": "Do it.", **values}
        async with self.db.transaction() as conn:
            automation_id = await automations.create(conn, self.caller, given, forms)
            if next_fire_at:
                place = (
                    "UPDATE triggers SET next_fire_at = %s, anchor_at = least(anchor_at, %s) WHERE automation_id = %s"
                )
                await conn.execute(place, [next_fire_at, next_fire_at - timedelta(days=1), automation_id])
        return automation_id

    async def queue(self, count: int) -> None:
        """So many runs wait, as no automation would start them in a moment."""
        await self.automation(overlap="allow")
        async with self.db.connection() as conn:
            await conn.execute(QUEUE, {"count": count})

    async def ledger(self, automation_id: UUID | None = None) -> list[dict[str, Any]]:
        """Runs, oldest first."""
        async with self.db.connection() as conn:
            found = await runs.page(
                conn, self.caller.workspace_id, before=None, limit=100_000, automation_id=automation_id
            )
        return found[::-1]

    async def value(self, query: str, *given: Any) -> Any:
        async with self.db.connection() as conn:
            row = await (await conn.execute(query, given)).fetchone()
        return row[0] if row else None

    async def execute(self, query: str, *given: Any) -> None:
        async with self.db.connection() as conn:
            await conn.execute(query, given)
