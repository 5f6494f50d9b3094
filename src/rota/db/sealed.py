"""Everything that the vault has sealed, whatever it is for: which keys are in use, and sealing it anew."""

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from rota.db.pool import Connection

KINDS = ("credentials", "former_credentials", "webhook_secrets", "notification_targets")

# `place` is what the secret is bound to; whoever seals says the same.
EVERYTHING = """
SELECT 'credentials' AS kind, workspace_id, id, key_id, sealed, format('credential/%%s/%%s', workspace_id, id) AS place
  FROM credentials
 UNION ALL
SELECT 'former_credentials', workspace_id, id, key_id, sealed, format('credential/%%s/%%s', workspace_id, credential_id)
  FROM former_credentials
 UNION ALL
SELECT 'webhook_secrets', workspace_id, id, key_id, sealed, format('webhook/%%s/%%s/%%s', workspace_id, trigger_id, id)
  FROM webhook_secrets
 UNION ALL
SELECT 'notification_targets', workspace_id, id, key_id, sealed, format('target/%%s/%%s', workspace_id, id)
  FROM notification_targets
"""

COUNTS = f"SELECT key_id, count(*) FROM ({EVERYTHING}) every GROUP BY key_id ORDER BY key_id"  # noqa: S608

SAMPLES = f"""
SELECT kind, workspace_id, id, key_id, sealed, place
  FROM (SELECT every.*, row_number() OVER (PARTITION BY key_id ORDER BY id) AS nth FROM ({EVERYTHING}) every) numbered
 WHERE nth <= %(of_each)s ORDER BY key_id, nth
"""  # noqa: S608

STALE = f"""
SELECT kind, workspace_id, id, key_id, sealed, place FROM ({EVERYTHING}) every
 WHERE key_id <> %(newest)s AND NOT id = ANY(%(passed_over)s) LIMIT %(limit)s
"""  # noqa: S608

# The old content is the state expected: who gave it a new value meanwhile has sealed it with the newest key.
RESEAL = {
    kind: f"UPDATE {kind} SET sealed = %(new)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND sealed = %(old)s"  # noqa: S608
    for kind in KINDS
}

WAIT_FOR_WRITERS = f"LOCK TABLE {', '.join(KINDS)} IN SHARE MODE"


class Sealed(NamedTuple):
    kind: str
    workspace_id: UUID
    id: UUID
    key_id: str
    sealed: bytes
    place: str


async def counts(conn: Connection) -> dict[str, int]:
    """How much is sealed with each key."""
    return dict(await (await conn.execute(COUNTS.encode(), {})).fetchall())


async def samples(conn: Connection, of_each: int) -> list[Sealed]:
    """A few secrets for each key in use."""
    async with conn.cursor(row_factory=class_row(Sealed)) as cursor:
        await cursor.execute(SAMPLES.encode(), {"of_each": of_each})
        return await cursor.fetchall()


async def stale(conn: Connection, newest: str, *, limit: int, passed_over: Collection[UUID] = ()) -> list[Sealed]:
    """Some of what is sealed with another key than the newest."""
    async with conn.cursor(row_factory=class_row(Sealed)) as cursor:
        await cursor.execute(STALE.encode(), {"newest": newest, "limit": limit, "passed_over": list(passed_over)})
        return await cursor.fetchall()


async def reseal(conn: Connection, each: Sealed, new: bytes) -> None:
    given = {"workspace_id": each.workspace_id, "id": each.id, "old": each.sealed, "new": new}
    await conn.execute(RESEAL[each.kind].encode(), given)


async def wait_for_writers(conn: Connection) -> None:
    """Until this transaction ends nobody writes a secret."""
    await conn.execute(WAIT_FOR_WRITERS.encode())
