"""Which kinds there are, and that one broken package cannot take the others away."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota import executors
from rota.errors import Invalid
from rota.model.agent_config import EXTRAS, KINDS

MODULE = """
class Http2:
    kind = "http2"
    def check(self, config): return []
    async def execute(self, assignment, desk): ...
    async def abandon(self, lost): ...
class Half:
    kind = "half"
def explode():
    raise RuntimeError("boom")
"""
ENTRY_POINTS = """[rota.executors]
http2 = my_executors:Http2
half = my_executors:Half
broken = my_executors:explode
gone = no_such_module:Executor
command = my_executors:Http2
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_executors-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: my-executors\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "my_executors.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_built_in_kinds_load_by_name() -> None:
    assert [executor.kind for executor in executors.load(["python", "command"]).values()] == [
        "python",
        "command",
    ]


@pytest.mark.usefixtures("_installed")
def test_installed_packages_add_kinds_and_cannot_replace_ours() -> None:
    loaded = executors.load()
    assert sorted(loaded) == sorted([*KINDS, "http2"])
    assert type(loaded["command"]).__module__ == "rota.executors.command"


@pytest.mark.usefixtures("_installed")
def test_a_broken_package_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert executors.load(["broken", "gone", "half"]) == {}
    assert [(record.message, record.__dict__["kind"]) for record in caplog.records] == [
        ("executor.broken", "broken"),
        ("executor.broken", "gone"),
        ("executor.broken", "half"),
    ]


def test_an_unknown_kind_is_refused_with_a_suggestion() -> None:
    with pytest.raises(Invalid, match="did you mean 'command'") as refusal:
        executors.load(["comand"])
    assert refusal.value.field == "kind"


def test_the_registry_imports_no_kind_before_one_is_wanted() -> None:
    program = "import sys, rota.executors; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"asyncio", "rota.executors.command", "rota.executors.process"} & set(loaded.stdout.split()) == set()


HEAVY = {
    *EXTRAS.values(), "aiohttp", "openai", "anthropic", "google", "langchain_core", "langsmith", "pydantic_graph",
    "genai_prices", "apprise", "authlib", "fsspec",
}  # fmt: skip
SERVICES = "rota.daemon, rota.http.app, rota.scheduler.tick, rota.watch.rescue, rota.worker.worker, rota.starters"
EACH_KIND = """
import asyncio, sys, tempfile
from datetime import timedelta
from pathlib import Path
from support.executor_kinds import KINDS
from support.stand_ins import RecordingDesk, assignment

async def run(kind, directory):
    given = assignment(kind.behave("completes", directory / "code"), directory / "session")
    desk = RecordingDesk()
    outcome = await kind.executor(timedelta(seconds=5)).execute(given, desk)
    return kind.name, type(outcome).__name__, desk.text

async def main():
    with tempfile.TemporaryDirectory() as place:
        for each in await asyncio.gather(*(run(kind, Path(place, kind.name)) for kind in KINDS)):
            print(*each)
        print(*sys.modules)

asyncio.run(main())
"""


def modules(program: str) -> tuple[list[str], set[str]]:
    """What a program printed, and at its end the modules it had loaded."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    *told, loaded = ran.stdout.splitlines()
    return told, {name.partition(".")[0] for name in loaded.split()}


def test_no_service_imports_a_heavy_library_when_it_starts() -> None:
    _, loaded = modules(f"import sys, {SERVICES}, rota.executors as e; e.load(); print(*sys.modules)")
    assert {"rota", "fastapi"} <= loaded
    assert HEAVY & loaded == set()


def test_no_worker_imports_the_library_of_a_kind_also_not_when_its_agents_run() -> None:
    """It is also the API and the scheduler: each kind has a child for it."""
    told, loaded = modules(EACH_KIND)
    assert told == [f"{kind} Succeeded A poem." for kind in KINDS]
    assert HEAVY & loaded == set()


@pytest.mark.parametrize("kind", EXTRAS)
def test_a_worker_without_the_library_of_a_kind_does_not_serve_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    assert kind not in executors.load()
    with pytest.raises(Invalid, match=rf"pip install 'rota\[{kind}\]'"):
        executors.load([kind])
