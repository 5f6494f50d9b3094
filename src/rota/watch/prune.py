"""Deletes what is older than it is kept."""

import logging
from datetime import timedelta

from rota.db import artifacts, pruning
from rota.db.pool import Database
from rota.sessions.artifacts import BATCH as CONTENTS
from rota.sessions.artifacts import Depot

log = logging.getLogger(__name__)

BATCH = 5000
RUNS = 1000  # in a pass: each has rows in several tables
EVERY_SECONDS = 600.0
KEEP_KEYS = timedelta(days=30)
KEEP_FORMER = timedelta(minutes=1)  # who is just beginning may still be given what is just being replaced
KEEP_WORKERS = timedelta(days=7)


class PruneArtifacts:
    """A pass deletes old artifacts, then contents that none refers to."""

    name = "prune_artifacts"

    def __init__(self, db: Database, depot: Depot, *, keep: timedelta) -> None:
        self._db, self._depot, self._keep = db, depot, keep

    async def once(self) -> float:
        async with self._db.connection() as conn:
            old = await pruning.prune(conn, artifacts.OLD, self._keep, BATCH)
        cleared = await self._depot.clear()
        if old or cleared:
            log.info("artifacts.pruned", extra={"artifacts": old, "contents": cleared})
        return 0.0 if old == BATCH or cleared == CONTENTS else EVERY_SECONDS


class PruneRuns:
    """A pass deletes old runs, and sessions of which nothing else is left. Those that have to stay are passed over
    until the next round."""

    name = "prune_runs"

    def __init__(self, db: Database, *, keep: timedelta, batch: int = RUNS) -> None:
        self._db, self._keep, self._batch = db, keep, batch
        self._after = pruning.START

    async def once(self) -> float:
        async with self._db.connection() as conn:
            if await pruning.prune(conn, pruning.START_KEYS, KEEP_KEYS, BATCH) == BATCH:
                return 0.0  # they name runs, and go first
            found = await pruning.old_runs(conn, self._after, self._keep, self._batch)
            runs, sessions = await pruning.prune_runs(conn, found, self._keep) if found else (0, 0)
        if runs:
            log.info("runs.pruned", extra={"runs": runs, "sessions": sessions})
        more = len(found) == self._batch
        self._after = (found[-1][0], found[-1][1]) if more else pruning.START
        return 0.0 if more else EVERY_SECONDS


class Prune:
    """A pass deletes a bounded number of rows, and comes back at once while there are more."""

    name = "prune"

    def __init__(
        self,
        db: Database,
        *,
        keep_events: timedelta,
        keep_snapshots: timedelta,
        keep_audit: timedelta = timedelta(days=400),
        keep_notifications: timedelta = timedelta(days=90),
    ) -> None:
        self._db = db
        self._kept = (
            (pruning.EVENTS, keep_events),
            (pruning.CHECKPOINTS, keep_events),
            (pruning.APPROVALS, keep_events),
            (pruning.ABANDONMENTS, keep_events),
            (pruning.WEBHOOK_SECRETS, KEEP_KEYS),
            (pruning.FORMER_CREDENTIALS, KEEP_FORMER),
            (pruning.SNAPSHOTS, keep_snapshots),
            (pruning.AUDIT, keep_audit),
            (pruning.NOTIFICATIONS, keep_notifications),
            (pruning.START_KEYS, KEEP_KEYS),
            (pruning.WRITE_KEYS, KEEP_KEYS),
            (pruning.RATE_BUCKETS, KEEP_KEYS),
            (pruning.HELD_WORDS, KEEP_KEYS),
            (pruning.WORKERS, KEEP_WORKERS),
            (pruning.MEMORY, timedelta(0)),
        )

    async def once(self) -> float:
        async with self._db.connection() as conn:
            deleted = [await pruning.prune(conn, query, kept, BATCH) for query, kept in self._kept]
            await pruning.prune_sign_ins(conn)
        if sum(deleted):
            log.info("rows.pruned", extra={"rows": sum(deleted)})
        return 0.0 if BATCH in deleted else EVERY_SECONDS
