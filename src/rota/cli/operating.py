"""What commands for the operator share: they work at the database itself, whether or not a Rota is running."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rota.daemon import database
from rota.db.pool import Connection
from rota.settings import Settings

T = TypeVar("T")


def in_transaction(settings: Settings, do: Callable[[Connection], Awaitable[T]]) -> T:
    async def done() -> T:
        async with database(settings) as (db, _), db.transaction() as conn:
            return await do(conn)

    return asyncio.run(done())
