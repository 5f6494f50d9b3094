"""The embedded PostgreSQL, with real processes and real signals."""

import fcntl
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from rota.db import embedded, privileges
from rota.db.embedded import EmbeddedPostgres, Limits
from rota.errors import CannotStart, NotYet
from support.embedded_homes import (
    ROOT,
    User,
    copy,
    eventually,
    execute,
    is_locked,
    kill,
    needs_proc,
    needs_root,
    postmaster,
    postmasters,
    processes_of,
    query,
)

# Starting and stopping


def test_a_first_start_makes_the_database_and_the_next_one_finds_it(new_home: Path) -> None:
    with EmbeddedPostgres(new_home) as server:
        execute(server.owner_url, "CREATE TABLE kept AS SELECT 1 AS n")
    with EmbeddedPostgres(new_home) as server:
        assert query(server.start(), "TABLE kept") == [(1,)]


def seconds_to_start(home: Path) -> float:
    began = time.monotonic()
    with EmbeddedPostgres(home):
        return time.monotonic() - began


def test_a_first_start_takes_under_three_seconds_and_the_next_under_one(place: Path) -> None:
    homes = [place / str(number) for number in range(3)]
    first = min(seconds_to_start(home) for home in homes)
    later = min(seconds_to_start(home) for home in homes)
    if (first > 3 or later > 1) and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip(f"this machine is too busy to measure: {first:.1f} s and {later:.1f} s")
    assert first < 3
    assert later < 1


def test_the_database_is_durable_and_speaks_utf8_in_a_locale_that_never_changes(
    server: EmbeddedPostgres,
) -> None:
    url = server.start()
    assert query(url, "SELECT current_user::text, current_database()::text") == [("rota_app", "rota")]
    assert query(
        url,
        "SELECT pg_encoding_to_char(encoding)::text, datlocprovider::text, datlocale, datcollate"
        " FROM pg_database WHERE datname = 'rota'",
    ) == [("UTF8", "b", "C.UTF-8", "C")]
    settings = dict(query(url, "SELECT name, setting FROM pg_settings"))
    for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums", "autovacuum"):
        assert settings[name] == "on"
    assert (settings["jit"], settings["max_connections"], settings["max_wal_size"]) == ("off", "100", "2048")
    sixteenth = psutil.virtual_memory().total // 16 // 2**20
    assert int(settings["shared_buffers"]) * 8 // 1024 == min(max(sixteenth, 128), 512)


def test_starting_again_and_stopping_again_change_nothing(home: Path) -> None:
    server = EmbeddedPostgres(home)
    server.stop()
    url = server.start()
    pid = postmaster(home)
    assert server.start() == url
    assert postmaster(home) == pid
    server.stop()
    server.stop()
    server.ensure_running()
    assert postmasters(home) == []
    assert server.start() == url
    server.stop()


def test_nobody_else_reaches_the_server(server: EmbeddedPostgres) -> None:
    [(sockets,)] = query(server.owner_url, "SHOW unix_socket_directories")
    assert stat.S_IMODE(Path(sockets.strip('"')).stat().st_mode) == 0o700
    assert query(server.start(), "SHOW listen_addresses") == [("",)]
    rules = query(server.owner_url, "SELECT type, database, user_name, auth_method FROM pg_hba_file_rules")
    assert rules == [("local", ["all"], ["all"], "scram-sha-256")]


def test_the_callers_own_postgres_environment_does_not_matter(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGPORT": "9",
        "PGDATA": "/nowhere",
        "PGHOST": "nowhere",
        "PGPASSWORD": "another",
        "LC_ALL": "xx_YY",
    }.items():
        monkeypatch.setenv(name, value)
    with EmbeddedPostgres(home) as server:
        assert query(server.start(), "SELECT 1") == [(1,)]


@needs_proc
def test_the_server_inherits_neither_files_nor_secrets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_SECRET", "hush")
    with tempfile.TemporaryFile() as ours:
        os.set_inheritable(ours.fileno(), True)
        with EmbeddedPostgres(home):
            process = Path("/proc", str(postmaster(home)))
            held = {(file.stat().st_dev, file.stat().st_ino) for file in (process / "fd").iterdir() if file.exists()}
            forbidden = [os.fstat(ours.fileno()), *(lock.stat() for lock in home.glob("*.lock"))]
            assert len(forbidden) == 3
            assert not held & {(file.st_dev, file.st_ino) for file in forbidden}
            assert b"hush" not in (process / "environ").read_bytes()


def test_a_relative_home_stays_where_it_was(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.parent)
    server = EmbeddedPostgres(Path("home"))
    monkeypatch.chdir("/")
    with server:
        assert postmaster(home)


# Several processes, one server


def test_six_processes_starting_at_once_on_an_empty_directory_share_one_server(
    new_home: Path, user: Callable[..., User]
) -> None:
    users = [user() for _ in range(6)]
    for each in users:
        each.send("start")
    assert len({each.answer() for each in users}) == 1
    assert postmaster(new_home)
    assert (new_home / "postgres.log").read_text().count("starting PostgreSQL") == 1
    for each in users:
        assert postmaster(new_home)
        each.do("stop")
    assert postmasters(new_home) == []


def test_only_the_last_user_stops_the_server(home: Path, user: Callable[..., User]) -> None:
    first, second = user(), user()
    first.do("start")
    url = second.do("start")
    first.do("stop")
    assert query(url, "SELECT 1") == [(1,)]
    second.do("stop")
    assert postmasters(home) == []
    assert "database system is shut down" in (home / "postgres.log").read_text()


def test_the_others_go_on_when_the_process_that_started_the_server_is_killed(
    home: Path, user: Callable[..., User]
) -> None:
    owner, other = user(), user()
    owner.do("start")
    url = other.do("start")
    pid = postmaster(home)
    owner.kill()
    assert query(url, "SELECT 1") == [(1,)]
    with EmbeddedPostgres(home):
        assert postmaster(home) == pid
    other.do("stop")
    assert postmasters(home) == []


def test_a_server_whose_users_were_all_killed_is_adopted(home: Path, user: Callable[..., User]) -> None:
    users = [user(), user()]
    for each in users:
        each.do("start")
    pid = postmaster(home)
    for each in users:
        each.kill()
    with EmbeddedPostgres(home) as server:
        assert postmaster(home) == pid
        assert query(server.start(), "SELECT 1") == [(1,)]
    assert postmasters(home) == []


def test_neither_ctrl_c_nor_a_killed_process_group_reaches_the_server(home: Path, user: Callable[..., User]) -> None:
    first = user()
    url = first.do("start")
    pid = postmaster(home)
    assert os.getsid(pid) == pid
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(first.process.pid, number)
    first.close()
    assert query(url, "SELECT 1") == [(1,)]
    with EmbeddedPostgres(home):
        assert postmaster(home) == pid


def test_a_starter_killed_while_the_server_comes_up_leaves_it_to_the_next(
    home: Path, user: Callable[..., User]
) -> None:
    starter = user()
    starter.send("start")
    eventually(lambda: postmasters(home))
    starter.kill()
    with EmbeddedPostgres(home) as server:
        assert query(server.start(), "SELECT 1") == [(1,)]
        eventually(lambda: len(postmasters(home)) == 1)  # a second one gives up when it finds the first


@pytest.fixture
def endless_initdb(place: Path) -> str:
    """PostgreSQL's programs, but initdb stays when it is done and says so in `initdb.pid` of the new cluster."""
    real = embedded.find_binaries()
    programs = place / "programs"
    programs.mkdir()
    for program in real.iterdir():
        (programs / program.name).symlink_to(program)
    (programs / "initdb").unlink()
    (programs / "initdb").write_text(
        f"""#!/bin/sh
        '{real}/initdb' "$@"
        for last; do :; done
        echo $$ > "${{last#--pgdata=}}/initdb.pid"
        exec sleep 600
        """
    )
    (programs / "initdb").chmod(0o755)
    return str(programs)


def endless_initdb_of(home: Path) -> int:
    pid = home / "postgres.new" / "initdb.pid"
    return int(eventually(lambda: pid.exists() and pid.read_text()))


def test_a_killed_initdb_leaves_nothing_behind(new_home: Path, endless_initdb: str, user: Callable[..., User]) -> None:
    starter = user(ROTA_TEST_PROGRAMS=endless_initdb)
    starter.send("start")
    initdb = endless_initdb_of(new_home)
    starter.kill()
    assert is_locked(new_home / "postgres.start.lock"), "who comes next would remove what this initdb writes"
    kill(initdb)
    with EmbeddedPostgres(new_home) as server:
        assert query(server.start(), "SELECT 1") == [(1,)]
        assert not (new_home / "postgres.new").exists()


def test_an_interrupted_first_start_leaves_nothing_behind(
    new_home: Path, endless_initdb: str, user: Callable[..., User]
) -> None:
    starter = user(ROTA_TEST_PROGRAMS=endless_initdb)
    starter.send("start")
    initdb = endless_initdb_of(new_home)
    starter.process.send_signal(signal.SIGINT)
    with pytest.raises(CannotStart) as caught:
        starter.answer()
    assert caught.value.code == "KeyboardInterrupt"
    assert sorted(file.name for file in new_home.iterdir()) == ["postgres.start.lock", "postgres.users.lock"]
    assert not psutil.pid_exists(initdb)


def test_an_interrupted_start_leaves_no_server_behind(home: Path, user: Callable[..., User]) -> None:
    with (home / "postgres" / "postgresql.conf").open("a") as configuration:
        configuration.write("hot_standby = off\n")
    (home / "postgres" / "standby.signal").touch()  # so it waits for a primary and never accepts connections
    starter = user()
    starter.send("start")
    eventually(lambda: postmasters(home))
    starter.process.send_signal(signal.SIGINT)
    with pytest.raises(CannotStart) as caught:
        starter.answer()
    assert caught.value.code == "KeyboardInterrupt"
    assert postmasters(home) == []


# A postmaster that dies


def test_committed_rows_survive_a_killed_postmaster(home: Path, server: EmbeddedPostgres) -> None:
    url = server.owner_url
    execute(url, "CREATE TABLE kept (n int)")
    with psycopg.connect(url, autocommit=True) as connection:
        for n in range(100):
            connection.execute("INSERT INTO kept VALUES (%s)", [n])
        kill(postmaster(home))
        server.ensure_running()
    assert query(url, "SELECT count(*), min(n), max(n) FROM kept") == [(100, 0, 99)]


def test_a_killed_postmaster_is_replaced_while_its_parent_does_not_reap_it(
    home: Path, user: Callable[..., User]
) -> None:
    parent, other = user(), user()
    parent.do("start")
    url = other.do("start")
    dead = postmaster(home)
    kill(dead)
    eventually(lambda: psutil.Process(dead).status() == psutil.STATUS_ZOMBIE)
    other.do("ensure")
    assert postmaster(home) != dead
    assert query(url, "SELECT 1") == [(1,)]
    parent.do("ensure")
    other.do("stop")
    parent.do("stop")


def test_a_killed_postmaster_is_reaped_by_its_parent(home: Path, user: Callable[..., User]) -> None:
    parent = user()
    parent.do("start")
    dead = postmaster(home)
    kill(dead)
    parent.do("ensure")
    assert not psutil.pid_exists(dead)
    parent.do("stop")


def test_processes_that_notice_the_death_together_start_one_server(home: Path, user: Callable[..., User]) -> None:
    users = [user() for _ in range(5)]
    for each in users:
        each.do("start")
    kill(postmaster(home))
    for each in users:
        each.send("ensure")
    for each in users:
        each.answer()
    assert postmaster(home)
    assert (home / "postgres.log").read_text().count("ready to accept connections") == 2
    for each in users:
        each.do("stop")


def test_threads_of_one_process_may_all_ask_for_the_server(home: Path, server: EmbeddedPostgres) -> None:
    kill(postmaster(home))
    with ThreadPoolExecutor(4) as threads:
        for asked in [threads.submit(server.ensure_running) for _ in range(4)]:
            asked.result()
    assert postmaster(home)


def test_a_new_server_waits_for_the_children_of_a_killed_one(home: Path, user: Callable[..., User]) -> None:
    first = user()
    url = first.do("start")
    with psycopg.connect(url) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        backend.suspend()
        kill(postmaster(home))
        first.send("ensure")
        log = home / "postgres.log"
        eventually(lambda: "pre-existing shared memory block" in log.read_text())
        backend.resume()
        first.answer()
    assert query(url, "SELECT 1") == [(1,)]
    first.do("stop")


@contextmanager
def stranger(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's user that got the number of the killed postmaster."""
    owner = (home / "postgres").stat().st_uid
    process = subprocess.Popen(["sleep", "600"], user=owner if ROOT else None)
    for lock in (home / "postgres" / "postmaster.pid", home / "postgres.sock" / ".s.PGSQL.5432.lock"):
        _, rest = lock.read_text().split("\n", 1)
        lock.write_text(f"{process.pid}\n{rest}")
    yield process
    assert process.poll() is None, "the stranger was killed"
    process.kill()
    process.wait()


def test_a_process_that_got_the_postmasters_number_does_not_block_the_start(
    home: Path, user: Callable[..., User]
) -> None:
    first = user()
    first.do("start")
    kill(postmaster(home))
    first.kill()
    eventually(lambda: not processes_of(home))
    with stranger(home), EmbeddedPostgres(home) as server:
        assert query(server.start(), "SELECT 1") == [(1,)]


def test_a_process_that_got_the_postmasters_number_is_not_stopped(home: Path) -> None:
    server = EmbeddedPostgres(home)
    server.start()
    kill(postmaster(home))
    eventually(lambda: not processes_of(home))
    with stranger(home):
        server.stop()
    with server:  # and PostgreSQL gives back the shared memory that the killed one left
        assert postmaster(home)


def test_a_server_that_cannot_shut_down_fast_is_shut_down_immediately(home: Path) -> None:
    server = EmbeddedPostgres(home, limits=Limits(fast_shutdown=0.3))
    with psycopg.connect(server.start()) as connection:
        psutil.Process(connection.info.backend_pid).suspend()
        server.stop()
    assert postmasters(home) == []
    assert "immediate shutdown" in (home / "postgres.log").read_text()


def test_a_lost_data_directory_is_reported_and_not_replaced_by_an_empty_one(home: Path, place: Path) -> None:
    server = EmbeddedPostgres(home)
    server.start()
    kill(postmaster(home))
    (home / "postgres").rename(place / "taken away")
    with pytest.raises(CannotStart, match="not a PostgreSQL data directory"):
        server.ensure_running()
    (place / "taken away").rename(home / "postgres")
    server.ensure_running()
    server.stop()


# Names of homes


@pytest.mark.parametrize("name", ["with spaces", 'it\'s "quoted"', "Zürich 東京", "a,b", "100%25 $HOME;`x`", "#&?=+"])
def test_a_home_may_have_any_name(new_home: Path, name: str) -> None:
    with EmbeddedPostgres(new_home / name) as server:
        assert query(server.start(), "SELECT 1") == [(1,)]
        assert postmaster(new_home / name)


@pytest.fixture
def deep(new_home: Path, made: Path) -> Path:
    return copy(made, new_home / ("deep" * 15) / ("down" * 15))


def sockets_of(home: Path) -> Path:
    server = EmbeddedPostgres(home)
    url = server.start()
    server.stop()
    return Path(str(psycopg.conninfo.conninfo_to_dict(url)["host"]))


def test_a_home_too_deep_for_a_socket_has_a_short_private_directory_that_all_processes_find(
    deep: Path, user: Callable[..., User]
) -> None:
    first = user(deep, TMPDIR="/var/tmp", XDG_RUNTIME_DIR="/nowhere")
    second = user(deep, TMPDIR="/tmp", XDG_RUNTIME_DIR="/elsewhere")
    url = first.do("start")
    assert second.do("start") == url
    assert query(url, "SELECT 1") == [(1,)]
    sockets = Path(str(psycopg.conninfo.conninfo_to_dict(url)["host"]))
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    first.do("stop")
    second.do("stop")
    assert not sockets.exists()


def test_a_socket_directory_open_to_others_is_refused(deep: Path) -> None:
    sockets = sockets_of(deep)
    sockets.mkdir()
    sockets.chmod(0o777)
    with pytest.raises(CannotStart, match=f"{sockets} must be a directory of"):
        EmbeddedPostgres(deep).start()
    sockets.rmdir()


def test_a_socket_directory_behind_a_link_is_refused(deep: Path, place: Path) -> None:
    sockets = sockets_of(deep)
    sockets.symlink_to(place)
    with pytest.raises(CannotStart, match=f"{sockets} must be a directory of"):
        EmbeddedPostgres(deep).start()
    sockets.unlink()


@needs_root
def test_a_socket_directory_of_somebody_else_is_refused(deep: Path) -> None:
    sockets = sockets_of(deep)
    sockets.mkdir(mode=0o700)
    os.chown(sockets, 12345, 12345)
    with pytest.raises(CannotStart, match="belongs to 12345"):
        EmbeddedPostgres(deep).start()
    sockets.rmdir()


# What cannot start


def test_a_data_directory_of_another_major_version_is_left_alone(home: Path) -> None:
    (home / "postgres" / "PG_VERSION").write_text("15\n")
    with pytest.raises(CannotStart, match=r"written by PostgreSQL 15, .* brings PostgreSQL \d\d.*rota backup"):
        EmbeddedPostgres(home).start()


def test_a_directory_that_is_no_cluster_is_left_alone(home: Path) -> None:
    (home / "postgres" / "PG_VERSION").unlink()
    with pytest.raises(CannotStart, match="not a PostgreSQL data directory"):
        EmbeddedPostgres(home).start()
    assert (home / "postgres" / "base").is_dir()


def test_a_file_in_place_of_the_home_is_named(new_home: Path) -> None:
    new_home.write_text("mine")
    for wrong in (new_home, new_home / "below"):
        with pytest.raises(CannotStart, match=f"cannot use {wrong}: Not a directory"):
            EmbeddedPostgres(wrong).start()
    assert new_home.read_text() == "mine"


def test_a_home_that_may_not_be_written_is_named(open_directory: Path) -> None:
    open_directory.chmod(0o555)
    user = User(open_directory / "home", account="nobody" if ROOT else "")
    with pytest.raises(CannotStart, match=f"cannot use {open_directory}/home: Permission denied"):
        user.do("start")
    user.close()
    assert list(open_directory.iterdir()) == []


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[Path]:
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "rota-test", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@needs_root
def test_a_read_only_home_is_named(new_home: Path) -> None:
    with (
        mounted(new_home, "ro"),
        pytest.raises(CannotStart, match=f"cannot use {new_home}: Read-only file system"),
    ):
        EmbeddedPostgres(new_home).start()


@needs_root
def test_a_disk_too_small_for_a_cluster_is_named_and_nothing_half_written_stays(new_home: Path) -> None:
    with mounted(new_home, "size=8m"):
        with pytest.raises(CannotStart, match=f"(?s){new_home}.*No space left on device"):
            EmbeddedPostgres(new_home).start()
        assert sorted(file.name for file in new_home.iterdir()) == [
            "postgres.start.lock",
            "postgres.users.lock",
        ]


@needs_root
def test_a_disk_that_filled_up_is_named(new_home: Path) -> None:
    with mounted(new_home, "size=100m"):
        with EmbeddedPostgres(new_home):
            pass
        (new_home / "postgres.log").unlink()  # its last page would have had room for the reason
        with suppress(OSError), (new_home / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        with pytest.raises(CannotStart, match=f"(?s){new_home}.*No space left on device"):
            EmbeddedPostgres(new_home).start()
        (new_home / "filler").unlink()
        with EmbeddedPostgres(new_home):
            pass


def test_a_failed_start_tells_the_servers_last_words(home: Path) -> None:
    with (home / "postgres" / "postgresql.conf").open("a") as configuration:
        configuration.write("nonsense = 1\n")
    with pytest.raises(CannotStart, match=r'(?s)postgres\.log:.*unrecognized configuration parameter "nonsense"'):
        EmbeddedPostgres(home).start()


def test_a_long_log_is_put_aside_at_the_next_start(home: Path) -> None:
    log = home / "postgres.log"
    log.write_bytes(b"old\n" * (embedded.LOG_LIMIT // 4 + 1))
    with EmbeddedPostgres(home):
        assert b"old" not in log.read_bytes()
    assert (home / "postgres.log.1").stat().st_size > embedded.LOG_LIMIT
    kept = log.stat().st_size
    with EmbeddedPostgres(home):
        assert log.stat().st_size > kept


def test_a_lock_that_is_never_released_is_reported(new_home: Path) -> None:
    new_home.mkdir()
    with (new_home / "postgres.start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotYet, match="Another process has been starting"):
            EmbeddedPostgres(new_home, limits=Limits(lock=0.1)).start()


def test_a_server_that_does_not_answer_is_reported_and_not_doubled(home: Path, user: Callable[..., User]) -> None:
    first = user()
    first.do("start")
    hung = psutil.Process(postmaster(home))
    (home / "postgres.sock" / ".s.PGSQL.5432").unlink()
    with pytest.raises(NotYet, match="does not answer"):
        EmbeddedPostgres(home, limits=Limits(start=0.5)).start()
    assert postmaster(home) == hung.pid
    first.do("stop")


def test_who_waits_for_a_server_that_does_not_answer_does_not_hold_up_who_stops_it(home: Path) -> None:
    server = EmbeddedPostgres(home)
    server.start()
    (home / "postgres.sock" / ".s.PGSQL.5432").unlink()
    with ThreadPoolExecutor(1) as threads, (home / "postgres.start.lock").open() as lock:
        waiting = threads.submit(server.ensure_running)

        def is_locked() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(lock, fcntl.LOCK_UN)
            return False

        eventually(is_locked)
        server.stop()
        with pytest.raises(CannotStart, match="given up"):
            waiting.result()
    assert postmasters(home) == []


# Who runs it


def capabilities(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("CapEff")]
    return int(line.split()[1], 16)


def modes(path: Path) -> list[tuple[int, int]]:
    return [(each.stat().st_mode, each.stat().st_uid) for each in path.parents]


def test_an_ordinary_user_needs_nothing(open_directory: Path, user: Callable[..., User]) -> None:
    home = open_directory / "home"
    ordinary = user(home, account="nobody" if ROOT else "")
    url = ordinary.do("start")
    assert query(url, "SELECT 1") == [(1,)]
    process = psutil.Process(postmaster(home))
    assert process.uids().effective == (pwd.getpwnam("nobody").pw_uid if ROOT else os.geteuid())
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    process.kill()
    ordinary.do("ensure")
    ordinary.do("stop")


@needs_root
def test_root_runs_it_as_an_unprivileged_user_without_capabilities(open_directory: Path) -> None:
    home = open_directory / "home"
    before = modes(home)
    with EmbeddedPostgres(home):
        process = psutil.Process(postmaster(home))
        assert process.username() in {"postgres", "nobody"}
        assert os.getgrouplist(process.username(), process.gids().effective)
        assert capabilities(process.pid) == 0
    assert modes(home) == before


@needs_root
def test_root_keeps_one_capability_for_a_home_that_the_server_could_not_reach(home: Path) -> None:
    home.parent.chmod(0o700)
    before = modes(home)
    with EmbeddedPostgres(home):
        assert psutil.Process(postmaster(home)).uids().effective != 0
        assert capabilities(postmaster(home)) == 1 << privileges.DAC_READ_SEARCH
    assert modes(home) == before


WITHOUT = "--bounding-set=-dac_read_search"


@needs_root
def test_root_in_a_container_keeps_the_other_capability(home: Path, user: Callable[..., User]) -> None:
    home.parent.chmod(0o700)
    root = user(prefix=("setpriv", f"{WITHOUT},-sys_ptrace"))
    root.do("start")
    assert capabilities(postmaster(home)) == 1 << privileges.DAC_OVERRIDE
    root.do("stop")
    assert postmasters(home) == []


@needs_root
def test_root_without_capabilities_is_told_which_directory_is_in_the_way(
    new_home: Path, user: Callable[..., User]
) -> None:
    new_home.parent.chmod(0o700)
    root = user(prefix=("setpriv", f"{WITHOUT},-dac_override"))
    blocked = next(parent for parent in reversed(new_home.parents) if not parent.stat().st_mode & 0o001)
    with pytest.raises(CannotStart, match=f"may not enter {blocked}. Set ROTA_HOME .* such as /var/lib/rota"):
        root.do("start")
    assert not list(new_home.glob("postgres.new"))
    assert not list(new_home.glob("postgres"))


@needs_root
def test_root_who_may_not_become_anybody_is_told_so(new_home: Path, user: Callable[..., User]) -> None:
    root = user(prefix=("setpriv", "--bounding-set=-setuid,-setgid"))
    with pytest.raises(CannotStart, match="the system does not allow it"):
        root.do("start")


@needs_root
@pytest.mark.parametrize(("mode", "kept"), [(0o755, privileges.DAC_READ_SEARCH), (0o700, privileges.DAC_OVERRIDE)])
def test_programs_in_a_private_place_are_run_with_the_smallest_capability(tmp_path: Path, mode: int, kept: int) -> None:
    tmp_path.chmod(0o700)
    program = Path(shutil.copy("/usr/bin/sleep", tmp_path))
    program.chmod(mode)
    nobody = pwd.getpwnam("nobody")
    command = privileges.command(nobody.pw_uid, nobody.pw_gid, needed=[str(program)], program=[str(program), "600"])
    process = subprocess.Popen(command)
    eventually(lambda: psutil.Process(process.pid).name() == "sleep")
    assert psutil.Process(process.pid).uids().saved == nobody.pw_uid
    assert capabilities(process.pid) == 1 << kept
    process.kill()
    process.wait()


@needs_root
def test_a_program_in_a_private_place_finds_those_beside_it(tmp_path: Path) -> None:
    """As initdb looks for postgres, by access(): in a clone under /root nothing would start otherwise."""
    tmp_path.chmod(0o700)
    beside = Path(shutil.copy("/usr/bin/sleep", tmp_path))
    nobody = pwd.getpwnam("nobody")
    looks = [sys.executable, "-I", "-S", "-c", f"import os; raise SystemExit(not os.access({str(beside)!r}, os.X_OK))"]
    command = privileges.command(nobody.pw_uid, nobody.pw_gid, needed=[sys.executable, str(beside)], program=looks)
    assert subprocess.run(command, check=False).returncode == 0


@needs_root
def test_root_and_the_owner_of_the_data_share_one_server(open_directory: Path, user: Callable[..., User]) -> None:
    home = open_directory / "home"
    owner = user(home, account="nobody")
    owner.do("start")
    owner.do("stop")
    root = EmbeddedPostgres(home)
    root.start()
    assert psutil.Process(postmaster(home)).username() == "nobody"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    url = owner.do("start")
    root.stop()
    assert query(url, "SELECT 1") == [(1,)]
    owner.do("stop")
    assert postmasters(home) == []


@needs_root
def test_files_that_root_makes_stay_usable_for_the_owner_of_the_data(
    open_directory: Path, user: Callable[..., User]
) -> None:
    home = open_directory / "home"
    owner = user(home, account="nobody")
    owner.do("start")
    owner.do("stop")
    for file in (*home.glob("*.lock"), home / "postgres.log"):
        file.unlink()
    with EmbeddedPostgres(home):
        pass
    owner.do("start")
    owner.do("stop")


@needs_root
def test_data_of_somebody_else_is_refused_with_the_owners_name(open_directory: Path, user: Callable[..., User]) -> None:
    home = open_directory / "home"
    with user(home, account="nobody").process as process:
        process.kill()
    home.mkdir()
    (home / "postgres").mkdir()
    home.chmod(0o777)
    with pytest.raises(CannotStart, match="postgres belongs to root, but PostgreSQL would run as nobody"):
        user(home, account="nobody").do("start")
