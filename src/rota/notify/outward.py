"""Sends what waits to where people want it: at least once, and one message a minute for each target."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import timedelta

from rota.access.vault import Vault
from rota.db import targets
from rota.db.pool import Database
from rota.db.targets import Claim
from rota.errors import Broken
from rota.model.outward import GAP, MOST_TRIES, delay, message
from rota.notify.courier import SECONDS
from rota.notify.courier_process import run_courier
from rota.notify.targets import place
from rota.service import Wakeable

log = logging.getLogger(__name__)

AT_ONCE = 8
MOST_UNPROVEN = AT_ONCE // 2  # so many who never answer may be waited for; the other places stay for those who do
EVERY_SECONDS = 5.0
LEASE = timedelta(seconds=2 * SECONDS)


class Outward:
    """A pass claims targets for its free places. Each is sent to on its own, by a process of its own; when what came of
    it is written, its place is free again."""

    name = "outward"

    def __init__(self, db: Database, vault: Vault, *, url: str, allow: Collection[str] = ()) -> None:
        self._db, self._vault, self._url, self._allow = db, vault, url, list(allow)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unproven: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[str]] = set()
        self._loop: Wakeable | None = None

    def attach(self, loop: Wakeable) -> None:
        """Wake this loop whenever a place becomes free."""
        self._loop = loop

    async def once(self) -> float:
        free = AT_ONCE - len(self._tasks)
        async with self._db.transaction() as conn:
            proven = await targets.claim(conn, proven=True, limit=free, lease=LEASE)
            free = min(free - len(proven), MOST_UNPROVEN - len(self._unproven))
            unproven = await targets.claim(conn, proven=False, limit=free, lease=LEASE)
        for each in proven:
            self._begin(each)
        for each in unproven:
            self._unproven.add(self._begin(each))
        return EVERY_SECONDS

    def _begin(self, claim: Claim) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._deliver(claim))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._unproven.discard(task)
        if self._loop:
            self._loop.wake()

    async def drain(self, seconds: float) -> None:
        """Let what is on its way arrive for a while, and leave the rest to the next watch. What arrived is written."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for each in self._sending:
            each.cancel()
        await asyncio.gather(*self._tasks)

    async def _deliver(self, claim: Claim) -> None:
        sending = asyncio.create_task(self._send(claim))
        self._sending.add(sending)
        try:
            await self._settle(claim, await sending)
        except asyncio.CancelledError:
            if not sending.cancelled():
                raise
        except Exception as failure:  # the top of a task: nobody waits for it
            log.warning("notification.unsettled", extra={"target_id": claim.id, "error": str(failure).strip()})
        finally:
            self._sending.discard(sending)

    async def _settle(self, claim: Claim, error: str) -> None:
        """Write what came of it."""
        facts = {"target_id": claim.id, "tries": claim.tries}
        async with self._db.transaction() as conn:
            if not error:
                await targets.sent(conn, claim, pause=GAP)
            elif claim.tries < MOST_TRIES:
                await targets.failed(conn, claim, error, pause=delay(claim.tries))
            else:
                await targets.given_up(conn, claim, error, pause=GAP)
        if not error:
            log.info("notification.sent", extra={**facts, "told": len(claim.waiting)})
        elif claim.tries < MOST_TRIES:
            log.warning("notification.unsent", extra={**facts, "error": error})
        else:
            log.warning("notification.given_up", extra={**facts, "error": error})

    async def _send(self, claim: Claim) -> str:
        """Why it could not be sent; empty if it was."""
        try:
            url = self._vault.unseal(claim.sealed, place(claim.workspace_id, claim.id))
        except Broken as failure:
            return failure.message
        title, body = message(claim.waiting, f"{self._url}/w/{claim.workspace_slug}")
        return await courier({"url": url, "title": title, "body": body, "allow": self._allow})


async def courier(given: Mapping[str, object]) -> str:
    """Send one message. Why it could not be sent; empty if it was."""
    return str((await run_courier(given)).get("error", "the sender broke"))
