"""What the narrow tables of live runs must hold, by the ledger alone."""

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import dict_row

MIRRORED = {
    "live_runs": """
        SELECT workspace_id, id, automation_id, session_id, agent_id, lane, priority, source,
               status = 'queued' AND ready_at IS NULL FROM runs WHERE finished_at IS NULL""",
    "ready_runs": """
        SELECT workspace_id, id, queue, pool, executor, priority, ready_at,
               CASE WHEN source <> 'task' THEN ready_at + start_within END
          FROM runs WHERE status = 'queued' AND ready_at IS NOT NULL""",
    "taken_runs": """
        SELECT workspace_id, id, agent_id, session_id, status, lease_until IS NOT NULL
          FROM runs WHERE status IN ('running', 'awaiting_approval')""",
}


async def find_live_runs(conn: AsyncConnection[Any]) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute("SELECT * FROM live_runs ORDER BY id")
        return await cursor.fetchall()


async def count_rows(conn: AsyncConnection[Any]) -> dict[str, int]:
    """How many rows each of the narrow tables has."""
    counts = {}
    for table in MIRRORED:
        [(counts[table],)] = await (await conn.execute(f"SELECT count(*) FROM {table}".encode())).fetchall()
    return counts


async def astray(conn: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
    """Rows that stand in a table and should not, or should and do not; each with its table."""
    found: list[tuple[Any, ...]] = []
    for table, due in MIRRORED.items():
        query = f"(TABLE {table} EXCEPT ({due})) UNION ALL (({due}) EXCEPT TABLE {table})"
        found += [(table, *row) for row in await (await conn.execute(query.encode())).fetchall()]
    return found


async def tables_of(conn: AsyncConnection[Any], run_id: UUID) -> set[str]:
    """The tables in which a run stands."""
    found: set[str] = set()
    for table in MIRRORED:
        rows = await conn.execute(f"SELECT FROM {table} WHERE id = %s".encode(), [run_id])
        found |= {table} if rows.rowcount else set()
    return found


async def count_taken(conn: AsyncConnection[Any]) -> int:
    row = await (await conn.execute("SELECT count(*) FROM taken_runs")).fetchone()
    assert row
    return int(row[0])


async def make_ready(conn: AsyncConnection[Any]) -> None:
    """Let every waiting run look due, whatever the ledger says."""
    await conn.execute("UPDATE ready_runs SET ready_at = now()")
