"""Databases to back up and to restore into, each of an owner of its own who is no superuser."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import psycopg
import pytest

from rota.backup.archive import Manifest, Reader
from rota.backup.making import Progress, back_up
from rota.backup.restoring import examine, restore
from rota.db.migrate import migrate, migrations
from rota.settings import Settings
from support.databases import owned_database
from support.lived_in import Rows, live_in, rows

owned = contextmanager(owned_database)


def silent(*_: object) -> nullcontext[Callable[[int], None]]:
    """No progress is shown."""
    return nullcontext(lambda _: None)


def contents_of(url: str) -> Rows:
    """Every row of every table, in an order that does not depend on where it is stored."""
    with psycopg.connect(url) as conn:
        return {table: sorted(found, key=repr) for table, found in rows(conn).items()}


def tables_in(url: str) -> int:
    with psycopg.connect(url) as conn:
        return conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchall()[0][0]  # type: ignore[no-any-return]


class Place:
    """A home and a database of its own."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url, home
        self.settings = Settings(home=home, database_url=url)

    async def back_up(self, file: Path, *, with_keys: bool = False, progress: Progress = silent) -> Manifest:
        return await back_up(self.settings, self.url, file, with_keys=with_keys, progress=progress)

    async def restore(self, file: Path) -> set[str]:
        with Reader.of(file) as reader:
            keys = examine(self.settings, reader)
            return await restore(self.settings, self.url, reader, keys, progress=silent)


@pytest.fixture(scope="module")
def lived_in(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A database with rows in every table, which the tests of a module only read."""
    with owned(server_url, "CREATEROLE") as url:
        live_in(url, migrations())
        asyncio.run(migrate(url))
        yield Place(url, tmp_path_factory.mktemp("old") / "home")


@pytest.fixture
def empty(server_url: str, tmp_path: Path) -> Iterator[Place]:
    """Where to restore."""
    with ExitStack() as stack:
        yield Place(stack.enter_context(owned(server_url, "CREATEROLE")), tmp_path / "new")
