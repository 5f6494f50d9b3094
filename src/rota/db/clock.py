"""The database's clock, by which all processes judge."""

from datetime import UTC, datetime
from typing import cast

from rota.db.pool import Connection

NOW = "SELECT statement_timestamp()"


async def now(conn: Connection) -> datetime:
    """The present, also of a transaction that began earlier and has waited for a lock since."""
    row = await (await conn.execute(NOW)).fetchone()
    assert row
    return cast("datetime", row[0]).astimezone(UTC)
