"""Where launchers come from: a process that is ready to fork one for each program. To start Python for each took ten
times as long as most programs take to start."""

import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rota.executors import launcher
from rota.executors.sandbox import UNCONFINED, Sandbox

ANSWER_SECONDS = 1.0
GOODBYE_SECONDS = 5.0


class Nursery:
    """Started when it is first needed, and again if somebody has killed it. What runs goes on without it. Its command
    runs inside the sandbox; the next arguments are its descriptor of the line, and how to confine programs."""

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        sandbox: Sandbox = UNCONFINED,
    ) -> None:
        self._command, self._env = (*sandbox.prefix, *command), env or {}
        self._arguments = (sandbox.confinement, *arguments)
        self.has_namespaces = sandbox.has_namespaces
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._answered_at = 0.0

    def fileno(self) -> int:
        """Of the line to it, or -1 while there is none."""
        return self._line.fileno() if self._line else -1

    def answered(self) -> None:
        """Somebody has heard from the launcher they asked for."""
        self._answered_at = time.monotonic()

    def silent_for(self) -> float:
        """Seconds since the last launcher was heard of."""
        return time.monotonic() - self._answered_at

    def launch(self, standard: Sequence[int], control: socket.socket, share: Sequence[socket.socket]) -> "Nursery":
        """Have a launcher forked: with these for the program's input, output and error, its end of the line to us, and
        sockets that the program will have under the same numbers. Whose it is."""
        try:
            self._ask(standard, control, share)
        except OSError:  # it was killed, or stopped
            self.end()
            self._ask(standard, control, share)
        return self

    def _ask(self, standard: Sequence[int], control: socket.socket, share: Sequence[socket.socket]) -> None:
        shared = [each.fileno() for each in share]
        numbers = [*shared, *[-1] * (launcher.MOST_SHARED - len(shared))]
        request = launcher.REQUEST.pack(len(shared), *numbers)
        line = self._line or self._start()
        socket.send_fds(line, [request], [*standard, control.fileno(), *shared])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={**_FOR_PYTHON, **self._env},
                start_new_session=True,
            )
        ours.settimeout(ANSWER_SECONDS)
        self._line = ours
        return ours

    def end(self) -> None:
        """At once; what was asked for and not begun is refused, and the next launch starts another."""
        line, self._line = self._line, None
        process, self._process = self._process, None
        if line and process:
            line.close()
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GOODBYE_SECONDS)


_FOR_PYTHON = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
_nurseries: dict[Sandbox, Nursery] = {}


def nursery_in(sandbox: Sandbox) -> Nursery:
    """The one nursery of this process for programs in this sandbox."""
    if sandbox not in _nurseries:
        _nurseries[sandbox] = Nursery([sys.executable, "-I", "-S", launcher.__file__], sandbox=sandbox)
        atexit.register(_nurseries[sandbox].end)
    return _nurseries[sandbox]


THE_NURSERY = nursery_in(UNCONFINED)
