"""What commands for the operator share: they work at the database itself, whether or not a Rota is running."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg

from rota.cli import options
from rota.daemon import address, database
from rota.db.pool import Connection
from rota.errors import Broken
from rota.settings import Settings

# Without a handler Python prints the bare name of a log event among the output of a command.
logging.getLogger("rota").addHandler(logging.NullHandler())

T = TypeVar("T")


def in_transaction(settings: Settings, do: Callable[[Connection], Awaitable[T]]) -> T:
    async def done() -> T:
        async with database(settings) as (db, _), db.transaction() as conn:
            return await do(conn)

    try:
        return asyncio.run(done())
    except psycopg.Error as failure:
        raise Broken(f"The database did not do it, and nothing was changed: {reason(failure)}") from failure


def link(settings: Settings, secret: str, *, chosen: bool) -> str:
    """A link to sign in with, to where the `rota up` of this home answers unless an address was chosen: at the usual
    one, somebody else's program would be given the secret."""
    up = None if chosen or settings.url else options.up_at(settings.home)
    return f"{up or address(settings, None)}/sign-in?token={secret}"


def reason(failure: psycopg.Error) -> str:
    """What the database says, in one line."""
    return " ".join(str(failure).split()) or type(failure).__name__
