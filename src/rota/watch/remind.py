"""Reminds people of grants that are about to expire."""

import logging

from rota.db.pool import Database
from rota.notify import telling

log = logging.getLogger(__name__)

BATCH = 500
EVERY_SECONDS = 600.0


class Remind:
    """A pass tells whose grants end soon, each once."""

    name = "remind"

    def __init__(self, db: Database) -> None:
        self._db = db

    async def once(self) -> float:
        async with self._db.transaction() as conn:
            grants = await telling.of_expiring(conn, BATCH)
        if grants:
            log.info("grants.expiring", extra={"grants": grants})
        return 0.0 if grants == BATCH else EVERY_SECONDS
