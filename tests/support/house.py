"""A workspace with an agent for tests, and quick ways to save automations, start runs and read or change their state."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from rota.access import signing_in
from rota.db import automations as automation_rows
from rota.db import events, runs
from rota.db.events import NewEvent
from rota.db.pool import Connection, Database
from rota.model.caller import Caller
from rota.model.firing import Placement
from rota.model.ids import AutomationId
from rota.model.run import SkipReason, Source
from rota.roster import agents, automations
from rota.roster.first_start import settle_in
from rota.roster.running import run_now
from rota.runs import starting
from support import run_state
from support.run_state import Run, from_now

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


# Many waiting runs in one statement, each in a session of its own.
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

    async def link(self) -> str:
        """A link that signs its owner in."""
        async with self.db.transaction() as conn:
            return await signing_in.create_link(conn, self.caller.user_id)

    async def add_worker(self, kinds: str = "{command}", pools: str = "{default}") -> None:
        """Register a worker that lives and claims nothing."""
        await self.execute(
            "INSERT INTO workers (id, host, pid, places, kinds, pools) VALUES ('w', 'north', 1, 1, %s, %s)",
            kinds,
            pools,
        )

    # Starting runs

    async def queue_runs(self, count: int, *, first: timedelta = timedelta(0), apart: timedelta = timedelta(0)) -> None:
        """Add many waiting runs of one automation, faster than it could be fired so often. They become due one after
        the other, `apart` from each other, the first one after `first`."""
        await self.automation(overlap="allow")
        async with self.db.transaction() as conn:
            await conn.execute(QUEUE, {"count": count})
            if first or apart:
                await run_state.put_off(conn, first=first, apart=apart)

    async def copy_run(self, count: int) -> None:
        """Add many waiting runs like the oldest one."""
        async with self.db.connection() as conn:
            await run_state.copy_run(conn, count)

    async def queue_run(self, automation_id: UUID) -> Run:
        """Start a run that waits for a worker."""
        async with self.db.transaction() as conn:
            run_id = await run_now(conn, self.caller, AutomationId(automation_id))
        return await self.run(run_id)

    async def running_run(self, automation_id: UUID) -> Run:
        """Start a run that worker `w` has claimed."""
        return await self.set_run((await self.queue_run(automation_id))["id"], **run_state.running())

    async def ended_run(self, automation_id: UUID, status: str = "succeeded", **columns: Any) -> Run:
        """Start a run that has ended with this status."""
        run = await self.running_run(automation_id)
        if status in {"failed", "cancelled"}:
            columns = {"error_class": "agent_error", **columns}
        return await self.set_run(run["id"], **run_state.ended(status, **columns))

    async def skip_slot(self, automation_id: UUID, reason: SkipReason, **facts: Any) -> None:
        """Write a slot that did not run."""
        async with self.db.transaction() as conn:
            held, _ = await automation_rows.hold(conn, self.caller.workspace_id, str(automation_id))
            assert held
            await starting.start(conn, [held.policy.start(Source.SCHEDULE, Placement(skip_reason=reason), **facts)])

    async def add_run(self, automation_id: UUID | None = None, **columns: Any) -> Run:
        """Insert the row of a run of this automation, or of the only one: waiting and due, unless the columns say otherwise."""
        async with self.db.transaction() as conn:
            query = "SELECT id, agent_id, grant_id FROM automations WHERE workspace_id = %s AND (%s::uuid IS NULL OR id = %s)"
            found = await conn.execute(query, [self.caller.workspace_id, automation_id, automation_id])
            [(automation_id, agent_id, grant_id)] = await found.fetchall()
            return await run_state.add_run(conn, {
                "workspace_id": self.caller.workspace_id, "id": uuid4(), "automation_id": automation_id, "agent_id": agent_id,
                "grant_id": grant_id, "revision": 1, "status": "queued", "source": "schedule", "queue": self.caller.workspace_id,
                "pool": "default", "executor": "command", "timeout": timedelta(hours=1), "trace_id": "t", "ready_at": from_now(),
                **columns,
            })  # fmt: skip

    # The state of runs: see `run_state` for conditions and values

    async def run(self, run_id: UUID | None = None, /, **where: Any) -> Run:
        """The run with this id, or the only one that fits."""
        async with self.db.connection() as conn:
            return await run_state.find_run(conn, **self._where(run_id, where))

    async def runs(self, **where: Any) -> list[Run]:
        """The runs that fit, oldest first."""
        async with self.db.connection() as conn:
            return await run_state.find_runs(conn, **where)

    async def has_runs(self, count: int, /, **where: Any) -> bool:
        """Whether exactly so many runs fit."""
        async with self.db.connection() as conn:
            return await run_state.count_runs(conn, **where) == count

    async def ended(self, run_id: UUID | None = None, /) -> Run | None:
        """The run with this id, or the only one, once it has ended."""
        run = await self.run(run_id)
        return run if run["finished_at"] else None

    async def set_run(self, run_id: UUID | None = None, /, **changes: Any) -> Run:
        """Change the run with this id, or the only one."""
        async with self.db.transaction() as conn:
            return run_state.only(await run_state.change_runs(conn, self._where(run_id, {}), changes))

    async def set_runs(self, where: Mapping[str, Any] | None = None, /, **changes: Any) -> list[Run]:
        """Change all runs that fit."""
        async with self.db.transaction() as conn:
            return await run_state.change_runs(conn, where or {}, changes)

    @asynccontextmanager
    async def locked_runs(self, lock: str = "FOR UPDATE", /, **where: Any) -> AsyncIterator[Connection]:
        """Hold a lock on the runs that fit, in a transaction that lasts as long as the block."""
        async with self.db.transaction() as conn:
            await run_state.find_runs(conn, lock, **where)
            yield conn

    @staticmethod
    def _where(run_id: UUID | None, where: Mapping[str, Any]) -> dict[str, Any]:
        return {**where, "id": run_id} if run_id else dict(where)

    async def write_event(self, run: Run, kind: str = "output", **data: Any) -> None:
        """Write an event of a run, as its worker would."""
        event = NewEvent(self.caller.workspace_id, run["session_id"], kind, data, run["id"], run["attempt"] or None)
        async with self.db.transaction() as conn:
            await events.append(conn, [event])

    async def add_question(self, run: Run, question: str = "May I?") -> UUID:
        """Insert a question that an agent asked at work and nobody has answered."""
        approval_id = uuid4()
        await self.execute(
            "INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, question, options, expires_at) "
            "VALUES (%s, %s, %s, %s, 1, %s, '[]', now() + interval '1 hour')",
            run["workspace_id"], approval_id, run["id"], run["session_id"], question,
        )  # fmt: skip
        return approval_id

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
