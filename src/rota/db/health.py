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


END_UNREAD = """
-- A backend that sends and whose client reads nothing: no time-out of PostgreSQL ends it, unless the connection is TCP's.
-- No process of Rota waits so long for an answer.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = session_user AND application_name = 'rota' AND pid <> pg_backend_pid()
   AND state = 'active' AND wait_event_type = 'Client' AND query_start < clock_timestamp() - %(silence)s::interval
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


async def end_unread(conn: Connection, *, silence: timedelta) -> int:
    """End the connections of processes that froze while PostgreSQL sent them an answer; how many there were."""
    row = await (await conn.execute(END_UNREAD, {"silence": silence})).fetchone()
    assert row
    return int(row[0])


async def hears(conn: Connection, url: str) -> bool:
    """Whether who listens there is told of what is notified here."""
    channel = f"rota_doctor_{secrets.token_hex(8)}"
    options = {"autocommit": True, "connect_timeout": CONNECT_SECONDS}
    async with await AsyncConnection.connect(url, **options) as listening:  # type: ignore[arg-type]
        await listening.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        await conn.execute("SELECT pg_notify(%(channel)s, '')", {"channel": channel})
        return bool([each async for each in listening.notifies(timeout=HEARD_WITHIN, stop_after=1)])
