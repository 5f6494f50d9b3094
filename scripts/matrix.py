"""Run the tests on every supported Python and PostgreSQL that this machine has.

    python scripts/matrix.py [--quick] [--list] [--strict] [PYTEST ARGUMENT…]

Each Python from 3.11 to 3.14 runs the tests on the embedded PostgreSQL 18. The Python that runs this script also runs them
on the oldest other PostgreSQL from 14 on. What is not installed is reported and does not fail the run; with --strict it
does. --quick runs a part of the suite, and arguments for pytest replace the choice of tests.
"""

import argparse
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OLDEST_POSTGRES = 14
EMBEDDED_POSTGRES = 18
VERSION = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
WHOLE_SUITE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--ignore", "tests/soak")
QUICK = ("-n", "2", "--dist", "loadfile", "tests/model", "tests/db/test_migrate.py", "tests/worker")


@dataclass(frozen=True)
class Run:
    """One combination: tests on this Python and this PostgreSQL. Without `postgres` they use the embedded one."""

    version: str
    python: str
    postgres: Path | None = None

    @property
    def name(self) -> str:
        return f"Python {self.version}, PostgreSQL {self.postgres.parent.name if self.postgres else EMBEDDED_POSTGRES}"


def find_python(version: str, env: Mapping[str, str]) -> str | None:
    """A Python of this version that can make virtual environments: one on PATH, or one that pyenv has installed."""
    on_path = shutil.which(f"python{version}", path=env.get("PATH"))
    pyenv = Path(env.get("PYENV_ROOT") or Path(env.get("HOME", "/")) / ".pyenv") / "versions"
    installed = [str(each) for each in sorted(pyenv.glob(f"{version}.*/bin/python3"))]
    return next((python for python in (on_path, *installed) if python and _version_of(python) == version), None)


def _version_of(python: str) -> str | None:
    try:
        asked = subprocess.run([python, "-I", "-c", VERSION], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


def find_oldest_postgres(directory: Path) -> Path | None:
    """The programs of the oldest PostgreSQL from 14 on, as Debian installs them: /usr/lib/postgresql/15/bin."""
    versions = sorted(
        int(each.name) for each in directory.glob("*") if each.name.isdecimal() and (each / "bin" / "initdb").exists()
    )
    oldest = next((version for version in versions if version >= OLDEST_POSTGRES), None)
    return directory / str(oldest) / "bin" if oldest else None


def plan(env: Mapping[str, str], postgres_directory: Path) -> tuple[list[Run], list[str]]:
    """The runs that this machine can do, and a line for each thing that is missing."""
    runs, missing = [], []
    for version in PYTHONS:
        if python := sys.executable if version == THIS_PYTHON else find_python(version, env):
            runs.append(Run(version, python))
        else:
            missing.append(
                f"Python {version} with the module venv: neither python{version} on PATH nor a pyenv version"
            )
    if postgres := find_oldest_postgres(postgres_directory):
        runs.append(Run(THIS_PYTHON, sys.executable, postgres))
        if (found := int(postgres.parent.name)) > OLDEST_POSTGRES:
            missing.append(f"PostgreSQL {OLDEST_POSTGRES}: the oldest under {postgres_directory} is {found}")
    else:
        missing.append(f"PostgreSQL {OLDEST_POSTGRES} or newer under {postgres_directory} (apt-get install postgresql)")
    return runs, missing


@contextmanager
def serve(postgres: Path) -> Iterator[str]:
    """Start this PostgreSQL with an empty cluster on loopback, and yield a URL for its superuser."""
    directory = Path(tempfile.mkdtemp(prefix="rota-matrix-"))
    password = directory / "password"
    password.write_text(secrets.token_hex(16))
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        as_user: tuple[str, ...] = ("runuser", "-u", "postgres", "--")
        shutil.chown(directory, "postgres")
        shutil.chown(password, "postgres")
    else:
        as_user = ()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory} -c fsync=off"
    pg_ctl = (*as_user, str(postgres / "pg_ctl"), "-D", str(directory / "data"), "-w", "-s")
    initdb = ("initdb", "-s", "-o", "-A scram-sha-256 -E UTF8 --locale=C.UTF-8 -U postgres --pwfile=" + str(password))
    try:
        _call(*pg_ctl, *initdb)
        _call(*pg_ctl, "start", "-o", settings, "-l", str(directory / "log"))
        try:
            yield f"postgresql://postgres:{password.read_text()}@127.0.0.1:{port}/postgres"
        finally:
            _call(*pg_ctl, "stop", "-m", "immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL)


def run_tests(run: Run, arguments: Sequence[str]) -> str:
    """Install Rota for this Python if necessary, run the tests, and return how that went in a word or two."""
    environment = f".matrix/python{run.version}" if run.python != sys.executable else str(Path(sys.prefix))
    if run.python != sys.executable:
        install = ["make", "-s", "setup", f"VENV={environment}", f"PYTHON={run.python}"]
        if subprocess.run(install, cwd=ROOT, check=False).returncode:
            return "not installed"
    python = str(ROOT / environment / "bin" / "python")
    tests = [python, "-m", "pytest", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "ROTA_TEST_DATABASE_URL"}
    if not run.postgres:
        return _outcome(subprocess.run(tests, cwd=ROOT, env=variables, check=False).returncode)
    with serve(run.postgres) as url:
        variables["ROTA_TEST_DATABASE_URL"] = url
        return _outcome(subprocess.run(tests, cwd=ROOT, env=variables, check=False).returncode)


def _outcome(code: int) -> str:
    return "passed" if code == 0 else f"failed (pytest ended with {code})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests on every Python and PostgreSQL that this machine has.")
    parser.add_argument("--quick", action="store_true", help="run only a part of the suite")
    parser.add_argument("--list", action="store_true", help="only say what would run and what is missing")
    parser.add_argument("--strict", action="store_true", help="fail if a Python or PostgreSQL is missing")
    parser.add_argument(
        "--postgres", type=Path, default=Path("/usr/lib/postgresql"), help="where PostgreSQL is installed"
    )
    options, tests = parser.parse_known_args()
    runs, missing = plan(os.environ, options.postgres)
    outcomes = {}
    for run in runs:
        sys.stdout.write(f"\n── {run.name}\n")
        sys.stdout.flush()
        outcomes[run.name] = (
            "found" if options.list else run_tests(run, tests or (QUICK if options.quick else WHOLE_SUITE))
        )
    sys.stdout.write("\n" + "".join(f"{name}: {outcome}\n" for name, outcome in outcomes.items()))
    sys.stdout.write("".join(f"Not found: {each}\n" for each in missing))
    return int(
        any(outcome not in {"passed", "found"} for outcome in outcomes.values()) or (options.strict and bool(missing))
    )


if __name__ == "__main__":
    sys.exit(main())
