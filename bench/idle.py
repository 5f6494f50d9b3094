"""A whole `rota up` with nothing to do: what it takes of a core and of memory, without its PostgreSQL."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.goals import Goal, at_most

ROTA = Path(sys.executable).with_name("rota")
SETTLE_SECONDS = 5.0


async def measure(*, quick: bool) -> tuple[dict[str, float], list[Goal]]:
    return await asyncio.to_thread(_measure, 10.0 if quick else 60.0)


def _measure(seconds: float) -> tuple[dict[str, float], list[Goal]]:
    with tempfile.TemporaryDirectory(prefix="rota-bench-", ignore_cleanup_errors=True) as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        with Path(home, "log").open("w") as log:
            command = [str(ROTA), "up", "--home", home, "--port", "0"]
            started = subprocess.Popen(command, env=kept, stderr=log, stdout=log, start_new_session=True)
        try:
            _wait_for(Path(home, "log"), "rota.started")
            time.sleep(SETTLE_SECONDS)
            before = _cpu_seconds(started.pid)
            time.sleep(seconds)
            share = 100 * (_cpu_seconds(started.pid) - before) / seconds
            memory = sum(each.memory_info().rss for each in _tree(started.pid)) / 2**20
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(60)
    figures = {"idle: per cent of a core": share, "idle: MB": memory}
    return figures, [at_most("idle, per cent of a core", share, 1.0), at_most("idle, MB", memory, 250.0)]


def _wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def _tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [each for each in (top, *top.children(recursive=True)) if not each.name().startswith("postgres")]


def _cpu_seconds(pid: int) -> float:
    return sum(each.cpu_times().user + each.cpu_times().system for each in _tree(pid))
