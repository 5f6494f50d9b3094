"""A real PostgreSQL for every test: one server for the session, a database of its own for each test."""

import asyncio
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from argon2 import PasswordHasher
from hypothesis import settings
from psycopg.conninfo import make_conninfo

from rota.access import passwords
from rota.db.embedded import EmbeddedPostgres
from rota.db.listener import Listener, Wakes
from rota.db.migrate import migrate
from rota.db.pool import Database
from support.databases import database
from support.house import Clock, House
from support.rota_process import MADE_HOMES
from support.work_units import WorkUnits, unit_rank

# Generated cases are the same every time, so that a change is judged by what it did; `make soak` draws new ones.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.register_profile("anew", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("same")

MEMORY, ROOM = Path("/dev/shm"), 3_000_000_000
TEMPORARY, MADE = pytest.StashKey[str](), pytest.StashKey[str]()
TEMPLATE = f"rota_template_{os.getpid()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, so that short ones are left to even out the ends of the test workers."""
    items.sort(key=lambda item: unit_rank(item.nodeid))


def pytest_collection(session: pytest.Session) -> None:
    """Collecting tests makes hundreds of thousands of objects that stay: looking for garbage among them is futile."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection: they live until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WorkUnits:
    return WorkUnits(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # whoever runs out of time is stopped in order, and its PostgreSQL with it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        os.environ[MADE_HOMES] = config.stash[MADE] = tempfile.mkdtemp(prefix="rota-made-")
        Path(config.stash[MADE]).chmod(0o711)  # root's PostgreSQL runs as another user
    # Who was started in the background does not hear Ctrl-C, nor would what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.option.basetemp:  # not in /dev/shm: an agent in a sandbox has one of its own
        config.option.basetemp = config.stash[TEMPORARY] = tempfile.mkdtemp(prefix="rota-test-")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Save what `make coverage` measured. A test worker that takes ten seconds to exit is killed once it has said that it is done."""
    if (coverage := sys.modules.get("coverage")) and (measured := coverage.Coverage.current()):
        measured.save()


def pytest_unconfigure(config: pytest.Config) -> None:
    for key in (TEMPORARY, MADE):
        shutil.rmtree(config.stash.get(key, ""), ignore_errors=True)


def in_memory() -> Path | None:
    """Where copying a database takes a tenth of the time, if there is room. None: where temporary files are kept."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM else None


@pytest.fixture(scope="session", autouse=True)
def _cheap_password_hashing() -> Iterator[None]:
    """Hash passwords in microseconds. `test_sign_in.py` tests the real parameters."""
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passwords, "_hasher", lambda: hasher)
        yield


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The server: the one given by ROTA_TEST_DATABASE_URL, or an embedded one that ends with the tests."""
    if given := os.environ.get("ROTA_TEST_DATABASE_URL"):
        yield given
        return
    home = Path(tempfile.mkdtemp(prefix="rota-test-", dir=in_memory()))
    with EmbeddedPostgres(home) as postgres:
        url = postgres.owner_url
        with psycopg.connect(
            url, autocommit=True
        ) as conn:  # no test cuts the power, and every new database is hundreds of files
            conn.execute("ALTER SYSTEM SET fsync = off")
            conn.execute("SELECT pg_reload_conf()")
        yield url
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """A migrated database that each test's own is copied from."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {TEMPLATE}")
        asyncio.run(migrate(make_conninfo(server_url, dbname=TEMPLATE)))
        yield TEMPLATE
        conn.execute(f"DROP DATABASE {TEMPLATE} WITH (FORCE)")


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database with nothing in it."""
    yield from database(server_url, "template0")


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    yield from database(server_url, template)


@pytest.fixture(scope="module")
def database_of_module(server_url: str, template: str) -> Iterator[str]:
    """A migrated database that the tests of a module share."""
    yield from database(server_url, template)


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def listener(database_url: str) -> AsyncIterator[Listener]:
    """A listener that is connected."""
    listening = Listener(database_url)
    connected = asyncio.Event()
    listening.on("rota_test_connected", lambda _: connected.set())
    task = asyncio.create_task(listening.run())
    await connected.wait()
    yield listening
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def wakes(db: Database, listener: Listener) -> AsyncIterator[Wakes]:
    sender = Wakes(db, listener)
    yield sender
    await sender.close()


@pytest.fixture
async def house(db: Database) -> House:
    return await House.build(db)


@pytest.fixture
def clock() -> Clock:
    return Clock()
