"""The database's clock, by which all processes judge."""

from datetime import UTC, datetime
from typing import cast

from rota.db.pool import Connection

NOW = "SELECT now()"


async def now(conn: Connection) -> datetime:
    """When this transaction began."""
    row = await (await conn.execute(NOW)).fetchone()
    assert row
    return cast("datetime", row[0]).astimezone(UTC)
