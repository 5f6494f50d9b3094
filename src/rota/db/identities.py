"""People as an identity provider knows them, and sign-ins that are on their way there and back."""

from datetime import timedelta
from typing import Any

from psycopg.rows import dict_row

from rota.db.pool import Connection
from rota.model.ids import UserId

BEGIN = """
INSERT INTO oidc_sign_ins (state_hash, browser_hash, nonce, verifier, next, expires_at)
VALUES (%(state)s, %(browser)s, %(nonce)s, %(verifier)s, %(next)s, now() + %(lasts)s)
"""

# Once: whoever comes a second time with the same state, or with another browser, finds nothing.
TAKE = """
DELETE FROM oidc_sign_ins WHERE state_hash = %(state)s AND browser_hash = %(browser)s AND expires_at > now()
RETURNING nonce, verifier, next
"""

FIND = """
SELECT u.id, u.disabled_at IS NOT NULL AS disabled FROM identities i JOIN users u ON u.id = i.user_id
 WHERE i.issuer = %(issuer)s AND i.subject = %(subject)s
"""

ADD = "INSERT INTO identities (issuer, subject, user_id) VALUES (%(issuer)s, %(subject)s, %(user_id)s)"

OF_USER = "SELECT issuer, created_at FROM identities WHERE user_id = %(user_id)s ORDER BY created_at, issuer"


SUBJECTS = "SELECT subject FROM identities WHERE issuer = %(issuer)s AND user_id = %(user_id)s"

FORGET = "DELETE FROM identities WHERE user_id = %(user_id)s RETURNING issuer"


async def begin(conn: Connection, lasts: timedelta, **given: Any) -> None:
    await conn.execute(BEGIN, {**given, "lasts": lasts})


async def take(conn: Connection, state: bytes, browser: bytes) -> dict[str, Any] | None:
    return await _one(conn, TAKE, {"state": state, "browser": browser})


async def find(conn: Connection, issuer: str, subject: str) -> dict[str, Any] | None:
    return await _one(conn, FIND, {"issuer": issuer, "subject": subject})


async def add(conn: Connection, issuer: str, subject: str, user_id: UserId) -> None:
    await conn.execute(ADD, {"issuer": issuer, "subject": subject, "user_id": user_id})


async def subjects(conn: Connection, issuer: str, user_id: UserId) -> list[str]:
    """As whom this provider knows somebody: one, or more from when a second was still taken for them."""
    rows = await conn.execute(SUBJECTS, {"issuer": issuer, "user_id": user_id})
    return [row[0] for row in await rows.fetchall()]


async def forget(conn: Connection, user_id: UserId) -> list[str]:
    """The providers that knew them."""
    rows = await conn.execute(FORGET, {"user_id": user_id})
    return sorted({row[0] for row in await rows.fetchall()})


async def of_user(conn: Connection, user_id: UserId) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(OF_USER, {"user_id": user_id})
        return await cursor.fetchall()


async def _one(conn: Connection, query: str, given: dict[str, Any]) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), given)
        return await cursor.fetchone()
