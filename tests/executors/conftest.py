"""What every test of an executor needs: a recording desk, assignments, and a guard against leaks."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.executors import warm
from rota.executors.kubernetes import gateway
from rota.executors.nursery import THE_NURSERY
from rota.model.executor import Assignment
from support.executor_kinds import EVERY_KIND, find_process_kind
from support.stand_ins import RecordingDesk, assignment

pytest.register_assert_rewrite("support.executor_conformance")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to `make soak` what another kind shows with the same code."""
    again = [item for item in items if item.get_closest_marker("process") and _is_shown_by_another(item)]
    if again and not EVERY_KIND:
        items[:] = [item for item in items if item not in again]
        config.hook.pytest_deselected(items=again)


def _is_shown_by_another(item: pytest.Item) -> bool:
    kind = getattr(getattr(item, "module", None), "KIND", None)
    if kind is None:
        return False
    return find_process_kind(kind).name != kind.name or getattr(item, "originalname", "") in getattr(
        kind, "left_to_soak", ()
    )


@pytest.fixture
def desk() -> RecordingDesk:
    return RecordingDesk()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where agents work."""
    return tmp_path / "session"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Where the modules of Python agents lie."""
    path = tmp_path / "code"
    path.mkdir()
    return path


@pytest.fixture
def assign(directory: Path) -> Callable[..., Assignment]:
    def made(config: dict[str, Any], **changes: Any) -> Assignment:
        return assignment(config, **{"directory": directory, **changes})

    return made


@pytest.fixture
def grace() -> timedelta:
    return timedelta(seconds=0.3)


@pytest.fixture(autouse=True)
def _nothing_leaks(event_loop_policy: object) -> Iterator[None]:
    before = _descriptors()
    yield
    assert _descriptors() - before == set()


def _descriptors() -> set[str]:
    """But for the lines to the processes that stay: of the client of clusters, and of nurseries."""
    kept = {str(fd) for fd in (gateway.THE_PROCESS.fileno(), THE_NURSERY.fileno(), *warm.lines())}
    return {f"{fd} {link}" for fd, link in _links() if fd not in kept and ("socket:" in link or "pipe:" in link)}


def _links() -> Iterator[tuple[str, str]]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            yield fd, os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
