"""How tests are divided among the test workers of xdist."""

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Each test of these is started on its own: it spends most of its time waiting for processes.
SINGLE = ("tests/process", "tests/faults")
# These share a Rota and a browser for the whole session. Two units keep that to two test workers.
BROWSERS = {
    "test_browser": 0, "test_replicas": 0, "test_people_journeys": 0,
    "test_accessible": 1, "test_journeys": 1, "test_session_journeys": 1,
}  # fmt: skip
# Files that share a process for their tests, and others that take long.
LONG = {
    "test_desk", "test_embedded", "test_embedded_roles", "test_escapes", "test_kinds", "test_slow_clients",
    "test_starters", "test_up",
}  # fmt: skip


class WorkUnits(LoadScopeScheduling):  # type: ignore[misc]
    """Gives files to test workers whole, except files whose tests share nothing and wait a lot."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # keep the order of `unit_rank`

    def _split_scope(self, nodeid: str) -> str:
        return find_unit(nodeid)


def find_unit(nodeid: str) -> str:
    path = PurePosixPath(nodeid.partition("::")[0])
    if path.stem in BROWSERS and path.parent.name == "http":
        return f"browsers {BROWSERS[path.stem]}"
    if str(path.parent) in SINGLE and path.stem not in LONG:
        return nodeid
    return str(path)


def unit_rank(nodeid: str) -> int:
    """Units of a lower rank are started first."""
    unit = find_unit(nodeid)
    if unit.startswith("browsers"):
        return 0
    if unit == nodeid or PurePosixPath(unit).stem in LONG:
        return 1
    return 2
