"""The tools around the code: CI, hooks, the matrix, coverage, pictures, dead code and the source distribution."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from coverage import CoverageData
from vulture import Vulture

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CI = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
STEPS = [step for job in CI["jobs"].values() for step in job["steps"]]
MATRIX = ROOT / "scripts" / "matrix.py"
IMAGES = ROOT / "docs" / "images"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
LARGEST_SOURCE_DISTRIBUTION = 2_000_000


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# CI and hooks


def test_ci_makes_only_targets_that_exist() -> None:
    made = {target for step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert made == {"bench", "check", "coverage", "screenshots", "test"}
    assert made <= TARGETS


def test_ci_tests_the_pythons_that_the_package_names_and_so_does_the_matrix() -> None:
    named = [each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"] if ":: Python :: 3." in each]
    assert CI["jobs"]["pythons"]["strategy"]["matrix"]["python"] == named
    assert list(load_script("matrix").PYTHONS) == named


def test_ci_caches_by_the_lock_files_and_publishes_what_git_ignores() -> None:
    for step in STEPS:
        if pattern := step.get("with", {}).get("cache-dependency-path"):
            assert list(ROOT.glob(pattern))
    published = {step["with"]["path"] for step in STEPS if "upload-artifact" in step.get("uses", "")}
    assert published == {".coverage-data/html/", "screenshots/", "bench/results/"}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert all(any(path.startswith(each) for each in ignored) for path in published)


def test_hooks_call_locked_tools_and_download_nothing() -> None:
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    assert [each["repo"] for each in HOOKS["repos"]] == ["local"]
    for hook in HOOKS["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0]
        assert Path(program).parent == Path(".venv/bin")
        assert Path(program).name in locked


# The matrix


def list_matrix(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": f"{tmp_path / 'bin'}:/bin", "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path / "pyenv")}
    command = [sys.executable, str(MATRIX), "--list", "--postgres", str(tmp_path / "postgresql"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def other_pythons() -> list[str]:
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [each for each in load_script("matrix").PYTHONS if each != this]


def test_the_matrix_names_what_is_missing_and_fails_for_it_only_if_strict(
    tmp_path: Path, other_pythons: list[str]
) -> None:
    done = list_matrix(tmp_path)
    assert done.returncode == 0, done.stderr
    for version in other_pythons:
        assert f"Not found: Python {version} " in done.stdout
    assert "Not found: PostgreSQL 14 or newer" in done.stdout
    assert list_matrix(tmp_path, "--strict").returncode == 1


def test_the_matrix_finds_pythons_on_the_path_and_in_pyenv_that_can_make_environments(
    tmp_path: Path, other_pythons: list[str]
) -> None:
    on_path, in_pyenv, broken = other_pythons
    write_program(tmp_path / "bin" / f"python{on_path}", f"echo {on_path}")
    write_program(tmp_path / "pyenv" / "versions" / f"{in_pyenv}.2" / "bin" / "python3", f"echo {in_pyenv}")
    write_program(tmp_path / "bin" / f"python{broken}", "echo No module named ensurepip >&2; exit 1")
    write_program(tmp_path / "pyenv" / "versions" / f"{broken}.0" / "bin" / "python3", "echo 3.10")
    done = list_matrix(tmp_path)
    assert f"Python {on_path}, PostgreSQL 18: found" in done.stdout
    assert f"Python {in_pyenv}, PostgreSQL 18: found" in done.stdout
    assert f"Not found: Python {broken} " in done.stdout


def test_the_matrix_takes_the_oldest_supported_postgresql_and_says_if_it_is_newer_than_14(tmp_path: Path) -> None:
    for version in ("9.6", "13", "16", "15"):
        write_program(tmp_path / "postgresql" / version / "bin" / "initdb", "exit 0")
    done = list_matrix(tmp_path)
    assert "PostgreSQL 15: found" in done.stdout
    assert f"Not found: PostgreSQL 14: the oldest under {tmp_path / 'postgresql'} is 15" in done.stdout


# Coverage


@pytest.mark.parametrize("ending", ["", "; os._exit(0)", "; os.kill(os.getpid(), signal.SIGTERM)"])
def test_coverage_measures_a_process_without_environment_however_it_ends(tmp_path: Path, ending: str) -> None:
    start = load_script("measure_coverage").START.format(
        include=str(ROOT / "src" / "rota" / "*"), data=str(tmp_path / "coverage")
    )
    on_sigterm = "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); "
    code = f"exec({start!r}); {on_sigterm}from rota.model import duration{ending}"
    subprocess.run([sys.executable, "-c", code], env={}, cwd=tmp_path, check=not ending)
    [written] = tmp_path.glob("coverage.*")
    data = CoverageData(str(written))
    data.read()
    [file] = [each for each in data.measured_files() if each.endswith("model/duration.py")]
    assert data.lines(file)


def test_coverage_that_cannot_be_saved_does_not_disturb_the_process(tmp_path: Path) -> None:
    start = load_script("measure_coverage").START.format(include="*", data="/proc/nowhere/coverage")
    done = subprocess.run(
        [sys.executable, "-c", f"exec({start!r}); print('said')"], env={}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("said\n", "")


# Pictures, dead code and the source distribution


def test_the_committed_pictures_are_those_that_the_documentation_shows() -> None:
    pytest.importorskip("playwright")
    shown = load_script("screenshots").shown_pictures()
    assert {file.name for file in IMAGES.iterdir()} == {f"{name}.webp" for name in shown}
    assert 0 < len(shown) <= 12


def test_every_name_that_vulture_ignores_would_be_reported() -> None:
    settings: dict[str, Any] = PROJECT["tool"]["vulture"]
    vulture = Vulture(ignore_decorators=settings["ignore_decorators"])
    vulture.scavenge([ROOT / path for path in settings["paths"]])
    unused = {item.name for item in vulture.get_unused_code(min_confidence=settings["min_confidence"])}
    assert set(settings["ignore_names"]) - unused == set()


def test_the_source_distribution_is_small_and_holds_what_builds_rota(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "results", "screenshots", "dist")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    shutil.copy(ROOT / ".gitignore", checkout)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=checkout, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=True)
    [archive] = (tmp_path / "dist").iterdir()
    assert archive.stat().st_size < LARGEST_SOURCE_DISTRIBUTION
    listed = subprocess.run(["tar", "tzf", archive], capture_output=True, text=True, check=True).stdout
    within = {line.partition("/")[2] for line in listed.splitlines()}
    assert {"pyproject.toml", "README.md", "LICENSE", "build_hooks/vendor_htmx.py", "src/rota/db/schema.sql"} <= within
    assert not any(each.startswith(("tests/", "bench/", "requirements/", ".github/")) for each in within)
