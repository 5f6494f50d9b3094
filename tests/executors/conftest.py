"""What every test of an executor needs: a recording desk, assignments, and a guard against leaks."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from executors.stand_ins import RecordingDesk, assignment

from rota.model.executor import Assignment


@pytest.fixture
def desk() -> RecordingDesk:
    return RecordingDesk()


@pytest.fixture
def assign(tmp_path: Path) -> Callable[..., Assignment]:
    def made(config: dict[str, Any], **changes: Any) -> Assignment:
        return assignment(config, **{"directory": tmp_path / "session", **changes})

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
    return {f"{fd} {link}" for fd, link in _links() if "socket:" in link or "pipe:" in link}


def _links() -> Iterator[tuple[str, str]]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            yield fd, os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
