"""`make up` on a machine that lacked something at the first try."""

import subprocess
from pathlib import Path

import pytest

from support.doc_pages import ROOT

# It says what it is asked to do, and stands for a Python that can make environments, or cannot.
MAKES = """#!/bin/sh
echo "$@" >> asked
case "$2" in venv) mkdir -p .venv/bin; printf '#!/bin/sh\\nexit 0\\n' > .venv/bin/python; chmod +x .venv/bin/python ;; esac
"""
FAILS_ONCE = """#!/bin/sh
case "$*" in *--require-hashes*) echo "$@" >> asked; [ "$(wc -l < asked)" -gt 1 ] ;; esac
"""
WITHOUT_PIP = "#!/bin/sh\necho No module named pip >&2; exit 1\n"
TOO_OLD = MAKES + 'case "$1" in -c) echo "$2" >&2; exit 1 ;; esac\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for needed in ("pyproject.toml", "requirements/build.txt", "requirements/run.txt", "build_hooks/vendor_htmx.py"):
        (tmp_path / needed).parent.mkdir(exist_ok=True)
        (tmp_path / needed).touch()
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    return tmp_path


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def make(checkout: Path, python: Path) -> "subprocess.CompletedProcess[str]":
    command = ["make", ".venv/.run", f"PYTHON={python}", "AGAIN_AFTER=0"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def test_an_environment_that_was_left_half_made_is_made_anew(checkout: Path) -> None:
    program(checkout / ".venv/bin/python", WITHOUT_PIP)
    python = program(checkout / "python", MAKES)
    made = make(checkout, python)
    assert made.returncode == 0, made.stderr
    assert (checkout / "asked").read_text().splitlines()[-1] == "-m venv --clear .venv"
    (checkout / "asked").unlink()
    (checkout / ".venv/.run").unlink()
    assert make(checkout, python).returncode == 0
    assert not (checkout / "asked").exists()  # a whole one is kept


def test_an_old_python_is_told_which_is_needed_and_makes_nothing(checkout: Path) -> None:
    refused = make(checkout, program(checkout / "python", TOO_OLD))
    assert refused.returncode != 0
    assert "Rota needs Python 3.11 or newer" in refused.stderr
    assert not (checkout / ".venv").exists()


def test_a_registry_that_fails_once_is_asked_again(checkout: Path) -> None:
    made = make(checkout, program(checkout / ".venv/bin/python", FAILS_ONCE))
    assert made.returncode == 0, made.stderr
    first, second = (checkout / "asked").read_text().splitlines()
    assert first == second
