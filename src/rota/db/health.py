"""What a check-up looks at."""

from datetime import timedelta
from typing import NamedTuple

from rota.db.pool import Connection

EXAMINE = """
SELECT abs(extract(epoch FROM clock_timestamp())::float8 - %(now)s::float8),
       (SELECT count(*) FROM triggers WHERE parked_error IS NOT NULL),
       (SELECT count(*) FROM workers WHERE stopped_at IS NULL AND last_seen_at > clock_timestamp() - %(dead_after)s)
"""


class Health(NamedTuple):
    skew: float
    parked: int
    workers: int


async def examine(conn: Connection, *, now: float, dead_after: timedelta) -> Health:
    """Seconds between this machine's clock and the database's, parked triggers, and workers that are alive."""
    row = await (await conn.execute(EXAMINE, {"now": now, "dead_after": dead_after})).fetchone()
    assert row
    return Health(*row)
