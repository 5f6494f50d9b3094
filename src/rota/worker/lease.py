"""Keeps this worker's claims alive: all leases in one statement, on a connection of its own."""

import asyncio
import logging
import os
import socket
import time
from datetime import timedelta

import psycopg

from rota.db import attempts, workers
from rota.db.pool import Connection, Database
from rota.worker.worker import Worker

log = logging.getLogger(__name__)

MARGIN = 0.15  # of the lease: agents are stopped this long before it ends


class Lease:
    """A pass renews every lease. What was lost is dropped; who cannot renew at all stops its agents in time."""

    name = "lease"

    def __init__(self, db: Database, worker: Worker, *, lease: timedelta, heartbeat: timedelta) -> None:
        self._db = db
        self._worker = worker
        self._lease = lease
        self._heartbeat = heartbeat
        self._conn: Connection | None = None
        self._renewed_at = time.monotonic()
        self._joined = False

    async def once(self) -> float:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._patience()):
                await self._renew()
            self._renewed_at = started
            return self._heartbeat.total_seconds()
        except (psycopg.Error, OSError, TimeoutError) as failure:
            log.warning("lease.unrenewed", extra={"error": str(failure).strip() or type(failure).__name__})
            await self._forget_connection()
            if time.monotonic() - self._renewed_at >= self._patience_limit():
                self._worker.drop_all()
            return min(0.5, self._heartbeat.total_seconds())

    def _patience_limit(self) -> float:
        return self._lease.total_seconds() * (1 - MARGIN)

    def _patience(self) -> float:
        left = self._patience_limit() - (time.monotonic() - self._renewed_at)
        return max(0.5, min(left, self._heartbeat.total_seconds()))

    async def _renew(self) -> None:
        if self._conn is None or self._conn.closed:
            self._conn = await self._db.reserve()
        if not self._joined:
            await self._join(self._conn)
        await workers.beat(self._conn, self._worker.id, self._worker.busy)
        held = dict(self._worker.attempts)
        if not held:
            return
        ours = await attempts.renew(self._conn, [attempt.key for attempt in held.values()], self._lease)
        for run_id, attempt in held.items():
            if run_id not in ours and self._worker.attempts.get(run_id) is attempt:
                attempt.drop()
            elif ours.get(run_id):
                attempt.cancel()

    async def _join(self, conn: Connection) -> None:
        worker = self._worker
        await workers.join(
            conn,
            worker.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            places=worker.places,
            kinds=worker.kinds,
            pools=worker.pools,
        )
        self._joined = True

    async def _forget_connection(self) -> None:
        conn, self._conn = self._conn, None
        if conn:
            await conn.close()

    async def leave(self) -> None:
        """Say goodbye, so that the fleet shows no dead worker."""
        if self._conn and not self._conn.closed:
            await workers.leave(self._conn, self._worker.id)
        await self._forget_connection()
