"""Passwords: kept as argon2id hashes, checked in the same time whether or not there is such an account."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from rota.errors import Invalid

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST, LONGEST = 12, 256

_at_once = ThreadPoolExecutor(2, "passwords")  # each takes 64 MiB while it works


@cache
def _hasher() -> "PasswordHasher":
    from argon2 import PasswordHasher  # noqa: PLC0415 — only when somebody has a password

    return PasswordHasher()


@cache
def _decoy() -> str:
    return _hasher().hash("what an account without a password is checked against")


def check(password: str, field: str = "password") -> str:
    """A password that is long enough, or why not. What stands in it is nobody's business."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise Invalid(
            f"A password has {SHORTEST} to {LONGEST} characters; several words are easy to keep in mind.",
            code="weak_password", field=field,
        )  # fmt: skip
    if len(set(password)) < 4 or any("\ud800" <= each <= "\udfff" for each in password):
        raise Invalid("This password is too easy to guess.", code="weak_password", field=field)
    return password


async def hashed(password: str) -> str:
    return await asyncio.get_running_loop().run_in_executor(_at_once, lambda: _hasher().hash(password))


async def is_right(stored: str | None, given: str) -> bool:
    """Takes as long for an account that is not there, or has no password."""
    return await asyncio.get_running_loop().run_in_executor(_at_once, _verify, stored, given[: LONGEST + 1])


def _verify(stored: str | None, given: str) -> bool:
    from argon2.exceptions import VerificationError  # noqa: PLC0415

    try:
        return _hasher().verify(stored or _decoy(), given.encode("utf-8", "surrogatepass")) and stored is not None
    except VerificationError:
        return False
