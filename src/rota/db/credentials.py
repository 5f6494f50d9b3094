"""Credentials, sealed; who names them; and the one statement that gives them to an attempt."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import CredentialId, RunId, WorkspaceId, as_uuid

# Never `sealed`: what is not read cannot be shown.
COLUMNS = """
c.id, c.name, c.description, c.usable_by, c.key_id, c.created_at, c.updated_at, c.last_used_at, u.name AS created_by
"""

SHOWN = (
    f"SELECT {COLUMNS} FROM credentials c JOIN users u ON u.id = c.created_by WHERE c.workspace_id = %(workspace_id)s"  # noqa: S608
)

INSERT = """
INSERT INTO credentials (workspace_id, id, name, description, usable_by, sealed, created_by)
VALUES (%(workspace_id)s, %(id)s, %(name)s, %(description)s, %(usable_by)s, %(sealed)s, %(created_by)s)
    ON CONFLICT (workspace_id, name) DO NOTHING
"""

# The value from before is kept for the filter of what those write who were given it.
UPDATE = """
WITH former AS (
    INSERT INTO former_credentials (workspace_id, credential_id, name, sealed)
    SELECT workspace_id, id, name, sealed FROM credentials
     WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND %(sealed)s::bytea IS NOT NULL)
UPDATE credentials
   SET description = %(description)s, usable_by = %(usable_by)s, sealed = coalesce(%(sealed)s, sealed), updated_at = now()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

DELETE = """
WITH gone AS (
    DELETE FROM credentials WHERE workspace_id = %(workspace_id)s AND id = %(id)s RETURNING workspace_id, id, name, sealed)
INSERT INTO former_credentials (workspace_id, credential_id, name, sealed) SELECT * FROM gone
"""

NAMES = """
SELECT name FROM credentials WHERE workspace_id = %(workspace_id)s AND (%(admin)s OR usable_by = 'member')
ORDER BY name LIMIT %(limit)s
"""

KNOWN = """
-- Held until the one who names them has committed, so that nobody deletes them in between.
SELECT name, usable_by FROM credentials
 WHERE workspace_id = %(workspace_id)s AND name = ANY(%(names)s)
ORDER BY name
   FOR KEY SHARE
"""

USES = """
SELECT used.value AS name, 'agent' AS kind, a.id, a.slug
  FROM agents a CROSS JOIN LATERAL jsonb_each_text(a.credentials) AS used
 WHERE a.workspace_id = %(workspace_id)s AND a.deleted_at IS NULL AND used.value = ANY(%(names)s)
 UNION
SELECT used.value, 'automation', a.id, a.slug
  FROM automations a CROSS JOIN LATERAL jsonb_each_text(a.credentials) AS used
 WHERE a.workspace_id = %(workspace_id)s AND a.deleted_at IS NULL AND a.credentials <> '{}' AND used.value = ANY(%(names)s)
ORDER BY 1, 2, 4
"""

RESOLVE = """
-- One statement, on the database's clock: the attempt holds its lease, under a grant that holds, for this very agent;
-- and what it gets is what its revision names. An automation may name only what its grant's holder may use; what the
-- agent names was given to it by an admin. The automation's word wins over its agent's.
-- fence: `running` computes the subject apart, because a join on coalesce() is a filter under row-level security.
WITH running AS MATERIALIZED (
    SELECT r.*, coalesce(r.automation_id, r.agent_id) AS subject_id FROM runs r
     WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s AND r.attempt = %(attempt)s),
held AS MATERIALIZED (
    SELECT r.workspace_id, v.spec, m.level,
           r.status IN ('running', 'awaiting_approval') AND r.lease_until > clock_timestamp() AS leased,
           m.level IS NOT NULL AND g.revoked_at IS NULL AND (g.expires_at IS NULL OR g.expires_at > clock_timestamp())
           AND g.scopes && ARRAY['agent:run:*', 'agent:run:' || r.agent_id] AS granted
      FROM running r
           JOIN grants g ON g.workspace_id = r.workspace_id AND g.id = r.grant_id
           JOIN revisions v ON v.workspace_id = r.workspace_id AND v.subject_id = r.subject_id AND v.revision = r.revision
           LEFT JOIN members m ON m.workspace_id = g.workspace_id AND m.user_id = g.user_id AND m.removed_at IS NULL),
wanted AS (
    SELECT each.key AS variable, each.value AS name, true AS by_agent
      FROM held, jsonb_each_text(held.spec -> 'agent' -> 'credentials') AS each
     WHERE NOT coalesce(held.spec -> 'credentials', '{}') ? each.key
     UNION ALL
    SELECT each.key, each.value, false FROM held, jsonb_each_text(held.spec -> 'credentials') AS each),
used AS (
    UPDATE credentials c SET last_used_at = now()
      FROM held
     WHERE held.leased AND held.granted AND c.workspace_id = held.workspace_id
       AND c.name IN (SELECT name FROM wanted) AND (c.last_used_at IS NULL OR c.last_used_at < now() - interval '1 minute'))
SELECT held.leased, held.granted, w.variable, w.name, c.id,
       w.by_agent OR c.usable_by = 'member' OR held.level = 'admin' AS allowed,
       CASE WHEN held.leased AND held.granted THEN c.sealed END AS sealed
  FROM held
       LEFT JOIN wanted w ON true
       LEFT JOIN credentials c ON c.workspace_id = held.workspace_id AND c.name = w.name
ORDER BY w.variable
"""


GIVEN = """
-- By name all values that this run's attempt may have been given, whatever became of them since; who began while one was
-- being replaced may have either. A name without any stands with NULL.
-- fence: `running` as in RESOLVE.
WITH running AS MATERIALIZED (
    SELECT r.workspace_id, r.started_at, r.revision, coalesce(r.automation_id, r.agent_id) AS subject_id FROM runs r
     WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s),
held AS MATERIALIZED (
    SELECT r.workspace_id, r.started_at, v.spec
      FROM running r JOIN revisions v ON v.workspace_id = r.workspace_id AND v.subject_id = r.subject_id
                                     AND v.revision = r.revision),
wanted AS (
    SELECT each.value AS name FROM held, jsonb_each_text(held.spec -> 'agent' -> 'credentials') AS each
     WHERE NOT coalesce(held.spec -> 'credentials', '{}') ? each.key
     UNION
    SELECT each.value FROM held, jsonb_each_text(held.spec -> 'credentials') AS each)
SELECT w.name, known.id, known.sealed
  FROM held CROSS JOIN wanted w LEFT JOIN LATERAL (
       SELECT c.id, c.sealed FROM credentials c WHERE c.workspace_id = held.workspace_id AND c.name = w.name
        UNION ALL
       SELECT f.credential_id, f.sealed FROM former_credentials f
        WHERE f.workspace_id = held.workspace_id AND f.name = w.name
          AND f.replaced_at > held.started_at - interval '1 minute') AS known ON true
"""


class Found(NamedTuple):
    """One variable of an attempt; the last five are NULL when it names none, the last three when there is no such."""

    leased: bool
    granted: bool
    variable: str | None
    name: str | None
    id: CredentialId | None
    allowed: bool | None
    sealed: bytes | None


async def find(conn: Connection, workspace_id: WorkspaceId, ref: str, *, lock: bool = False) -> dict[str, Any] | None:
    """One credential by id or name."""
    query = f"{SHOWN} AND (c.name = %(ref)s OR c.id = %(id)s){' FOR UPDATE OF c' if lock else ''}"
    found = await named_rows(conn, query, {"workspace_id": workspace_id, "ref": ref, "id": as_uuid(ref)})
    return found[0] if found else None


async def page(conn: Connection, workspace_id: WorkspaceId, *, before: UUID | None, limit: int) -> list[dict[str, Any]]:
    query = f"{SHOWN} AND c.id < %(before)s ORDER BY c.id DESC LIMIT %(limit)s"
    return await named_rows(
        conn, query, {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit}
    )


async def names(conn: Connection, workspace_id: WorkspaceId, *, admin: bool, limit: int) -> list[str]:
    """Names of the credentials that an admin, or a member, may give to an automation."""
    given = {"workspace_id": workspace_id, "admin": admin, "limit": limit}
    return [name for (name,) in await (await conn.execute(NAMES, given)).fetchall()]


async def insert(conn: Connection, credential: dict[str, Any]) -> bool:
    """False if the name is taken."""
    return (await conn.execute(INSERT, credential)).rowcount == 1


async def update(conn: Connection, credential: dict[str, Any]) -> None:
    await conn.execute(UPDATE, credential)


async def delete(conn: Connection, workspace_id: WorkspaceId, credential_id: CredentialId) -> None:
    await conn.execute(DELETE, {"workspace_id": workspace_id, "id": credential_id})


async def known(conn: Connection, workspace_id: WorkspaceId, names: Sequence[str]) -> dict[str, str]:
    """Those that exist, each with who may use it."""
    return dict(await (await conn.execute(KNOWN, {"workspace_id": workspace_id, "names": list(names)})).fetchall())


async def uses(conn: Connection, workspace_id: WorkspaceId, names: Sequence[str]) -> list[dict[str, Any]]:
    """The agents and automations that name them."""
    return await named_rows(conn, USES, {"workspace_id": workspace_id, "names": list(names)})


async def resolve(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> list[Found]:
    async with conn.cursor(row_factory=class_row(Found)) as cursor:
        await cursor.execute(RESOLVE, {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt})
        return await cursor.fetchall()


async def given(
    conn: Connection, workspace_id: WorkspaceId, run_id: RunId
) -> list[tuple[str, CredentialId | None, bytes | None]]:
    """What the attempt of a run may have been given: its name, the credential that it is bound to, and sealed."""
    rows = await conn.execute(GIVEN, {"workspace_id": workspace_id, "run_id": run_id})
    return await rows.fetchall()
