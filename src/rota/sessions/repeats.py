"""A repeat with its key is the same write: it is not done again, and has the answer of the first."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import orjson

from rota.db import write_keys
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.ids import WorkspaceId


async def once(
    conn: Connection,
    workspace_id: WorkspaceId,
    scope_id: UUID,
    key: str | None,
    request: Mapping[str, Any],
    write: Callable[[Connection], Awaitable[Any]],
) -> Any:
    """The answer of a write, as JSON has it, done once for its key within a session or a run."""
    if key is None:
        return _as_json(await write(conn))
    where = (workspace_id, scope_id, key)
    body_hash = hashlib.sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS, default=str)).digest()
    if await write_keys.begin(conn, where, body_hash):
        answer = _as_json(await write(conn))
        await write_keys.finish(conn, where, answer)
        return answer
    first_hash, answer = (await write_keys.earlier(conn, [where]))[where]
    if first_hash != body_hash:
        raise Invalid("This Idempotency-Key was used with another request.", code="key_reused", field="Idempotency-Key")
    return answer


def _as_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, default=str))
