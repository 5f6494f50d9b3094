"""Named places at which tests stop a process for good: `ROTA_TEST_FAILPOINT=scheduler.locked` kills it there."""

import os
import signal

_armed = os.environ.get("ROTA_TEST_FAILPOINT", "")


def reach(name: str) -> None:
    """Die here, as by a power cut, if this failpoint is armed; otherwise nothing."""
    if _armed and name == _armed:
        os.kill(os.getpid(), signal.SIGKILL)
