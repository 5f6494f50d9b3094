"""A database for a benchmark, and a quick way to fill it with automations that are real in every column."""

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from rota.db.embedded import EmbeddedPostgres
from rota.db.listener import Listener, Wakes
from rota.db.migrate import migrate
from rota.db.pool import Database
from rota.model.caller import Caller
from rota.roster import agents
from rota.roster.first_start import settle_in

FILL = """
WITH made AS (
    SELECT gen_random_uuid() AS id, n FROM generate_series(1, %(count)s) AS n),
saved AS (
    INSERT INTO automations (workspace_id, id, slug, name, agent_id, owner_id, grant_id, prompt)
    SELECT %(workspace_id)s, id, %(batch)s || '-' || n, 'Automation ' || n, %(agent_id)s, %(user_id)s, %(grant_id)s, 'Do it.'
      FROM made),
kept AS (
    INSERT INTO revisions (workspace_id, subject_id, revision, spec, created_by)
    SELECT %(workspace_id)s, id, 1, %(spec)s::jsonb, %(user_id)s FROM made)
INSERT INTO triggers (workspace_id, id, automation_id, kind, cron, timezone, anchor_at, next_fire_at, max_fires)
SELECT %(workspace_id)s, gen_random_uuid(), id, 'cron', (n %% 60) || ' */2 * * *', 'America/Los_Angeles', now(), %(next_fire_at)s,
       %(max_fires)s
  FROM made
"""
FILLING_SECONDS = 600.0
SPEC = '{"name": "Automation", "prompt": "Do it.", "agent": {"executor": "command", "config": {"argv": ["true"]}}}'


class Stage:
    def __init__(self, url: str, db: Database, wakes: Wakes, caller: Caller, agent_id: object) -> None:
        self.url, self.db, self.wakes, self.caller, self.agent_id = url, db, wakes, caller, agent_id

    async def fill(
        self, count: int, next_fire_at: datetime, *, tidy: bool = True, max_fires: int | None = None
    ) -> None:
        """Save automations, each with one cron trigger due at the given time. Those of which only the runs are wanted fire
        once: in every other hour they would come due again while something else is measured."""
        async with self.db.transaction() as conn:
            conn.patience = FILLING_SECONDS
            grant = await (await conn.execute("SELECT id FROM grants LIMIT 1")).fetchone()
            assert grant
            await conn.execute(FILL, {
                "count": count, "workspace_id": self.caller.workspace_id, "agent_id": self.agent_id, "spec": SPEC,
                "user_id": self.caller.user_id, "grant_id": grant[0], "batch": secrets.token_hex(4),
                "next_fire_at": next_fire_at, "max_fires": max_fires,
            })  # fmt: skip
        if tidy:
            await self.tidy()

    async def tidy(self) -> None:
        async with self.db.connection() as conn:
            await conn.execute("VACUUM ANALYZE")


@asynccontextmanager
async def staged(*, executor: str = "command") -> AsyncIterator[Stage]:
    """An embedded server for this benchmark alone, or a new database on ROTA_TEST_DATABASE_URL."""
    given = os.environ.get("ROTA_TEST_DATABASE_URL")
    with tempfile.TemporaryDirectory(prefix="rota-bench-", ignore_cleanup_errors=True) as home:
        postgres = None if given else EmbeddedPostgres(Path(home))
        if postgres:
            await asyncio.to_thread(postgres.start)
        server = given or postgres.owner_url  # type: ignore[union-attr]
        name = f"rota_bench_{secrets.token_hex(4)}"
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
            try:
                async with furnished(make_conninfo(server, dbname=name), executor) as stage:
                    yield stage
            finally:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        if postgres:
            await asyncio.to_thread(postgres.stop)


@asynccontextmanager
async def furnished(url: str, executor: str = "command") -> AsyncIterator[Stage]:
    """An empty database with a schema, a workspace and an agent."""
    await migrate(url)
    db = Database(url)
    await db.open()
    wakes = Wakes(db, Listener(url))
    async with db.transaction() as conn:
        caller = (await settle_in(conn, "default")).caller
        agent, _ = await agents.create(
            conn, caller, {"name": "Agent", "executor": executor, "config": {"argv": ["true"]}}
        )
        from rota.access import grants

        await grants.make(conn, caller, agent["id"])
    yield Stage(url, db, wakes, caller, agent["id"])
    await wakes.close()
    await db.close()
