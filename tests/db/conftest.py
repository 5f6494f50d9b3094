"""A home with an embedded PostgreSQL for each test that starts one itself."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rota.db.embedded import EmbeddedPostgres
from support.embedded_homes import User, assert_no_process_left, copy, directory_in_memory


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A home with a cluster, to copy instead of running initdb for every test."""
    with directory_in_memory() as directory:
        with EmbeddedPostgres(directory / "home"):
            pass
        (directory / "home" / "postgres.log").unlink()
        yield directory / "home"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that nobody else can enter; root's server neither."""
    with directory_in_memory() as directory:
        yield directory
        assert_no_process_left(directory)


@pytest.fixture
def new_home(place: Path) -> Path:
    return place / "home"


@pytest.fixture
def home(new_home: Path, made: Path) -> Path:
    return copy(made, new_home)


@pytest.fixture
def user(new_home: Path) -> Iterator[Callable[..., User]]:
    with ExitStack() as stack:

        def start(where: Path = new_home, **options: Any) -> User:
            user = User(where, **options)
            stack.callback(user.close)
            return user

        yield start


@pytest.fixture
def open_directory(place: Path) -> Path:
    place.chmod(0o777)
    return place


@pytest.fixture
def server(home: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(home) as server:
        yield server
