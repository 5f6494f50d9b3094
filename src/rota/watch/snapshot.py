"""Takes a snapshot of the machine and the house now and then."""

import socket
from datetime import timedelta

import psutil

from rota.db import snapshots, triggers
from rota.db.pool import Database
from rota.metrics import OVERDUE_TRIGGERS, QUEUE_DEPTH
from rota.model.ids import new_id


class Snapshot:
    """A pass takes one snapshot, unless another process of this machine has just done so."""

    name = "snapshot"

    def __init__(self, db: Database, *, every: timedelta, dead_after: timedelta) -> None:
        self._db = db
        self._every = every
        self._dead_after = dead_after
        psutil.cpu_percent()  # the first call only starts the measurement

    async def once(self) -> float:
        async with self._db.connection() as conn:
            await snapshots.take(
                conn,
                new_id(),
                host=socket.gethostname(),
                every=self._every * 0.9,
                dead_after=self._dead_after,
                cpu_percent=psutil.cpu_percent(),
                memory_mb=psutil.virtual_memory().used / 2**20,
            )
            QUEUE_DEPTH.set(await snapshots.queue_depth(conn))
            OVERDUE_TRIGGERS.set(await triggers.count_overdue(conn))
        return self._every.total_seconds()
