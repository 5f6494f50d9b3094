"""Keeps this worker's claims alive: all leases in one statement, on a connection of its own."""

import asyncio
import logging
import os
import socket
import time
from contextlib import suppress
from datetime import timedelta

import psycopg

from rota.db import attempts, workers
from rota.db.pool import Connection, Database
from rota.timeouts import STOP_AT
from rota.worker.worker import Worker

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5


class Lease:
    """A pass renews every lease. What was lost is dropped; who cannot renew at all stops its agents in time."""

    name = "lease"

    def __init__(self, db: Database, worker: Worker, *, lease: timedelta, heartbeat: timedelta) -> None:
        self._db = db
        self._worker = worker
        self._lease = lease
        self._heartbeat = heartbeat.total_seconds()
        self._stop = lease.total_seconds() * STOP_AT
        self._conn: Connection | None = None
        self.alarm: asyncio.TimerHandle | None = None  # stops all agents, unless a renewal comes first

    async def once(self) -> float:
        asked = time.monotonic()
        self.alarm = self.alarm or self._alarm_at(asked)
        try:
            await self._renew()
        except (psycopg.Error, OSError, TimeoutError) as failure:
            log.warning("lease.unrenewed", extra={"error": str(failure).strip() or type(failure).__name__})
            await self._forget_connection()
            return min(RETRY_SECONDS, self._heartbeat)
        self.alarm.cancel()
        self.alarm = self._alarm_at(asked)
        return self._heartbeat

    def _alarm_at(self, asked: float) -> asyncio.TimerHandle:
        """Whatever a renewal is waiting for then: agents stop before the lease ends, which began after we asked."""
        in_seconds = asked + self._stop - time.monotonic()
        return asyncio.get_running_loop().call_later(in_seconds, self.stop_agents)

    def stop_agents(self) -> None:
        """Stop all agents here, and those of runs that are claimed before the next renewal."""
        self._worker.drop_all()
        self.alarm = asyncio.get_running_loop().call_later(self._heartbeat, self.stop_agents)

    async def _renew(self) -> None:
        if self._conn is None or self._conn.closed:
            async with asyncio.timeout(self._heartbeat):
                self._conn = await self._db.reserve()
            self._conn.patience = self._heartbeat
        await self._beat(self._conn)
        held = dict(self._worker.attempts)
        if not held:
            return
        ours = await attempts.renew(self._conn, [attempt.key for attempt in held.values()], self._lease)
        for run_id, attempt in held.items():
            if run_id not in ours and self._worker.attempts.get(run_id) is attempt:
                attempt.drop()
            elif ours.get(run_id):
                attempt.cancel()

    async def _beat(self, conn: Connection) -> None:
        worker = self._worker
        at_work = [attempt.at_work() for attempt in worker.attempts.values()]
        await workers.beat(
            conn,
            worker.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            places=worker.places,
            busy=worker.busy,
            kinds=worker.kinds,
            pools=worker.pools,
            sandbox=worker.sandbox,
            at_work=at_work,
        )

    async def _forget_connection(self) -> None:
        conn, self._conn = self._conn, None
        if conn:
            await conn.close()

    async def leave(self) -> None:
        """Say goodbye, so that the fleet shows no dead worker."""
        if self.alarm:
            self.alarm.cancel()
        if self._conn and not self._conn.closed:
            with suppress(psycopg.Error, OSError):  # then it counts as dead soon enough
                await workers.leave(self._conn, self._worker.id)
        await self._forget_connection()
