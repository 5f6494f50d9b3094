"""Sends what waits to where people want it: at least once, and one message a minute for each target."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Collection
from datetime import timedelta

from rota.access.vault import Vault
from rota.db import targets
from rota.db.pool import Database
from rota.db.targets import Claim
from rota.errors import Broken
from rota.model.outward import GAP, MOST_TRIES, delay, message
from rota.notify.courier import SECONDS
from rota.notify.targets import place

log = logging.getLogger(__name__)

AT_ONCE = 4
EVERY_SECONDS = 5.0
LEASE = timedelta(seconds=2 * SECONDS)
KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


class Outward:
    """A pass claims some targets, sends to each in a process of its own, and writes what came of it."""

    name = "outward"

    def __init__(self, db: Database, vault: Vault, *, url: str, allow: Collection[str] = ()) -> None:
        self._db, self._vault, self._url, self._allow = db, vault, url, list(allow)

    async def once(self) -> float:
        async with self._db.transaction() as conn:
            claims = await targets.claim(conn, limit=AT_ONCE, lease=LEASE)
        await asyncio.gather(*(self._deliver(each) for each in claims))
        return 0.0 if len(claims) == AT_ONCE else EVERY_SECONDS

    async def _deliver(self, claim: Claim) -> None:
        error = await self._send(claim)
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


async def courier(given: dict[str, object]) -> str:
    # No proxies: they would look up names themselves.
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rota.notify.courier", env=environment,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS + 5):
            told, _ = await child.communicate(json.dumps(given).encode())
        return str(json.loads(told)["error"])
    except (TimeoutError, ValueError, KeyError):
        return f"it did not end within {SECONDS} seconds" if child.returncode in {None, -14} else "the sender broke"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
