"""Slows down who guesses passwords: for each account and each address the next try is taken later and later. And who
begins one sign-in with the identity provider after the other without ending any."""

import hashlib
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from rota.db import throttles
from rota.db.pool import Database
from rota.errors import TooMany

FREE = 5
FREE_OF_AN_ADDRESS = 20  # many people may share one
FREE_ELSEWHERE = 60  # sign-ins of an address that were begun and not ended: nothing can be guessed by them
FIRST, LONGEST = timedelta(seconds=1), timedelta(minutes=15)
LONGEST_ELSEWHERE = timedelta(seconds=5)  # others of this address get their turn, whoever floods it
FORGET = timedelta(hours=1)


class _Count(NamedTuple):
    """What is counted, how much of it is free, and how long the next one waits at most."""

    key: bytes
    free: int
    longest: timedelta


def keys(email: str, address: str) -> tuple[bytes, bytes]:
    """Hashed, so that what people mistype as their e-mail address is not kept."""
    return _key("account", email), _key("address", address)


def _key(kind: str, name: str) -> bytes:
    return hashlib.sha256(f"{kind}:{name}".encode()).digest()


async def begin(db: Database, email: str, address: str) -> None:
    """Count a try, and refuse it while its time has not come. The same for accounts that are there and that are not."""
    account, place = keys(email, address)
    counted = (_Count(account, FREE, LONGEST), _Count(place, FREE_OF_AN_ADDRESS, LONGEST))
    if seconds := await _wait(db, counted):
        raise _too_many("Too many tries.", seconds)


async def succeed(db: Database, email: str, address: str) -> None:
    account, place = keys(email, address)
    async with db.transaction() as conn:
        await throttles.forgive(conn, account)
        await throttles.take_back(conn, place)


async def leave(db: Database, address: str) -> None:
    """Count a sign-in that is begun with the identity provider, and refuse it while its time has not come."""
    if seconds := await _wait(db, [_Count(_key("elsewhere", address), FREE_ELSEWHERE, LONGEST_ELSEWHERE)]):
        raise _too_many("Too many sign-ins were begun from your network and not ended.", seconds)


async def come_back(db: Database, address: str) -> None:
    """It was ended: the address gets it back, so that no number of people who sign in from there is too many."""
    async with db.transaction() as conn:
        await throttles.take_back(conn, _key("elsewhere", address))


async def _wait(db: Database, counted: Sequence[_Count]) -> int:
    """For how many seconds the next try is not taken; none if this one was."""
    waits = []
    async with db.transaction() as conn:
        for each in counted:
            wait = await throttles.attempt(
                conn, each.key, free=each.free, first=FIRST, longest=each.longest, forget=FORGET
            )
            if wait is not None:
                waits.append(wait)
    return max(1, math.ceil(max(waits).total_seconds())) if waits else 0


def _too_many(what: str, seconds: int) -> TooMany:
    return TooMany(f"{what} Wait {seconds} seconds, then try again.", code="too_many_tries", retry_after=seconds)
