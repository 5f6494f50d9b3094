"""A furnished house for tests: a workspace with an agent, and quick ways to save automations and read the ledger."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rota.db import runs
from rota.db.pool import Database
from rota.model.caller import Caller
from rota.roster import agents, automations
from rota.roster.first_start import settle_in

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


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
    ) -> UUID:
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
