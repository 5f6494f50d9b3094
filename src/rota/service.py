"""The one loop: a pass, then a pause. Everything in the background is a service."""

import asyncio
import gc
import logging
import time
from typing import Protocol

from rota.errors import RotaError

log = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 0.2, 10.0
FAILING_SECONDS = 30.0  # a database that restarts is back before


class Service(Protocol):
    name: str

    async def once(self) -> float:
        """Do one pass and return for how many seconds nothing more is expected."""
        ...


class Wakeable(Protocol):
    def wake(self) -> None: ...


class Loop:
    """Runs a service until it is stopped; `wake` ends the pause early."""

    def __init__(self, service: Service, *, first_retry: float = FIRST_RETRY, last_retry: float = LAST_RETRY) -> None:
        """After a failed pass, wait `first_retry` seconds, then twice as long each time, up to `last_retry`."""
        self.service = service
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._first_retry, self._last_retry = first_retry, last_retry
        self.failed_since: float | None = None  # without a pass that succeeded

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        _running.add(self)
        try:
            await self._run()
        finally:
            _running.discard(self)

    async def _run(self) -> None:
        retry = self._first_retry
        while not self._stop.is_set():
            self._wake.clear()
            try:
                pause = await self.service.once()
                retry, self.failed_since = self._first_retry, None
            except Exception as failure:  # the top of a loop: one bad pass must not end the service
                log.warning(
                    "service.failed",
                    extra={"service": self.service.name, "error": _tell(failure), "retry_in": retry},
                )
                log.debug("service.traceback", exc_info=True)
                pause, retry = retry, min(retry * 2, self._last_retry)
                self.failed_since = self.failed_since or time.monotonic()
            await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        if self._stop.is_set():
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass


_running: set[Loop] = set()


def failing() -> list[str]:
    """The services of this process that have only failed for a while: each tries on, but nobody sees that in an answer
    of the others."""
    late = time.monotonic() - FAILING_SECONDS
    return sorted({each.service.name for each in _running if each.failed_since and each.failed_since <= late})


def _tell(failure: Exception) -> str:
    return failure.message if isinstance(failure, RotaError) else f"{type(failure).__name__}: {failure}"


def look_for_cycles_rarely() -> None:
    """What a run makes is freed by its last user. Looking through everything after every few hundred new objects took a
    third of a busy worker's time, and a fifth of the time it takes to start."""
    gc.set_threshold(50_000, 20, 20)


def keep_for_good() -> None:
    """What a process made at its start stays, and is not looked through again."""
    gc.collect()
    gc.freeze()
