"""A whole `rota up` with nothing to do: what it takes of a core and of memory, without its PostgreSQL."""

import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from bench.goals import Goal, at_most
from bench.process import started

SETTLE_SECONDS = 5.0


async def measure(*, quick: bool) -> tuple[dict[str, float], list[Goal]]:
    return await asyncio.to_thread(_measure, 10.0 if quick else 60.0)


def _measure(seconds: float) -> tuple[dict[str, float], list[Goal]]:
    with (
        tempfile.TemporaryDirectory(prefix="rota-bench-", ignore_cleanup_errors=True) as home,
        started("up", home=Path(home)) as rota,
    ):
        time.sleep(SETTLE_SECONDS)
        before = _cpu_seconds(rota.pid)
        time.sleep(seconds)
        share = 100 * (_cpu_seconds(rota.pid) - before) / seconds
        memory = sum(each.memory_info().rss for each in _tree(rota.pid)) / 2**20
    figures = {"idle: per cent of a core": share, "idle: MB": memory}
    return figures, [at_most("idle, per cent of a core", share, 1.0), at_most("idle, MB", memory, 250.0)]


def _tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [each for each in (top, *top.children(recursive=True)) if not each.name().startswith("postgres")]


def _cpu_seconds(pid: int) -> float:
    return sum(each.cpu_times().user + each.cpu_times().system for each in _tree(pid))
