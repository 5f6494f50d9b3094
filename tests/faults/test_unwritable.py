"""A database that answers and takes no writes: the answer says why, and `/readyz` until it does again."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from rota.db.pool import Database
from rota.db.write_health import WriteHealth
from support.fleet import Fleet
from support.house import House
from support.waiting import until

MOUNTED = "96m"  # a new database has 30 MB


def ask(method: str, url: str, token: str = "", body: Any = None) -> tuple[int, str | None]:
    """Status and code."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} if token else {}
    asked = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, None
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused).get("code")


class Api:
    """A process with the API, which renames one automation."""

    def __init__(self, url: str, token: str, automation: object) -> None:
        self._url, self._token = url, token
        self._path = f"{url}/api/v1/workspaces/default/automations/{automation}"

    async def write(self, prompt: str = "x") -> tuple[int, str | None]:
        return await asyncio.to_thread(ask, "PATCH", self._path, self._token, {"prompt": prompt})

    async def ready(self) -> tuple[int, str | None]:
        return await asyncio.to_thread(ask, "GET", f"{self._url}/readyz")

    async def is_ready(self) -> bool:
        return await self.ready() == (200, None)


async def start_api(fleet: Fleet) -> Api:
    token, automation = await fleet.token(), await fleet.house.automation()
    process = fleet.start("api")
    return Api(await asyncio.to_thread(process.url), token, automation)


@pytest.fixture
def small_disk(server_url: str) -> Iterator[Path]:
    """A directory on a small file system of its own, which belongs to PostgreSQL's user."""
    above = Path(tempfile.mkdtemp(prefix="rota-small-"))
    above.chmod(0o711)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MOUNTED}", "none", above], check=False).returncode:
        above.rmdir()
        pytest.skip("a small file system needs the right to mount one")
    try:
        above.chmod(0o711)
        with psycopg.connect(server_url) as conn:
            [data] = conn.execute("SHOW data_directory").fetchone() or ("",)
        owner, directory = os.stat(data), above / "tables"
        directory.mkdir(0o700)
        os.chown(directory, owner.st_uid, owner.st_gid)
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", above], check=True)
        above.rmdir()


@pytest.fixture
async def on_small_disk(server_url: str, template: str, small_disk: Path, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet whose database is on it."""
    name = sql.Identifier(f"rota_small_{os.getpid()}")
    options = {"name": name, "directory": sql.Literal(str(small_disk)), "template": sql.Identifier(template)}
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(sql.SQL("CREATE TABLESPACE {name} LOCATION {directory}").format(**options))
        make = "CREATE DATABASE {name} TEMPLATE {template} TABLESPACE {name} STRATEGY file_copy"
        server.execute(sql.SQL(make).format(**options))
        db = Database(make_conninfo(server_url, dbname=name.as_string().strip('"')))
        await db.open()
        fleet = Fleet(db.url, await House.build(db), tmp_path)
        yield fleet
        fleet.close()
        await fleet.dismiss_judge()
        await db.close()
        server.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**options))
        server.execute(sql.SQL("DROP TABLESPACE {name}").format(**options))


def fill(directory: Path) -> Path:
    """A file that takes all the space that is left."""
    filler = directory.parent / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(directory).free))
    assert shutil.disk_usage(directory).free < 8192
    return filler


async def test_a_full_disk_is_told_as_such_until_there_is_space_again(on_small_disk: Fleet, small_disk: Path) -> None:
    api = await start_api(on_small_disk)
    long = "".join(f"{n * 7919:x} " for n in range(20_000))[:90_000]  # needs new pages
    assert await api.write(long) == (200, None)
    assert await api.is_ready()
    filler = fill(small_disk)
    assert await api.write(long + "!") == (503, "database_full")
    assert await api.ready() == (503, "database_full")
    filler.unlink()
    await until(api.is_ready)
    assert await api.write(long + "!") == (200, None)


async def test_a_locked_row_and_a_locked_table_are_told_as_such(fleet: Fleet) -> None:
    api = await start_api(fleet)
    async with await AsyncConnection.connect(fleet.url) as holding:
        await holding.execute("SELECT FROM automations FOR UPDATE")
        assert await api.write() == (503, "database_locked")
        assert await api.is_ready()  # all other rows can be written
    async with await AsyncConnection.connect(fleet.url) as holding:
        await holding.execute("LOCK TABLE automations IN SHARE MODE")
        assert await api.write() == (503, "database_locked")
        await until(lambda: _is(api.ready(), (503, "database_locked")))
    await until(api.is_ready)
    assert await api.write() == (200, None)


async def test_a_database_that_is_read_only_is_told_as_such(fleet: Fleet) -> None:
    """As a server is to which a failover has not come yet."""
    api = await start_api(fleet)
    await _set_read_only(fleet, "on")
    await until(lambda: _is(api.write(), (503, "database_read_only")))  # once the old connections are replaced
    assert await api.ready() == (503, "database_read_only")
    await _set_read_only(fleet, "off")
    await until(lambda: _is(api.write(), (200, None)))
    await until(api.is_ready)


async def _is(answer: Any, expected: object) -> bool:
    return bool(await answer == expected)


async def _set_read_only(fleet: Fleet, value: str) -> None:
    async with await AsyncConnection.connect(fleet.url, autocommit=True) as conn:
        await conn.execute("SET default_transaction_read_only = off")
        name = sql.Identifier(conn.info.dbname)
        await conn.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(name, value))
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rota' AND datname = %s",
            [conn.info.dbname],
        )


async def test_readiness_asks_the_database_only_after_a_failed_write_and_seldom(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_connection: Any = None  # which nothing can be asked on
    health = WriteHealth()
    assert await health.failure(no_connection) is None
    health.note(full := psycopg.errors.DiskFull("full"))
    assert await health.failure(no_connection) is full
    monkeypatch.setattr("rota.db.write_health.HOLD_SECONDS", 0.0)
    async with db.connection() as conn:
        assert await health.failure(conn) is None
    health.note(full)
    assert await health.failure(no_connection) is None, "asked a moment ago"
