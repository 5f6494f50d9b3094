"""A nursery for Python agents: it has their libraries loaded, and what it forks goes on as `python_child` at once.

Runs as `python python_nursery.py FD CONFINEMENT PATIENCE MODULE…`. Once it is ready it says so by one byte. If it
cannot be (a module is missing, or has begun a thread, which no fork would have) it ends, and agents begin in a new
Python.
"""

from __future__ import annotations

import binascii  # noqa: F401
import gc  # noqa: F401
import importlib
import json  # noqa: F401
import os
import signal
import sys
import threading

_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if _SOURCE not in sys.path:
    sys.path.append(_SOURCE)  # the same Rota as the worker's, wherever that was started

import rota.agent  # noqa: E402, F401

AS_IN_A_NEW_PYTHON = frozenset(sys.modules)  # so far all is what `python_child` imports too

import atexit  # noqa: E402
import socket  # noqa: E402
from contextlib import suppress  # noqa: E402
from functools import partial  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

from rota.executors import launcher, python_child  # noqa: E402
from rota.executors.confinement import Confinement  # noqa: E402
from rota.executors.strays import LONGEST_MARK, MARKS  # noqa: E402

IF_THERE = "?"  # before a module that may be missing
OF_EVERY_AGENT = ("asyncio", "concurrent.futures", "datetime", "traceback")
ENV_START = 47  # the field of /proc/PID/stat, counted behind the name: where the environment begins

_DEFAULT_IN_PYTHON: dict[int, Any] = {
    signal.SIGCHLD: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
}


def main(fd: int, confinement: Confinement | None, patience: float, modules: Sequence[str]) -> int:
    line = socket.socket(fileno=fd)
    for name in (*OF_EVERY_AGENT, *modules):
        _load(name)
    if not _can_be_forked(fd):
        return 1
    line.sendall(launcher.READY)
    # In a PID namespace of its own nothing of an agent outlives its launcher, so nobody searches for marks.
    marked = not (confinement and confinement.namespaces)
    launcher.nurse(line, partial(begin, marked=marked), patience=patience, confinement=confinement)
    return 0


def _load(name: str) -> None:
    try:
        importlib.import_module(name.removeprefix(IF_THERE))
    except ImportError:
        if not name.startswith(IF_THERE):
            raise


def _can_be_forked(line: int) -> bool:
    """No fork has the threads of this process; and its files might stand where a program's socket is to be."""
    opened = {fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}
    return opened == {"0", "1", "2", str(line)} and len(os.listdir("/proc/self/task")) == 1


def begin(spec: dict[str, Any], ours: Sequence[int], *, marked: bool) -> NoReturn:
    """What a new Python would find: its arguments, environment and signals, and no file that is not its own."""
    signal.set_wakeup_fd(-1)  # asyncio does so at each fork since Python 3.12
    for fd in ours:
        os.close(fd)
    for number, how in _DEFAULT_IN_PYTHON.items():
        signal.signal(number, how)
    os.environb.clear()
    os.environb.update(spec["env"])
    if marked:
        _mark(spec["env"])
    importlib.invalidate_caches()
    python_child.loaded_ahead = frozenset(sys.modules) - AS_IN_A_NEW_PYTHON
    sys.argv = [os.fsdecode(each) for each in spec["argv"][-2:]]
    _end(_carried_out(lambda: python_child.main(int(sys.argv[1]))))


def _mark(env: Mapping[bytes, bytes]) -> None:
    """Write into what `/proc` shows of this process, and of all that it forks, by which strays are found."""
    import ctypes  # noqa: PLC0415 - loaded by the nursery

    with open("/proc/self/stat", "rb") as stat, open("/proc/self/environ", "rb") as environ:
        start, shown = int(stat.read().rpartition(b")")[2].split()[ENV_START]), environ.read()
    for name in MARKS:
        mark = name.encode() + b"="
        at = shown.index(mark) + len(mark)
        ctypes.memmove(start + at, env[name.encode()].ljust(LONGEST_MARK, b"\0"), LONGEST_MARK)


def _carried_out(agent: Callable[[], int]) -> int:
    try:
        return agent()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except BaseException:  # as a new Python would end
        sys.excepthook(*sys.exc_info())
        return 1


def _end(code: int) -> NoReturn:
    """As Python ends, but without taking apart what was shared: threads, then what was registered, then output."""
    for last in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined] # noqa: SLF001
        with suppress(BaseException):
            last()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Confinement.parse(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
