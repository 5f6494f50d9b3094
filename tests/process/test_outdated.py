"""A newer Rota changes the schema while an older one is at work."""

from pathlib import Path

import pytest

from rota.db import migrate as chain
from rota.db.migrate import Migration, migrate, newest
from rota.roster import agents, running
from support.house import House
from support.rota_process import Rota
from support.waiting import until


async def test_a_process_ends_in_order_when_a_newer_one_has_changed_the_schema(
    house: House, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.db.transaction() as conn:
        await agents.create(
            conn, house.caller, {"name": "Long", "executor": "command", "config": {"argv": ["sleep", "600"]}}
        )
        await running.run_agent(conn, house.caller, "long", {"prompt": "x"})
    older = Rota(tmp_path / "home", "serve", ROTA_DATABASE_URL=database_url, ROTA_GRACE_SECONDS="0.2")
    try:
        older.url()

        await until(lambda: house.has_runs(1, status="running"), within=60)
        added = Migration(newest() + 1, "change_something", "-- Why: a test.\n-- Locks: none.\nSELECT 1")
        chained = [*chain.migrations(), added]
        monkeypatch.setattr(chain, "migrations", lambda: chained)
        newest.cache_clear()
        assert await migrate(database_url) == ["change_something"]
        assert older.ended(within=20) == 2, "it was told, and did not wait for its next look"
    finally:
        newest.cache_clear()
        older.stop()
    assert f"The database is at schema {added.number}, this Rota knows {added.number - 1}" in older.said[-1]
    assert (await house.run())["status"] == "queued"
    assert await house.value("SELECT data ->> 'reason' FROM events ORDER BY seq DESC LIMIT 1") == (
        "handed back by a worker that stopped"
    )
