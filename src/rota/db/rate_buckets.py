"""Buckets that fill by so many a second, up to a burst, and that every request draws from."""

from typing import NamedTuple

from rota.db.pool import Connection
from rota.model.ids import WorkspaceId

# What is in it now: what was left, and what has flowed in since.
LEVEL = "least(%(burst)s, b.level + %(rate)s * extract(epoch FROM clock_timestamp() - b.filled_at))"

DRAW = f"""
-- Up to so many as are wanted, on the database's clock, in one statement whoever else draws from it.
INSERT INTO rate_buckets AS b (workspace_id, key, level, taken, filled_at)
VALUES (%(workspace_id)s, %(key)s, %(burst)s::double precision - %(wanted)s, %(wanted)s, clock_timestamp())
ON CONFLICT (workspace_id, key) DO UPDATE
   SET taken = least(%(wanted)s, greatest(floor({LEVEL}), 0)),
       level = {LEVEL} - least(%(wanted)s, greatest(floor({LEVEL}), 0)),
       filled_at = clock_timestamp()
RETURNING taken, level
"""  # noqa: S608 — constants of this module


class Drawn(NamedTuple):
    taken: int
    level: float


async def draw(conn: Connection, workspace_id: WorkspaceId, key: bytes, *, wanted: int, rate: int, burst: int) -> Drawn:
    given = {"workspace_id": workspace_id, "key": key, "wanted": wanted, "rate": float(rate), "burst": float(burst)}
    row = await (await conn.execute(DRAW.encode(), given)).fetchone()
    assert row
    return Drawn(row[0], row[1])
