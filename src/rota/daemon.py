"""The composition root: which parts run in this process, in which order they start, and how they stop."""

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psycopg

from rota import home as home_directory
from rota import tracing
from rota.access import sealing
from rota.access.vault import Vault
from rota.db import isolation
from rota.db.embedded import EmbeddedPostgres, of_another
from rota.db.listener import OUTWARD, SCHEMA, TRIGGERS, Listener, Wakes
from rota.db.migrate import migrate
from rota.db.pool import Database, must_be_url
from rota.errors import Broken, BrokeOff, Busy, CannotStart, DatabaseAway, NotYet
from rota.hiding import hide
from rota.model.address import AllowList
from rota.notify.outward import Outward
from rota.open_files import open_many_files
from rota.scheduler.tick import Scheduler
from rota.service import Loop, Service, keep_for_good, look_for_cycles_rarely
from rota.sessions.artifacts import Depot
from rota.settings import Settings, secret_variables
from rota.watch.directories import PruneDirectories
from rota.watch.outdated import Outdated
from rota.watch.prune import Prune, PruneArtifacts, PruneRuns
from rota.watch.remind import Remind
from rota.watch.rescue import Rescue
from rota.watch.snapshot import Snapshot
from rota.watch.tally import Tally
from rota.worker import choose_sandbox, hire

log = logging.getLogger(__name__)

# In this order they start; they stop in the reverse one, so that agents at work still reach the API.
PARTS = ("api", "watch", "scheduler", "worker")
EMBEDDED_CHECK = timedelta(seconds=2)
AWAY_CHECK = timedelta(seconds=1)
LAST_MESSAGES_SECONDS = 3.0  # for messages to people that are on their way; the next watch sends them again
AWAY = (DatabaseAway, psycopg.OperationalError, psycopg.InterfaceError, Busy)

T = TypeVar("T")


class End:
    """A process stops in order when a signal asks it to, or when it cannot go on: then it says why at the end."""

    def __init__(self) -> None:
        self.asked, self.hurry = asyncio.Event(), asyncio.Event()
        self.reason: Broken | None = None

    def catch_signals(self) -> None:
        # A closed terminal stops it too, unless it was started to outlive the terminal (nohup).
        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        for each in (signal.SIGINT, signal.SIGTERM, *hangup):
            asyncio.get_running_loop().add_signal_handler(each, self._signalled)

    def _signalled(self) -> None:
        """The first signal stops in order; a second one hurries."""
        if self.asked.is_set():
            self.hurry.set()
        self.asked.set()

    def give_up(self, reason: Broken) -> None:
        if not self.reason:
            log.error("rota.gave_up", extra={"error": reason.message})
        self.reason = self.reason or reason
        self.asked.set()


@dataclass(frozen=True, slots=True)
class Ready:
    """What a process has once its database stands and is up to date."""

    settings: Settings
    db: Database
    listener: Listener
    wakes: Wakes
    vault: Vault
    url: str
    listening: socket.socket | None = None
    end: End = field(default_factory=End)


async def serve(
    settings: Settings,
    parts: Sequence[str] = PARTS,
    *,
    started: Callable[[Ready], Awaitable[None]] | None = None,
) -> None:
    """Run parts of Rota until a signal asks to stop. `started` is called when everything answers."""
    look_for_cycles_rarely()
    open_many_files()
    hide(secret_variables())
    _refuse_nonsense(settings)
    end = End()
    end.catch_signals()
    async with AsyncExitStack() as stack:
        stack.enter_context(_starting_again_helps())
        tracing.set_up()
        stack.push_async_callback(asyncio.to_thread, tracing.shut_down)
        listening = (
            stack.enter_context(contextlib.closing(bind(settings.host, settings.port))) if "api" in parts else None
        )
        patience = Patience(settings.database_wait_seconds, end.asked)
        with contextlib.suppress(StoppedEarly):
            db, settings = await stack.enter_async_context(database(settings, patience))
            ready = await stack.enter_async_context(make_ready(settings, db, listening, end, patience))
            for part in PARTS:
                if part in parts and not end.asked.is_set():
                    await stack.enter_async_context(_START[part](ready))
            keep_for_good()
            log.info("rota.started", extra={"parts": ",".join(parts), "url": ready.url})
            if started:
                await patience.reach(lambda: started(ready))
            await end.asked.wait()
        log.info("rota.stopping")
    log.info("rota.stopped")
    if end.reason:
        raise end.reason


@contextmanager
def _starting_again_helps() -> Iterator[None]:
    """What only came too early ends with the code after which whoever started this process does so again."""
    try:
        yield
    except NotYet as early:
        raise BrokeOff(early.message, code=early.code, field=early.field) from None


def _refuse_nonsense(settings: Settings) -> None:
    """What only a part of Rota would read, and perhaps days later."""
    if settings.listen_url:
        must_be_url(settings.listen_url, field="ROTA_LISTEN_URL")
    AllowList(settings.http_allow, setting="ROTA_HTTP_ALLOW")
    AllowList(settings.notify_allow, setting="ROTA_NOTIFY_ALLOW")


class StoppedEarly(Exception):
    """A signal came before everything had started."""


class Patience:
    """Who starts everything at once, or restarts the database, need not know in which order things come up: what needs
    the database is tried again while that is away, until the time for starting is over. A signal ends it at once, also
    while the database lets us wait: for a lock, or for who brings the schema up to date."""

    def __init__(self, span: timedelta, stop: asyncio.Event, *, pause: timedelta = AWAY_CHECK) -> None:
        """Try for `span`, with a pause between two tries, until `stop` is set."""
        self._deadline = time.monotonic() + span.total_seconds()
        self._stop = stop
        self._pause = pause.total_seconds()

    async def reach(self, step: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await self._unless_stopped(step)
            except AWAY as failure:
                told = failure if isinstance(failure, DatabaseAway) else _went_away(failure)
            if self._stop.is_set():
                raise StoppedEarly
            if time.monotonic() >= self._deadline:
                raise told
            log.warning("database.away", extra={"error": told.message})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self._pause)

    async def _unless_stopped(self, step: Callable[[], Awaitable[T]]) -> T:
        doing, stopped = asyncio.ensure_future(step()), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            raise StoppedEarly
        finally:
            for each in (doing, stopped):
                each.cancel()
            await asyncio.gather(doing, stopped, return_exceptions=True)

    async def join(self, embedded: EmbeddedPostgres) -> str:
        """The URL of the embedded server, once it answers."""
        stopped = asyncio.create_task(self._give_up_with(embedded))
        try:
            return await asyncio.to_thread(embedded.start)
        except CannotStart:
            if self._stop.is_set():
                raise StoppedEarly from None
            raise
        finally:
            await _end(stopped)

    async def _give_up_with(self, embedded: EmbeddedPostgres) -> None:
        await self._stop.wait()
        embedded.give_up()


def _went_away(failure: Exception) -> DatabaseAway:
    return DatabaseAway(f"The database went away while Rota started: {str(failure).strip()}", field="ROTA_DATABASE_URL")


@asynccontextmanager
async def server(settings: Settings, patience: Patience | None = None) -> AsyncIterator[tuple[Settings, str]]:
    """The settings with the URL of the database, and its URL for the owner of the tables. Starts the embedded server if
    no other is set."""
    if settings.database_url:
        with contextlib.suppress(OSError):  # it is not there, or not ours: whatever needs it says so
            await asyncio.to_thread(home_directory.tighten, settings.home)
        yield settings, settings.database_url
        return
    async with AsyncExitStack() as stack:
        embedded = EmbeddedPostgres(settings.home)
        url = await (patience.join(embedded) if patience else asyncio.to_thread(embedded.start))
        stack.push_async_callback(asyncio.to_thread, embedded.stop)
        stack.push_async_callback(_end, asyncio.create_task(keep_running(embedded)))
        yield replace(settings, database_url=url), embedded.owner_url


@asynccontextmanager
async def database(
    settings: Settings, patience: Patience | None = None, *, as_it_is: bool = False
) -> AsyncIterator[tuple[Database, Settings]]:
    """Reach the database, starting the embedded one if none is given, and bring its schema up to date; or only look at
    it `as_it_is`."""
    async with AsyncExitStack() as stack:
        settings, owner_url = await stack.enter_async_context(server(settings, patience))
        db = Database(
            settings.database_url,
            size=settings.pool_size,
            prepared=settings.prepared_statements,
            answer=settings.timeouts.answer,
        )
        stack.push_async_callback(db.close)
        if as_it_is:
            await db.open()
        elif patience:
            await patience.reach(lambda: _open(db, owner_url))
        else:
            await _open(db, owner_url)
        yield db, settings


async def _open(db: Database, owner_url: str) -> None:
    await db.open()
    await migrate(owner_url)


async def keep_running(embedded: EmbeddedPostgres, *, every: timedelta = EMBEDDED_CHECK) -> None:
    """Start the embedded server again if it was killed."""
    while True:
        await asyncio.sleep(every.total_seconds())
        try:
            await asyncio.to_thread(embedded.ensure_running)
        except Exception as failure:  # the top of a loop: a look that failed, for want of a thread too, is not the last
            log.warning("postgres.down", extra={"error": f"{type(failure).__name__}: {failure}"})


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def make_ready(
    settings: Settings, db: Database, listening: socket.socket | None, end: End, patience: Patience
) -> AsyncIterator[Ready]:
    """Open the vault and listen for notifications: what every part needs of a database that is up to date."""

    async def open_vault() -> Vault:
        async with db.connection() as conn:
            await isolation.role_of(db, conn)  # kept by the database for `check_row_level_security` and every request
            return await sealing.open_for(conn, settings.home, settings.vault_keys)

    vault = await patience.reach(open_vault)
    listener = Listener(settings.listen_url or settings.database_url, answer=settings.timeouts.answer)
    wakes = Wakes(db, listener)
    task = asyncio.create_task(listener.run())
    try:
        async with (
            _looping(Outdated(db, end.give_up)) as (looking,),
            listener.subscribed(SCHEMA, lambda _: looking.wake()),
        ):
            yield Ready(settings, db, listener, wakes, vault, address(settings, listening), listening, end)
    finally:
        await wakes.close()
        await _end(task)


@asynccontextmanager
async def _looping(*services: Service) -> AsyncIterator[Sequence[Loop]]:
    """They stop together: while the database is away each takes a while to notice that it has to."""
    loops = [Loop(each) for each in services]
    tasks = [asyncio.create_task(each.run()) for each in loops]
    try:
        yield loops
    finally:
        for each in loops:
            each.stop()
        await asyncio.gather(*tasks)


@asynccontextmanager
async def _scheduler(ready: Ready) -> AsyncIterator[None]:
    settings = ready.settings
    scheduler = Scheduler(
        ready.db,
        ready.wakes,
        tick=settings.tick_seconds,
        jitter_threshold=settings.jitter_threshold,
        max_jitter=settings.max_jitter,
    )
    async with _looping(scheduler) as (loop,), ready.listener.subscribed(TRIGGERS, lambda _: loop.wake()):
        yield


@asynccontextmanager
async def send_outward(outward: Outward, *, lets_go_after: float) -> AsyncIterator[Loop]:
    """It waits for the services of others, and is cut off when those do not answer soon."""
    try:
        async with _looping(outward) as (loop,):
            outward.attach(loop)
            yield loop
    finally:
        await outward.drain(lets_go_after)


@asynccontextmanager
async def _watch(ready: Ready) -> AsyncIterator[None]:
    settings = ready.settings
    depot = Depot(ready.db, settings.home, settings.artifacts_url, largest=settings.max_artifact_bytes)
    outward = Outward(ready.db, ready.vault, url=ready.url, allow=settings.notify_allow)
    keep_runs = settings.keep_runs_days and max(settings.keep_runs_days, settings.keep_events_days)
    async with (
        send_outward(outward, lets_go_after=LAST_MESSAGES_SECONDS) as sending,
        ready.listener.subscribed(OUTWARD, lambda _: sending.wake()),
        _looping(
            Rescue(ready.db, ready.wakes, every=settings.rescue_seconds),
            Snapshot(ready.db, every=settings.snapshot_seconds, dead_after=settings.timeouts.dead),
            Remind(ready.db),
            Tally(ready.db),
            PruneArtifacts(ready.db, depot, keep=settings.keep_artifacts_days),
            Prune(
                ready.db,
                keep_events=settings.keep_events_days,
                keep_snapshots=settings.keep_snapshots_days,
                keep_audit=settings.keep_audit_days,
                keep_notifications=settings.keep_notifications_days,
            ),
            *([PruneRuns(ready.db, keep=keep_runs)] if keep_runs else []),
        ),
    ):
        yield


@asynccontextmanager
async def _worker(ready: Ready) -> AsyncIterator[None]:
    with contextlib.suppress(OSError):  # a worker whose agents run elsewhere needs no files
        for each in (ready.settings.home, ready.settings.home / "sessions"):
            home_directory.create(each)
    async with AsyncExitStack() as stack:
        sandbox = await asyncio.to_thread(choose_sandbox, ready.settings)
        log.info("worker.sandbox", extra={"sandbox": sandbox.name, "detail": sandbox.detail})
        worker, lease, recorder = hire(
            ready.settings, ready.db, ready.wakes, ready.vault, url=ready.url, sandbox=sandbox
        )
        stack.push_async_callback(_end, asyncio.create_task(recorder.run()))
        await stack.enter_async_context(_looping(lease))
        stack.push_async_callback(lease.leave)
        await stack.enter_async_context(_looping(worker.abandon))
        directories = PruneDirectories(ready.db, ready.settings.home, keep=ready.settings.keep_directories_days)
        await stack.enter_async_context(_looping(directories))
        [loop] = await stack.enter_async_context(_looping(worker))
        worker.listen(ready.listener, loop)
        stack.push_async_callback(worker.drain, ready.settings.grace_seconds, ready.end.hurry)
        yield


@asynccontextmanager
async def _api(ready: Ready) -> AsyncIterator[None]:
    from rota.http.app import create_app  # noqa: PLC0415 — a worker without the API never loads the web framework
    from rota.http.context import Web  # noqa: PLC0415
    from rota.http.server import create_server  # noqa: PLC0415

    assert ready.listening
    check_row_level_security(ready)
    web = Web(ready.db, ready.wakes, ready.listener, ready.settings, ready.vault, ready.url)
    server = create_server(create_app(web), ready.settings)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign] # signals are ours
    serving = asyncio.create_task(server.serve(sockets=[ready.listening]))
    while not server.started and not serving.done():  # noqa: ASYNC110 — uvicorn has no event for it
        await asyncio.sleep(0.005)
    if serving.done():
        raise _broke_off(serving)

    def ended(task: "asyncio.Task[None]") -> None:
        if not server.should_exit:  # else it was asked to
            ready.end.give_up(_broke_off(task))

    serving.add_done_callback(ended)
    try:
        yield
    finally:
        web.closing.set()
        server.should_exit = True
        if not serving.done():
            await serving


def _broke_off(serving: "asyncio.Task[None]") -> BrokeOff:
    failure = serving.exception()
    why = f" with {type(failure).__name__}: {failure}" if failure else ""
    return BrokeOff(f"The HTTP server ended by itself{why}. Everything else was stopped in order; start Rota again.")


def check_row_level_security(ready: Ready) -> None:
    """Say so if the database does not keep workspaces apart for the API; refuse if it must."""
    role = ready.db.api_role
    if not role and ready.settings.require_rls:
        raise CannotStart(
            "ROTA_REQUIRE_RLS is on, but this database has no role for the API. `rota doctor` says how to make it.",
            code="rls_required",
            field="ROTA_REQUIRE_RLS",
        )
    if not role:
        log.warning("rls.off")


_START = {"api": _api, "watch": _watch, "scheduler": _scheduler, "worker": _worker}


def bind(host: str, port: int) -> socket.socket:
    """Take the port now, so that a clash is told before anything else starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, since asyncio sends at once only where it reads TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a reader who takes nothing for so long is cut off
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except (OSError, OverflowError, UnicodeError, TypeError) as failure:  # the last two: a name that is no name
        listening.close()
        raise CannotStart(_bind_error(failure, host, port), code="cannot_listen", field="port") from None
    return listening


def _bind_error(failure: Exception, host: str, port: int) -> str:
    match getattr(failure, "errno", None):
        case errno.EADDRINUSE:
            return (
                f"Port {port} on {host} is in use by another program. Choose another with --port; 0 takes any free one."
            )
        case errno.EACCES:
            return f"Port {port} is reserved for the system. Choose one above 1023 with --port."
        case _:
            return f"Cannot listen on {host}, port {port}: {failure}. Choose another address with --host."


def address(settings: Settings, listening: socket.socket | None) -> str:
    """How browsers and agents on this machine reach this process."""
    if settings.url:
        return settings.url.rstrip("/")
    port = listening.getsockname()[1] if listening else settings.port
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # nosec B104 # noqa: S104 — compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def only_one(home: Path) -> Iterator[Callable[[str], None]]:
    """Hold the home for one `rota up`; a second one is told where the first answers. Yields how to say where."""
    try:
        home_directory.create(home)
        handle = os.open(home / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as failure:
        raise _unusable(home, failure) from None
    with os.fdopen(handle, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(_runs_already(file.read(), home), code="already_running") from None

        def say(url: str) -> None:
            try:
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps({"url": url, "pid": os.getpid()}).encode(), 0)
            except OSError as failure:
                raise _unusable(home, failure) from None

        yield say


def _unusable(home: Path, failure: OSError) -> CannotStart:
    return CannotStart(
        f"Cannot use {home} as Rota's home: {failure.strerror}.{of_another(home)} Choose another with --home.",
        field="home",
    )


def _runs_already(told: str, home: Path) -> str:
    try:
        first = json.loads(told)
        where = f"{first['url']} (process {first['pid']})"
        return f"Rota already runs on {home}: {where}. Stop it first, or choose another --home."
    except (ValueError, KeyError):
        return f"Rota is just starting on {home}. Wait for it, or choose another --home."
