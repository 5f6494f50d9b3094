"""Sums up what was spent, so that a month of it is read at once."""

from datetime import datetime

from rota.db import tallies
from rota.db.pool import Database
from rota.db.tallies import Standing
from rota.model.tally import closed_until, made_at, quarter

EVERY_SECONDS = 300.0
MOST_AT_ONCE = 200  # workspaces


class Tally:
    """A pass brings the sums of each workspace that spends forward by at most a day, and comes back at once while there
    is more."""

    name = "tally"

    def __init__(self, db: Database) -> None:
        self._db = db

    async def once(self) -> float:
        async with self._db.connection() as conn:
            closed = [
                (each, end) for each in await tallies.standings(conn) if (end := _closed(each)) > made_at(each.first)
            ]
            for at in range(0, len(closed), MOST_AT_ONCE):
                await tallies.sum_up(conn, closed[at : at + MOST_AT_ONCE])
        return 0.0 if closed else EVERY_SECONDS


def _closed(standing: Standing) -> datetime:
    return closed_until(quarter(made_at(standing.first)), standing.now, standing.oldest)
