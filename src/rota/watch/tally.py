"""Sums up what was spent, so that a month of it is read at once."""

from rota.db import tallies
from rota.db.pool import Database
from rota.db.tallies import Standing
from rota.model.tally import closed_until, made_at, quarter

EVERY_SECONDS = 300.0


class Tally:
    """A pass brings every workspace's sums forward by at most a day, and comes back at once while there is more."""

    name = "tally"

    def __init__(self, db: Database) -> None:
        self._db = db

    async def once(self) -> float:
        async with self._db.connection() as conn:
            standings = await tallies.standings(conn)
        moved = [await self._move(each) for each in standings]
        return 0.0 if any(moved) else EVERY_SECONDS

    async def _move(self, standing: Standing) -> bool:
        start = standing.until or quarter(made_at(standing.first) if standing.first else standing.now)
        end = closed_until(start, standing.now, standing.oldest)
        async with self._db.transaction() as conn:
            if standing.until is None:
                await tallies.begin(conn, standing.workspace_id, start)
            if end > start:
                await tallies.sum_up(conn, standing.workspace_id, start, end)
        return end > start
