"""Rows by the names of their columns."""

from collections.abc import Mapping
from typing import Any

from psycopg.rows import dict_row

from rota.db.pool import Connection


async def named_rows(conn: Connection, query: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), given)
        return await cursor.fetchall()
