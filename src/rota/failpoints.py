"""Named places at which tests stop a process: `ROTA_TEST_FAILPOINT=scheduler.locked` kills it there, and
`ROTA_TEST_FREEZEPOINT=scheduler.locked` stops it there once, until SIGCONT."""

import os
import signal

_armed = os.environ.get("ROTA_TEST_FAILPOINT", "")
_freezing = os.environ.get("ROTA_TEST_FREEZEPOINT", "")


def reach(name: str) -> None:
    """Die here, as by a power cut, or freeze, if this failpoint is armed; otherwise nothing."""
    global _freezing  # noqa: PLW0603 — a process freezes once
    if _armed and name == _armed:
        os.kill(os.getpid(), signal.SIGKILL)
    if _freezing and name == _freezing:
        _freezing = ""
        os.kill(os.getpid(), signal.SIGSTOP)
