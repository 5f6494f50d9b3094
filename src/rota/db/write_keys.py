"""Idempotency keys of writes within one session or by one run, with what the first of them was answered."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import orjson

from rota.db.pool import Connection

EARLIER = """
SELECT k.workspace_id, k.scope_id, k.key, k.body_hash, k.answer
  FROM json_to_recordset(%(keys)s::json) AS given(workspace_id uuid, scope_id uuid, key text)
       JOIN write_keys k ON k.workspace_id = given.workspace_id AND k.scope_id = given.scope_id AND k.key = given.key
"""

Key = tuple[UUID, UUID, str]


async def earlier(conn: Connection, keys: Iterable[Key]) -> dict[Key, tuple[bytes, Any]]:
    """What was written with these keys before: the hash of the request, and its answer."""
    given = [{"workspace_id": w, "scope_id": s, "key": k} for w, s, k in keys]
    if not given:
        return {}
    rows = await conn.execute(EARLIER, {"keys": orjson.dumps(given).decode()})
    return {(w, s, k): (bytes(body_hash), answer) for w, s, k, body_hash, answer in await rows.fetchall()}
