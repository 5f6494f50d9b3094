"""One timer for all attempts of a worker: most of them end long before their time is up."""

import asyncio
import time
from typing import Protocol

SLACK_SECONDS = 0.001  # timers may ring a little early


class Timed(Protocol):
    def time_is_up(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self._times: dict[int, tuple[float, Timed]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = float("inf")

    def call(self, whom: Timed, at: float) -> None:
        """Tell this one when its time is up, by the monotonic clock, in place of what was said before."""
        self._times[id(whom)] = (at, whom)
        if at < self._rings_at:
            self._set(at)

    def forget(self, whom: Timed) -> None:
        """The timer stays: it may ring for nobody."""
        self._times.pop(id(whom), None)

    def _set(self, at: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._rings_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        now = time.monotonic() + SLACK_SECONDS
        for at, whom in tuple(self._times.values()):
            if at <= now:
                self.forget(whom)
                whom.time_is_up()
        if self._times:
            self._set(min(at for at, _ in self._times.values()))
