"""A process that starts before its database, or loses it while it starts: it waits for one that may come, and not for one
that never lets it in."""

import asyncio
import fcntl
import logging
import os
import pwd
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from rota import daemon
from rota.db import migrate, pool
from rota.db.embedded import EmbeddedPostgres
from rota.errors import BrokeOff, CannotStart, DatabaseAway, NotYet
from rota.settings import read_settings
from support.postgres_proxy import Proxy
from support.waiting import until

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


async def _reach(url: str, span: timedelta, stop: asyncio.Event | None = None) -> None:
    pause = timedelta(seconds=0.05)
    await daemon.Patience(span, stop or asyncio.Event(), pause=pause).reach(lambda: pool.check(url))


async def test_a_start_waits_for_a_database_that_comes_later(
    database_url: str, url: str, port: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def told() -> bool:
        return "database.away" in caplog.messages

    starting = asyncio.create_task(_reach(url, MINUTE))
    await until(told)
    async with Proxy(database_url).open(database_url, at=port), asyncio.timeout(20):
        await starting


async def test_its_patience_ends_and_a_signal_ends_it_at_once(url: str) -> None:
    with pytest.raises(DatabaseAway, match=r"127\.0\.0\.1"):
        await _reach(url, timedelta())
    stop = asyncio.Event()
    waiting = asyncio.create_task(_reach(url, MINUTE, stop))
    stop.set()
    async with asyncio.timeout(20):
        with pytest.raises(daemon.StoppedEarly):
            await waiting


async def test_a_signal_ends_a_start_that_waits_for_who_brings_the_schema_up_to_date(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in ("hide", "look_for_cycles_rarely"):  # of the whole process, which is the test's here
        monkeypatch.setattr(daemon, change, lambda *_: None)
    caplog.set_level(logging.INFO)
    settings = read_settings({"ROTA_HOME": str(tmp_path), "ROTA_DATABASE_URL": database_url})
    async with await psycopg.AsyncConnection.connect(database_url) as other:
        await other.execute("SELECT pg_advisory_xact_lock(%s)", [migrate.LOCK])

        async def waits() -> bool:
            rows = await other.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            return await rows.fetchone() == (1,)

        starting = asyncio.create_task(daemon.serve(settings, ["scheduler"]))
        async with asyncio.timeout(20):
            await until(waits)
            signal.raise_signal(signal.SIGTERM)
            await starting
    assert caplog.messages == ["rota.stopping", "rota.stopped"]


async def test_the_embedded_server_is_looked_after_however_a_look_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looked = asyncio.Event()

    class Embedded(EmbeddedPostgres):
        def ensure_running(self) -> None:
            loop.call_soon_threadsafe(looked.set)

    async def told() -> bool:
        return "postgres.down" in caplog.messages

    loop = asyncio.get_running_loop()
    before = threading.stack_size(2**47)  # more than there are addresses: no thread can be started
    looking = asyncio.create_task(daemon.keep_running(Embedded(tmp_path), every=timedelta(seconds=0.01)))
    try:
        await until(told)
        threading.stack_size(before)
        async with asyncio.timeout(20):
            await looked.wait()
    finally:
        threading.stack_size(before)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def test_who_came_too_early_ends_with_the_code_for_starting_again(
    database_url: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in ("hide", "look_for_cycles_rarely"):
        monkeypatch.setattr(daemon, change, lambda *_: None)
    given = {"ROTA_HOME": str(tmp_path), "ROTA_DATABASE_WAIT_SECONDS": "0.001"}
    with pytest.raises(BrokeOff, match=r"127\.0\.0\.1"):
        await daemon.serve(read_settings({**given, "ROTA_DATABASE_URL": url}), ["scheduler"])

    async def find_it_locked(_: str) -> None:
        raise NotYet("Somebody holds a table.", code="schema_locked")

    monkeypatch.setattr(daemon, "migrate", find_it_locked)
    with pytest.raises(BrokeOff, match="holds a table") as refused:
        await daemon.serve(read_settings({**given, "ROTA_DATABASE_URL": database_url}), ["scheduler"])
    assert refused.value.code == "schema_locked"


async def test_a_signal_ends_a_start_that_waits_for_who_starts_the_embedded_server(tmp_path: Path) -> None:
    stop = asyncio.Event()
    (tmp_path / "postgres.start.lock").touch()
    with (tmp_path / "postgres.start.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        embedded = EmbeddedPostgres(tmp_path)
        starting = asyncio.create_task(daemon.Patience(MINUTE, stop).join(embedded))
        stop.set()
        async with asyncio.timeout(20):
            with pytest.raises(daemon.StoppedEarly):
                await starting
    assert not (tmp_path / "postgres").exists()


async def test_a_database_that_is_not_there_at_all_is_not_waited_for(database_url: str) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(CannotStart, match="does not exist") as refused:
            await _reach(make_conninfo(database_url, dbname="nothing"), MINUTE)
    assert not isinstance(refused.value, DatabaseAway)


@pytest.mark.parametrize("said", [b"SELECT number FROM migrations", b"rolbypassrls", b"PARTITION BY key_id"])
async def test_a_start_that_loses_the_database_on_its_way_goes_on(
    said: bytes, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Long after it answered for the first time: while the schema is looked at, or the role of the API, or the vault."""
    proxy = Proxy(database_url)
    proxy.cut_off_at(said)
    async with proxy.open(database_url) as url, asyncio.timeout(60):
        settings = read_settings({"ROTA_HOME": str(tmp_path), "ROTA_DATABASE_URL": url})
        patience = daemon.Patience(MINUTE, asyncio.Event(), pause=timedelta(seconds=0.01))
        async with (
            daemon.database(settings, patience) as (db, settings),
            daemon.make_ready(settings, db, None, daemon.End(), patience),
        ):
            assert (proxy.lost, caplog.messages.count("database.away")) == (1, 1)


@pytest.mark.parametrize(
    ("told", "passes"),
    [
        ("connection refused", True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  the database system is not yet accepting connections", True),
        ("FATAL:  the database system is in recovery mode", True),
        ("FATAL:  sorry, too many clients already", True),
        ("FATAL:  remaining connection slots are reserved for non-replication superuser connections", True),
        ('FATAL:  remaining connection slots are reserved for roles with the "SUPERUSER" attribute', True),
        ("FATAL:  terminating connection due to administrator command", True),
        ('FATAL:  password authentication failed for user "ada"', False),
    ],
)
def test_what_may_pass(told: str, passes: bool) -> None:
    assert pool.passes(psycopg.OperationalError(told)) is passes


async def test_an_answer_is_sent_at_once() -> None:
    """Otherwise the second half of an answer waits until the client has acknowledged the first: forty milliseconds."""
    sends_at_once: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        sends_at_once.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = daemon.bind("127.0.0.1", 0)
    async with await asyncio.start_server(accept, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await sends_at_once
        writer.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_who_may_not_use_a_home_is_told_whose_it_is() -> None:
    with tempfile.TemporaryDirectory() as directory, daemon.only_one(Path(directory)):
        home = Path(directory)
        home.chmod(0o755)
        (home / "postgres.start.lock").touch(0o600)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        try:
            with pytest.raises(CannotStart, match=r"denied\. It belongs to root: start Rota as"), daemon.only_one(home):
                pass
            with pytest.raises(CannotStart, match=r"lock\)\. It belongs to root: start Rota as"):
                EmbeddedPostgres(home).start()
        finally:
            os.seteuid(0)
