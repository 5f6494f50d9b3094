"""A kind of agent for a Rota in another process: it does nothing but tell when its code began."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rota.model.executor import Assignment, Desk, LostAttempt
from rota.model.outcome import Outcome, Succeeded

TOLD_AT = "BENCH_TOLD_AT"


class TellingNoop:
    kind = "noop"
    resumes = False

    def __init__(self) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def check(self, config: Mapping[str, Any]) -> Sequence[str]:
        return []

    async def execute(self, assignment: Assignment, desk: Desk) -> Outcome:
        began = time.perf_counter()  # one machine, so one clock
        self._line.sendto(repr(began).encode(), os.environ[TOLD_AT])
        return Succeeded("Done.")

    async def abandon(self, lost: LostAttempt) -> None:
        pass


@contextmanager
def installed() -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """Where it tells, and the environment in which Rota finds it as it finds any kind that a package brings."""
    with (
        tempfile.TemporaryDirectory(prefix="rota-bench-") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told,
    ):
        package = Path(directory, "bench_noop-1.dist-info")
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-noop\nVersion: 1\n")
        (package / "entry_points.txt").write_text(f"[rota.executors]\nnoop = {__name__}:{TellingNoop.__name__}\n")
        told.bind(f"{directory}/told")
        told.settimeout(30)
        path = os.pathsep.join([directory, str(Path(__file__).parent.parent)])
        yield told, {TOLD_AT: f"{directory}/told", "PYTHONPATH": path}
