"""Nurseries that have the libraries of Python agents loaded. To load those of a model anew took longer than most agents
take to be told what to do, and as much memory for each of them."""

import atexit
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rota.executors import launcher
from rota.executors.nursery import Nursery, nursery_in
from rota.executors.sandbox import UNCONFINED, Sandbox
from rota.executors.strays import LONGEST_MARK, MARKS

SCRIPT = str(Path(__file__).with_name("python_nursery.py"))
# Neither this directory nor the session's is searched for modules; print() shows at once, and in UTF-8.
PYTHON = (sys.executable, "-P", "-u", "-X", "utf8")
MOST = 4
PATIENCE_SECONDS = 600.0  # without an agent: then its memory is given back

Libraries = tuple[str, ...]
Installed = tuple[tuple[str, int], ...]


class WarmNursery(Nursery):
    """Of use once it is ready. Until then, and whenever something is wrong with it, agents begin in a new Python."""

    def __init__(self, libraries: Libraries, env: Mapping[str, str], sandbox: Sandbox) -> None:
        arguments = [str(PATIENCE_SECONDS), *libraries]
        super().__init__([*PYTHON, SCRIPT], arguments, {**env, **_ROOM_FOR_MARKS}, sandbox=sandbox)
        self._cold = nursery_in(sandbox)
        self._ready = False
        self._of: Installed = ()
        self._not_before = 0.0

    def is_ready(self) -> bool:
        """Now; if it is not there, it will be soon."""
        installed = _installed()
        if self._line and self._of != installed:
            self.end()
            self._not_before = 0.0
        if self._line and self._hear():
            return True
        if not self._line and time.monotonic() >= self._not_before:
            self._of = installed
            try:
                self._start()
            except (OSError, RuntimeError):  # no process or no thread is to be had now
                self._ended()
        return False

    def _hear(self) -> bool:
        """What it says, if it has said something; its end is that too."""
        assert self._line
        spoken = select.poll()
        spoken.register(self._line, select.POLLIN)
        if spoken.poll(0):
            if self._said() == launcher.READY:
                self._ready = True
            else:
                self._ended()
        return self._ready

    def _said(self) -> bytes:
        assert self._line
        try:
            return self._line.recv(1)
        except OSError:  # it was killed before it had read what it was asked for
            return b""

    def _ended(self) -> None:
        """By itself: because nobody had asked it for long, or because it cannot be ready, now or in a minute."""
        if not self._ready:
            self._not_before = time.monotonic() + PATIENCE_SECONDS
        self.end()

    def launch(self, standard: Sequence[int], control: socket.socket, share: Sequence[socket.socket]) -> Nursery:
        try:
            self._ask(standard, control, share)
        except OSError:  # it was killed, or stopped
            self.end()
            return self._cold.launch(standard, control, share)
        return self

    def _start(self) -> socket.socket:
        line = super()._start()
        assert self._process
        threading.Thread(target=self._process.wait, daemon=True).start()  # it may end by itself, and nobody would know
        return line

    def end(self) -> None:
        self._ready = False
        super().end()


_ROOM_FOR_MARKS = dict.fromkeys(MARKS, LONGEST_MARK * "-")
_warm: dict[tuple[Libraries, tuple[tuple[str, str], ...], Sandbox], WarmNursery] = {}


def nursery_with(libraries: Libraries, env: Mapping[str, str], sandbox: Sandbox = UNCONFINED) -> Nursery:
    """One that has these loaded, in an environment like this; while it is not ready, the common one."""
    if not launcher.UNDER_TREE:
        return nursery_in(sandbox)
    key = libraries, tuple(sorted(env.items())), sandbox
    found = _warm.pop(key) if key in _warm else WarmNursery(libraries, env, sandbox)
    _warm[key] = found  # behind those that were asked before
    while len(_warm) > MOST:
        _warm.pop(next(iter(_warm))).end()
    return found if found.is_ready() else nursery_in(sandbox)


def lines() -> set[int]:
    """The descriptors of the lines to all of them."""
    return {each.fileno() for each in _warm.values()}


def end_all() -> None:
    while _warm:
        _warm.popitem()[1].end()


def _installed() -> Installed:
    """Changes when a package is installed or removed: what has libraries loaded would mix the old ones with the new."""
    return tuple((each, os.stat(each).st_mtime_ns) for each in sys.path if os.path.isdir(each))


atexit.register(end_all)
