"""A process that starts before its database: it waits for one that may come, and not for one that never lets it in."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from faults.proxy import Proxy
from psycopg.conninfo import make_conninfo
from waiting import until

from rota import daemon
from rota.db import pool
from rota.errors import CannotStart, DatabaseAway

MINUTE = timedelta(minutes=1)


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port on which nobody listens yet, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


@pytest.fixture
def url(database_url: str, port: socket.socket) -> str:
    return make_conninfo(database_url, host="127.0.0.1", port=port.getsockname()[1])


async def test_a_start_waits_for_a_database_that_comes_later(
    database_url: str, url: str, port: socket.socket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "AWAY_CHECK_SECONDS", 0.05)
    caplog.set_level(logging.WARNING)

    async def told() -> bool:
        return "database.away" in caplog.messages

    starting = asyncio.create_task(daemon._wait_for(url, MINUTE, asyncio.Event()))
    await until(told)
    proxy = Proxy(database_url)
    async with await asyncio.start_server(proxy._accept, sock=port), asyncio.timeout(20):
        await starting
        await asyncio.gather(*proxy._links, return_exceptions=True)


async def test_its_patience_ends_and_a_signal_ends_it_at_once(url: str) -> None:
    with pytest.raises(DatabaseAway, match=r"127\.0\.0\.1"):
        await daemon._wait_for(url, timedelta(), asyncio.Event())
    stop = asyncio.Event()
    waiting = asyncio.create_task(daemon._wait_for(url, MINUTE, stop))
    stop.set()
    async with asyncio.timeout(20):
        with pytest.raises(DatabaseAway):
            await waiting


async def test_a_database_that_is_not_there_at_all_is_not_waited_for(database_url: str) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(CannotStart, match="does not exist") as refused:
            await daemon._wait_for(make_conninfo(database_url, dbname="nothing"), MINUTE, asyncio.Event())
    assert not isinstance(refused.value, DatabaseAway)


@pytest.mark.parametrize(
    ("told", "passes"),
    [
        ("connection refused", True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  the database system is not yet accepting connections", True),
        ("FATAL:  sorry, too many clients already", True),
        ('FATAL:  password authentication failed for user "ada"', False),
    ],
)
def test_what_may_pass(told: str, passes: bool) -> None:
    assert pool._passes(psycopg.OperationalError(told)) is passes
