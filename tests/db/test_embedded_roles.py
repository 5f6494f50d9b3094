"""Who may do what on the embedded PostgreSQL, and how a home of an older Rota gets passwords."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from rota.db import embedded, embedded_roles
from rota.db.embedded import PASSFILE, EmbeddedPostgres
from rota.errors import CannotStart, NotYet
from support.embedded_homes import (
    User,
    copy,
    directory_in_memory,
    execute,
    kill,
    needs_proc,
    needs_root,
    postmaster,
    query,
)

OLD_INITDB = (
    "--username=rota", "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8", "--locale=C", "--no-instructions",
)  # fmt: skip
OLD_TABLES = b"""
CREATE TABLE kept AS SELECT 1 AS n;

CREATE ROLE rota_api NOLOGIN;

GRANT rota_api TO rota;

GRANT SELECT ON kept TO rota_api;
"""
FAILPOINTS = ("embedded.before_roles", "embedded.after_roles", "embedded.after_passwords", "embedded.after_hba")


@pytest.fixture(scope="module")
def made_old() -> Iterator[Path]:
    """A home as Rota made it before it used passwords: everybody who reaches the socket is the superuser."""
    with directory_in_memory() as directory:
        home = directory / "home"
        server = embedded._Server.under(home)
        lock = server.account.open(home / "postgres.start.lock", os.O_RDWR)
        server.account.make_private(server.data)
        server._run("initdb", *OLD_INITDB, f"--pgdata={server.data}", keep=lock)
        server._run_statements(b"CREATE DATABASE rota;\n", server.data, "template1", keep=lock)
        server._run_statements(OLD_TABLES, server.data, "rota", keep=lock)
        os.close(lock)
        yield home


@pytest.fixture
def old_home(made_old: Path, new_home: Path) -> Path:
    return copy(made_old, new_home)


def connect_without_password(home: Path, role: str) -> None:
    with psycopg.connect(host=str(home / "postgres.sock"), user=role, dbname="rota", passfile=os.devnull):
        pass


def assert_passwords_are_required(home: Path) -> None:
    for role in (*embedded_roles.ROLES, "rota_api", "nobody"):
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            connect_without_password(home, role)


def assert_converted(home: Path) -> None:
    with EmbeddedPostgres(home) as server:
        assert_passwords_are_required(home)
        assert query(server.start(), "SELECT current_user::text, n FROM kept") == [("rota_app", 1)]
        execute(server.start(), "UPDATE kept SET n = n + 1; UPDATE kept SET n = n - 1")
        execute(server.start(), "SET ROLE rota_api")
        execute(server.owner_url, "CREATE TABLE later (n int)")
        assert query(server.start(), "TABLE later") == []
        execute(server.owner_url, "DROP TABLE later")


# Passwords


def test_nobody_connects_without_the_password(home: Path, server: EmbeddedPostgres) -> None:
    assert_passwords_are_required(home)
    for url in (server.start(), server.owner_url):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(url, password="0" * 64)


def test_each_role_has_a_password_of_its_own_in_a_file_that_only_the_servers_user_reads(
    home: Path, server: EmbeddedPostgres
) -> None:
    file = home / "postgres" / PASSFILE
    passwords = {line.split(":")[3]: line.split(":")[4] for line in file.read_text().splitlines()}
    assert set(passwords) == {"rota", "rota_app"}
    assert len(set(passwords.values())) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == file.parent.stat().st_uid
    for url in (server.start(), server.owner_url):
        assert not set(conninfo_to_dict(url)) & {"password"}


@needs_proc
def test_no_command_line_environment_or_log_shows_a_password(place: Path, user: Callable[..., User]) -> None:
    home = place / "home"
    first = user(home)
    first.do("start")
    with EmbeddedPostgres(home):
        hidden = [line.split(":")[4] for line in (home / "postgres" / PASSFILE).read_text().splitlines()]
        hidden += [verifier for (verifier,) in query(superuser(home), "SELECT rolpassword FROM pg_authid") if verifier]
        assert len(hidden) == 4
        seen = [home.joinpath("postgres.log").read_bytes()]
        for process in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    seen.append((process / name).read_bytes())
                except OSError:
                    continue  # it has ended
        assert not [secret for secret in hidden if any(secret.encode() in each for each in seen)]
    first.do("stop")


def superuser(home: Path) -> str:
    return embedded._Server.under(home).url("rota")


def test_a_connection_costs_no_stretching_of_the_password(server: EmbeddedPostgres) -> None:
    [(verifier,)] = query(server.owner_url, "SELECT rolpassword FROM pg_authid WHERE rolname = 'rota_app'")
    assert verifier.startswith("SCRAM-SHA-256$1:")


def test_psql_works_with_the_password_file(home: Path, server: EmbeddedPostgres) -> None:
    """As docs/operating.md says: no password on a command line or in the environment."""
    run_client(home, "psql", "--no-password", "--command", "SELECT 1", "--output", os.devnull)


def run_client(home: Path, program: str, *arguments: str) -> None:
    environment = {"PATH": os.defpath, "PGPASSFILE": str(home / "postgres" / PASSFILE)}
    command = [str(embedded.find_binaries() / program), "-h", str(home / "postgres.sock"), "-U", "rota", "-d", "rota"]
    subprocess.run([*command, *arguments], env=environment, check=True)


RESTORE = ("--clean", "--if-exists", "--single-transaction", "--exit-on-error")


def test_a_dump_is_restored_with_the_rights_of_the_application(home: Path, place: Path, made: Path) -> None:
    dump = str(place / "rota.dump")
    with EmbeddedPostgres(home) as server:
        execute(server.owner_url, "CREATE TABLE kept AS SELECT 1 AS n")
        run_client(home, "pg_dump", "--format=custom", f"--file={dump}")
    other = copy(made, place / "other")
    with EmbeddedPostgres(other) as server:
        run_client(other, "pg_restore", *RESTORE, dump)
    assert_converted(other)


def test_a_lost_password_file_is_made_anew(home: Path) -> None:
    file = home / "postgres" / PASSFILE
    before = file.read_text()
    for lost in (file.unlink, lambda: file.write_text("*:*:*:rota:\n")):
        lost()
        with EmbeddedPostgres(home) as server:
            assert query(server.start(), "SELECT 1") == query(server.owner_url, "SELECT 1") == [(1,)]
            assert file.read_text() != before


def test_a_changed_pg_hba_is_put_right_at_the_next_start(home: Path) -> None:
    (home / "postgres" / "pg_hba.conf").write_text("local all all trust\n")
    with EmbeddedPostgres(home):
        assert_passwords_are_required(home)


# Rights


FORBIDDEN = (
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY kept FROM PROGRAM 'echo 1'",
    "COPY kept TO '/tmp/rota-test'",
    "COPY kept FROM '/etc/passwd'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('.')",
    "SELECT lo_export(lo_create(0), '/tmp/rota-test')",
    "SELECT lo_import('/etc/passwd')",
    "TABLE pg_authid",
    "SELECT passwd FROM pg_shadow",
    "CREATE ROLE intruder",
    "ALTER ROLE rota_app SUPERUSER",
    "ALTER ROLE rota PASSWORD 'x'",
    "ALTER ROLE rota_api LOGIN",
    "GRANT rota TO rota_app",
    "SET ROLE rota",
    "SET SESSION AUTHORIZATION rota",
    "ALTER SYSTEM SET hba_file = '/tmp/hba'",
    "SELECT pg_reload_conf()",
    "SET session_replication_role = replica",
    "LOAD 'plpgsql'",
    "CREATE DATABASE another",
    "CREATE SCHEMA another",
    "CREATE TABLE another (n int)",
    "CREATE TEMPORARY TABLE another (n int)",
    "CREATE FUNCTION another() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE kept ADD COLUMN m int",
    "ALTER TABLE kept DISABLE ROW LEVEL SECURITY",
    "CREATE TRIGGER another BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "TRUNCATE kept",
    "DROP TABLE kept",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rota'",
)


@pytest.fixture(scope="module")
def application(made: Path) -> Iterator[psycopg.Connection[Any]]:
    """A connection as Rota has it, beside one of the owner."""
    with (
        directory_in_memory() as directory,
        EmbeddedPostgres(copy(made, directory / "home")) as server,
        psycopg.connect(server.owner_url, autocommit=True) as owner,
        psycopg.connect(server.start(), autocommit=True) as connection,
    ):
        owner.execute("CREATE TABLE kept AS SELECT 1 AS n")
        yield connection


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_the_application_may_not(application: psycopg.Connection[Any], statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        application.execute(statement.encode())


def test_the_application_is_neither_superuser_nor_may_it_make_roles_or_databases(
    application: psycopg.Connection[Any],
) -> None:
    rights = (
        "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls FROM pg_roles WHERE rolname = %s"
    )
    assert application.execute(rights, ["rota_app"]).fetchall() == [(False, False, False, False, True)]
    assert application.execute(rights, ["rota_api"]).fetchall() == [(False, False, False, False, False)]


def test_the_application_reads_and_writes_rows_of_tables_that_come_later(server: EmbeddedPostgres) -> None:
    execute(server.owner_url, "CREATE TABLE later (id bigserial, n int)")
    with psycopg.connect(server.start(), autocommit=True) as connection:
        connection.execute("INSERT INTO later (n) VALUES (1), (2)")
        connection.execute("UPDATE later SET n = 3 WHERE n = 2")
        connection.execute("DELETE FROM later WHERE n = 1")
        assert connection.execute("SELECT id, n FROM later FOR UPDATE").fetchall() == [(2, 3)]
        connection.execute("LISTEN news; NOTIFY news; SELECT pg_advisory_lock(1); LOCK TABLE later IN SHARE MODE")


def test_the_application_may_not_enter_other_databases(server: EmbeddedPostgres) -> None:
    for name in ("postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(server.start(), dbname=name)


# Homes of an older Rota


def test_an_older_home_is_converted_once_and_keeps_its_rows(old_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert_converted(old_home)
    assert_converted(old_home)
    assert caplog.messages == ["postgres.converted"]


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_conversion_that_is_killed_is_completed_by_the_next_start(
    old_home: Path, user: Callable[..., User], failpoint: str
) -> None:
    killed = user(ROTA_TEST_FAILPOINT=failpoint)
    killed.send("start")
    assert killed.process.wait(60) == -signal.SIGKILL
    assert_converted(old_home)


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_first_start_that_is_killed_is_completed_by_the_next(
    new_home: Path, user: Callable[..., User], failpoint: str
) -> None:
    killed = user(ROTA_TEST_FAILPOINT=failpoint)
    killed.send("start")
    assert killed.process.wait(60) == -signal.SIGKILL
    with EmbeddedPostgres(new_home) as server:
        assert_passwords_are_required(new_home)
        assert query(server.start(), "SELECT current_user::text") == [("rota_app",)]
        assert not (new_home / "postgres.new").exists()


def test_roles_that_were_made_in_part_are_completed(old_home: Path) -> None:
    """As after a power cut between two statements."""
    server = embedded._Server.under(old_home)
    lock = server.account.open(old_home / "postgres.start.lock", os.O_RDWR)
    server._run_statements(b"CREATE ROLE rota_app;\n\nALTER ROLE rota PASSWORD 'x';\n", server.data, "rota", keep=lock)
    os.close(lock)
    assert_converted(old_home)


def test_a_process_that_got_the_number_of_a_killed_conversion_does_not_block_the_next(old_home: Path) -> None:
    """PostgreSQL writes the number of a server in single-user mode with a minus."""
    stranger = subprocess.Popen(["sleep", "600"])
    (old_home / "postgres" / "postmaster.pid").write_text(f"-{stranger.pid}\n{old_home / 'postgres'}\n")
    assert_converted(old_home)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


@pytest.fixture
def old_server(old_home: Path, monkeypatch: pytest.MonkeyPatch) -> embedded._Server:
    """A server that an older Rota left running when it was killed."""
    server = embedded._Server.under(old_home)
    with monkeypatch.context() as patched:
        patched.setattr(embedded_roles, "HBA", "local all all trust\n")
        server.bring_up()
    connect_without_password(old_home, "rota")
    return server


def test_a_server_without_passwords_that_still_runs_is_replaced(old_home: Path, old_server: embedded._Server) -> None:
    before = postmaster(old_home)
    with EmbeddedPostgres(old_home):
        assert postmaster(old_home) != before
    assert_converted(old_home)


def test_a_server_without_passwords_that_was_killed_recovers_first(
    old_home: Path, old_server: embedded._Server
) -> None:
    with psycopg.connect(host=str(old_home / "postgres.sock"), user="rota", dbname="rota", passfile=os.devnull) as conn:
        conn.execute("CREATE TABLE written AS SELECT 1 AS n")
    kill(postmaster(old_home))
    assert old_server._child
    old_server._child.wait()
    assert_converted(old_home)
    with EmbeddedPostgres(old_home) as server:
        assert query(server.start(), "TABLE written") == [(1,)]


def test_a_dump_of_an_older_rota_is_restored_with_the_rights_of_the_application(
    old_home: Path, old_server: embedded._Server, place: Path, made: Path
) -> None:
    dump = str(place / "rota.dump")
    run_client(old_home, "pg_dump", "--format=custom", f"--file={dump}")
    old_server.halt()
    other = copy(made, place / "other")
    with EmbeddedPostgres(other):
        run_client(other, "pg_restore", *RESTORE, dump)
    assert_converted(other)


def test_a_server_that_an_older_rota_uses_is_left_alone(old_home: Path, old_server: embedded._Server) -> None:
    before = postmaster(old_home)
    lock = old_server.account.open(old_home / "postgres.users.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    with pytest.raises(NotYet, match=r"perhaps an older Rota, is using it without\. Stop that process"):
        EmbeddedPostgres(old_home).start()
    assert postmaster(old_home) == before
    connect_without_password(old_home, "rota")
    os.close(lock)
    assert_converted(old_home)


def test_a_process_that_joins_during_a_conversion_waits_for_it(old_home: Path, user: Callable[..., User]) -> None:
    users = [user() for _ in range(4)]
    for each in users:
        each.send("start")
    for each in users:
        assert query(each.answer(), "TABLE kept") == [(1,)]
    for each in users:
        each.do("stop")


def test_a_cluster_that_cannot_be_converted_is_told(old_home: Path) -> None:
    shutil.rmtree(old_home / "postgres" / "global")
    with pytest.raises(CannotStart, match="could not prepare"):
        EmbeddedPostgres(old_home).start()


@needs_root
def test_an_ordinary_users_older_home_is_converted(open_directory: Path, user: Callable[..., User]) -> None:
    home = open_directory / "home"
    ordinary = user(home, account="nobody")
    ordinary.do("start")
    ordinary.do("stop")
    data = home / "postgres"
    (data / PASSFILE).unlink()
    (data / "pg_hba.conf").write_text("local all all trust\n")
    home.chmod(0o755)
    url = ordinary.do("start")
    assert query(url, "SELECT current_user::text") == [("rota_app",)]
    assert_passwords_are_required(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (data / PASSFILE).stat().st_uid == data.stat().st_uid != 0
    ordinary.do("stop")
