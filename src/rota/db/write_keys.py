"""Idempotency keys of writes within one session, by one run or by one person, with what the first of them was answered."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import orjson
from psycopg.types.json import Jsonb

from rota.db.pool import Connection

EARLIER = """
SELECT k.workspace_id, k.scope_id, k.key, k.body_hash, k.answer
  FROM json_to_recordset(%(keys)s::json) AS given(workspace_id uuid, scope_id uuid, key text)
       JOIN write_keys k ON k.workspace_id = given.workspace_id AND k.scope_id = given.scope_id AND k.key = given.key
"""

BEGIN = """
-- A repeat that comes while the first is under way waits for it here.
INSERT INTO write_keys (workspace_id, scope_id, key, body_hash, answer)
VALUES (%(workspace_id)s, %(scope_id)s, %(key)s, %(body_hash)s, 'null')
    ON CONFLICT (workspace_id, scope_id, key) DO NOTHING
"""

FINISH = """
UPDATE write_keys SET answer = %(answer)s
 WHERE workspace_id = %(workspace_id)s AND scope_id = %(scope_id)s AND key = %(key)s
"""

Key = tuple[UUID, UUID, str]


async def earlier(conn: Connection, keys: Iterable[Key]) -> dict[Key, tuple[bytes, Any]]:
    """What was written with these keys before: the hash of the request, and its answer."""
    given = [{"workspace_id": w, "scope_id": s, "key": k} for w, s, k in keys]
    if not given:
        return {}
    rows = await conn.execute(EARLIER, {"keys": orjson.dumps(given).decode()})
    return {(w, s, k): (bytes(body_hash), answer) for w, s, k, body_hash, answer in await rows.fetchall()}


async def begin(conn: Connection, key: Key, body_hash: bytes) -> bool:
    """Whether this is the first write with its key."""
    given = {"workspace_id": key[0], "scope_id": key[1], "key": key[2], "body_hash": body_hash}
    return (await conn.execute(BEGIN, given)).rowcount > 0


async def finish(conn: Connection, key: Key, answer: Any) -> None:
    given = {"workspace_id": key[0], "scope_id": key[1], "key": key[2], "answer": Jsonb(answer)}
    await conn.execute(FINISH, given)
