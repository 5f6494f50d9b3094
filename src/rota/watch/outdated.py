"""Ends a process whose schema was changed by a newer Rota: what it reads and writes there, nobody knows."""

from collections.abc import Callable
from datetime import timedelta

from rota.db import migrate
from rota.db.pool import Database
from rota.errors import CannotStart

EVERY = timedelta(seconds=60)


class Outdated:
    """Looks now and then, and when whoever changed the schema says so."""

    name = "outdated"

    def __init__(self, db: Database, give_up: Callable[[CannotStart], None]) -> None:
        self._db, self._give_up = db, give_up

    async def once(self) -> float:
        async with self._db.connection() as conn:
            try:
                await migrate.refuse_newer(conn)
            except CannotStart as refused:
                self._give_up(refused)
        return EVERY.total_seconds()
