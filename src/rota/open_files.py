"""How many files this process may have open, and how many what it starts may."""

import resource
from contextlib import suppress

MOST_FILES = 65_536

_before: tuple[int, int] | None = None


def open_many_files() -> None:
    """Shells and services let a process have a thousand files open, which two hundred agents take, or a thousand
    readers. The system allows more, if asked."""
    global _before  # noqa: PLW0603 — of this process, once
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, MOST_FILES) if hard != resource.RLIM_INFINITY else MOST_FILES
    if hasattr(resource, "prlimit") and 0 <= soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _before = (soft, hard)


def original_limit() -> tuple[int, int] | None:
    """The soft and hard limit that this process was started with, if it has raised them. Agents get these: some
    programs close every descriptor that they may have, or cannot handle more than a thousand."""
    return _before
