"""A repeat with its key is the same write: it is not done again, and has the answer of the first."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast
from uuid import UUID

import orjson

from rota.db import start_keys, write_keys
from rota.db.pool import Connection
from rota.errors import Invalid
from rota.model.ids import WorkspaceId

Made = TypeVar("Made", bound=UUID)

REUSED = "This Idempotency-Key was used with another request."


def check_key(key: str | None) -> None:
    if key is not None and (not 1 <= len(key) <= 200 or not key.isprintable()):
        told = "An Idempotency-Key has 1 to 200 printable characters."
        raise Invalid(told, code="invalid_key", field="Idempotency-Key")


async def made_once(
    conn: Connection,
    workspace_id: WorkspaceId,
    key: str | None,
    request: Mapping[str, Any],
    make: Callable[[], Awaitable[Made]],
) -> tuple[Made, bool]:
    """What this request makes in a workspace, or made before with the same key, and whether it was made now."""
    if key is None:
        return await make(), True
    check_key(key)
    earlier = await start_keys.take_turn(conn, workspace_id, key)
    return await made_in_turn(conn, workspace_id, key, request, earlier, make)


async def made_in_turn(
    conn: Connection,
    workspace_id: WorkspaceId,
    key: str,
    request: Mapping[str, Any],
    earlier: start_keys.Earlier | None,
    make: Callable[[], Awaitable[Made]],
) -> tuple[Made, bool]:
    """The same for who has had its turn of the key, and knows what was made `earlier`."""
    body_hash = _hash(request)
    if earlier is None:
        made = await make()
        await start_keys.add(conn, workspace_id, key, body_hash, made)
        return made, True
    _refuse_another(body_hash, earlier[0])
    return cast("Made", earlier[1]), False


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
    body_hash = _hash(request)
    if await write_keys.begin(conn, where, body_hash):
        answer = _as_json(await write(conn))
        await write_keys.finish(conn, where, answer)
        return answer
    first_hash, answer = (await write_keys.earlier(conn, [where]))[where]
    _refuse_another(body_hash, first_hash)
    return answer


def _hash(request: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS, default=str)).digest()


def _refuse_another(body_hash: bytes, first: bytes) -> None:
    if body_hash != first:
        raise reused()


def reused() -> Invalid:
    return Invalid(REUSED, code="key_reused", field="Idempotency-Key")


def _as_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, default=str))
