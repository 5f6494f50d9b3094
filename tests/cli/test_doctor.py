"""`rota doctor`: what keeps a process from starting, or makes it slow, is found before it does."""

import os
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from rota.access.vault import open_vault
from rota.cli import doctor
from rota.cli.doctor import Finding
from rota.cli.operating import in_transaction
from rota.db import health
from rota.db.migrate import migrations
from rota.db.pool import Connection
from rota.errors import Broken
from rota.settings import read_settings
from support.house import House


@pytest.fixture
def home(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROTA_DATABASE_URL", database_url)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path))
    return tmp_path


async def examined() -> dict[str, Finding]:
    return {each.about: each for each in await doctor.examine(None)}


async def test_it_makes_no_key_and_hears_what_is_notified(home: Path) -> None:
    found = await examined()
    assert found["notifications"] == (True, "notifications", "they arrive")
    assert found["vault"].good
    assert os.listdir(home) == []
    key = open_vault(home, "").newest
    assert key in (await examined())["vault"].told


async def test_it_tells_of_a_url_for_listening_that_leads_elsewhere(
    home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "HEARD_WITHIN", 0.1)
    elsewhere = {
        make_conninfo(database_url, dbname="postgres"): "they do not arrive",
        "postgresql://me:s3cret@127.0.0.1:1/x": "me@127.0.0.1:1/x",
        "mysql://me:s3cret@127.0.0.1/x": "not a URL like postgresql://",
    }
    for url, told in elsewhere.items():
        monkeypatch.setenv("ROTA_LISTEN_URL", url)
        finding = (await examined())["notifications"]
        assert not finding.good
        assert told in finding.told
        assert "s3cret" not in finding.told


async def test_it_tells_of_a_vault_that_would_not_open(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_VAULT_KEYS", "nonsense")
    found = await examined()
    assert not found["vault"].good
    assert "id:base64" in found["vault"].told
    assert found["triggers"].good  # and goes on


async def test_it_says_what_is_pending_and_applies_none_of_it(
    empty_database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", empty_database_url)
    schema = (await examined())["schema"]
    assert not schema.good
    assert f"{len(migrations())} migrations pending (create_rota, add_snapshots, add_messages, …)" in schema.told
    with psycopg.connect(empty_database_url) as conn:
        assert conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


async def test_it_makes_no_database_either(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROTA_DATABASE_URL")
    assert "there is none yet" in (await examined())["database"].told
    assert os.listdir(home) == []


async def test_it_tells_of_a_schema_that_is_newer(home: Path, database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        conn.execute("INSERT INTO migrations (number, name) VALUES (9999, 'from_the_future')")
    assert "it was used by a newer Rota" in (await examined())["start"].told


async def test_it_tells_of_triggers_that_are_overdue(home: Path, house: House) -> None:
    now = await house.value("SELECT now()")
    await house.automation({"every": "1h"}, next_fire_at=now - timedelta(seconds=50))
    assert (await examined())["schedule"].good
    await house.automation({"every": "1h"}, next_fire_at=now - timedelta(seconds=70))
    schedule = (await examined())["schedule"]
    assert not schedule.good
    assert schedule.told.startswith("1 trigger is due for more than a minute")


async def test_what_was_found_before_the_database_failed_is_told_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "EXAMINE", "SELECT 1/0, %(now)s, %(dead_after)s")
    found = await doctor.examine(None)
    assert [each.about for each in found][:4] == ["settings", "sandbox", "database", "row-level security"]
    assert found[-1] == (False, "database", "division by zero")


def test_a_command_that_the_database_refuses_says_so_in_words(home: Path) -> None:
    async def too_much(conn: Connection) -> None:
        await conn.execute("SET LOCAL statement_timeout = 1")
        await conn.execute("SELECT pg_sleep(60)")

    with pytest.raises(Broken, match="nothing was changed: canceling statement due to statement timeout") as refused:
        in_transaction(read_settings(), too_much)
    assert isinstance(refused.value.__cause__, psycopg.Error)
