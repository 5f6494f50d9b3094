"""Processes that outlived their launcher, found by the attempt that stands in their environment."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress

MARKS = ("ROTA_RUN_ID", "ROTA_ATTEMPT")
LONGEST_MARK = 40
ROUNDS = 50


def kill_strays(env: Mapping[str, str]) -> None:
    """Kill all that carry the marks of `env`, again and again, since some may fork while we look."""
    marks = {f"{name}={env[name]}".encode() for name in MARKS if name in env}
    for _ in range(ROUNDS if len(marks) == len(MARKS) else 0):
        found = [pid for pid, environment in _processes() if marks <= environment]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, set[bytes]]]:
    """What Linux lets us see; elsewhere nothing."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as environment:
                yield int(name), set(environment.read().split(b"\0"))
