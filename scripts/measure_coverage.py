"""Measure which lines and branches of src/rota the tests run, in every process that they start.

    python scripts/measure_coverage.py [PYTEST ARGUMENT…]

Without arguments the whole suite runs. Tests start Rota, its commands and its agents as real processes, and agents get an
environment without any variable of ours, so coverage's own support for subprocesses does not reach them. While the tests
run, a .pth file in site-packages starts the measurement in every Python of this virtual environment instead.

Test workers of pytest-xdist save what they measured before they report that they are done (`tests/conftest.py`): whoever
takes longer than ten seconds to exit then is killed.

Not measured: processes started with `python -S` (the fork server of command agents, the sandbox's first process, and the
program that gives up root for PostgreSQL), processes that are killed, and agents in a sandbox, which cannot write here.
Their modules are measured where they are imported, or run by another process.
"""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "rota"
DATA = ROOT / ".coverage-data"
HOOK = Path(sysconfig.get_path("purelib")) / "rota_measure_coverage.pth"
WHOLE_SUITE = ("-n", "4", "--ignore", "tests/soak")

# Runs when a Python starts. Nothing of it may reach the program that is measured: neither an error, nor a signal that
# arrives while the data is saved, for which the program's handler would run too late.
START = """
def start():
    import atexit, os, signal
    from contextlib import suppress
    with suppress(Exception):
        import coverage
        measured = coverage.Coverage(config_file=False, branch=True, include=[{include!r}], data_file={data!r},
                                     data_suffix=True, messages=False)
        measured._warn_no_data = False
        exit_now = os._exit
        def save():
            with suppress(BaseException):
                signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
                measured.stop()
                measured.save()
        def save_and_exit(status):
            save()
            exit_now(status)
        os._exit = save_and_exit
        atexit.register(save)
        measured.start()
start()
"""


@contextmanager
def hook() -> Iterator[None]:
    code = START.format(include=str(PACKAGE / "*"), data=str(DATA / "coverage"))
    HOOK.write_text(f"import sys; exec({code!r})\n")
    try:
        yield
    finally:
        HOOK.unlink()


def add_files_never_imported() -> None:
    """Write a data file that names every file of the package, so that the report shows those that no test imports."""
    every = Coverage(
        config_file=False, branch=True, source=[str(PACKAGE)], data_file=DATA / "coverage", data_suffix="all"
    )
    every.set_option("run:disable_warnings", ["no-data-collected"])
    every.start()
    every.stop()
    every.save()


def coverage(*arguments: str) -> int:
    command = [sys.executable, "-m", "coverage", *arguments, f"--data-file={DATA / 'coverage'}"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main(arguments: list[str]) -> int:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    DATA.chmod(0o1777)  # some tests run Rota as another user
    with hook():
        tests = subprocess.run([sys.executable, "-m", "pytest", *(arguments or WHOLE_SUITE)], cwd=ROOT, check=False)
    add_files_never_imported()
    if coverage("combine", "-q"):
        return 1
    coverage("html", "-q", f"--directory={DATA / 'html'}", "--skip-covered")
    # The gate is for the whole suite; a part of it covers less.
    gate = coverage("report", *(("--fail-under=0",) if arguments else ()))
    sys.stdout.write(f"Every line: {DATA / 'html' / 'index.html'}\n")
    return tests.returncode or gate


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
