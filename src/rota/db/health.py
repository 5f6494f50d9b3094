"""What a check-up looks at."""

import secrets
from datetime import timedelta
from typing import NamedTuple

from psycopg import AsyncConnection, sql

from rota.db.pool import CONNECT_SECONDS, Connection

HEARD_WITHIN = 2.0  # seconds

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


async def hears(conn: Connection, url: str) -> bool:
    """Whether who listens there is told of what is notified here."""
    channel = f"rota_doctor_{secrets.token_hex(8)}"
    options = {"autocommit": True, "connect_timeout": CONNECT_SECONDS}
    async with await AsyncConnection.connect(url, **options) as listening:  # type: ignore[arg-type]
        await listening.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        await conn.execute("SELECT pg_notify(%(channel)s, '')", {"channel": channel})
        return bool([each async for each in listening.notifies(timeout=HEARD_WITHIN, stop_after=1)])
