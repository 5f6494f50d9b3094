"""Slows down who guesses passwords: for each account and each address the next try is taken later and later."""

import hashlib
import math
from datetime import timedelta

from rota.db import throttles
from rota.db.pool import Database
from rota.errors import TooMany

FREE = 5
FREE_OF_AN_ADDRESS = 20  # many people may share one
FIRST, LONGEST = timedelta(seconds=1), timedelta(minutes=15)
FORGET = timedelta(hours=1)


def keys(email: str, address: str) -> tuple[bytes, bytes]:
    """Hashed, so that what people mistype as their e-mail address is not kept."""
    return _key("account", email), _key("address", address)


def _key(kind: str, name: str) -> bytes:
    return hashlib.sha256(f"{kind}:{name}".encode()).digest()


async def begin(db: Database, email: str, address: str) -> None:
    """Count a try, and refuse it while its time has not come. The same for accounts that are there and that are not."""
    account, place = keys(email, address)
    waits = []
    async with db.transaction() as conn:
        for key, free in ((account, FREE), (place, FREE_OF_AN_ADDRESS)):
            wait = await throttles.attempt(conn, key, free=free, first=FIRST, longest=LONGEST, forget=FORGET)
            if wait is not None:
                waits.append(wait)
    if waits:
        seconds = max(1, math.ceil(max(waits).total_seconds()))
        raise TooMany(
            f"Too many tries. Wait {seconds} seconds, then try again.", code="too_many_tries", retry_after=seconds
        )


async def succeed(db: Database, email: str, address: str) -> None:
    async with db.transaction() as conn:
        await throttles.forgive(conn, *keys(email, address))
