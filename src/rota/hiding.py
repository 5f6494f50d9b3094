"""Keeps what this process knows from the agents it starts, which run as the same user."""

import ctypes
import os
import sys
from collections.abc import Iterable

_PR_SET_DUMPABLE = 4


def hide(names: Iterable[str]) -> None:
    """Wipe variables from the environment, and close this process's memory to others of the same user.

    Linux shows the environment with which a process began in /proc, whatever it does to its variables later; so the
    bytes themselves are overwritten. Root can look into any process.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    for name in names:
        if os.environ.get(name):
            value = libc.getenv(name.encode())
            if value:
                ctypes.memset(value, 0, len(ctypes.string_at(value)))
            del os.environ[name]
    if sys.platform == "linux":
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
