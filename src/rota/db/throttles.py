"""How often somebody tried to sign in as an account, or from an address, and when the next try is taken."""

from datetime import timedelta

from rota.db.pool import Connection

TRY = """
-- Counted before it is judged, so that many tries at once are as many as one after the other. Before its time has
-- come a key gives no row back.
INSERT INTO throttles AS t (key, tries, last_at, open_at) VALUES (%(key)s, 1, clock_timestamp(), clock_timestamp())
ON CONFLICT (key) DO UPDATE
   SET tries = CASE WHEN t.last_at < clock_timestamp() - %(forget)s THEN 1 ELSE t.tries + 1 END,
       last_at = clock_timestamp(),
       open_at = clock_timestamp() + CASE
           WHEN t.last_at < clock_timestamp() - %(forget)s OR t.tries < %(free)s THEN interval '0'
           ELSE least(%(first)s * power(2, least(t.tries - %(free)s, 20)), %(longest)s) END
 WHERE t.open_at <= clock_timestamp()
RETURNING key
"""

WAIT = "SELECT open_at - clock_timestamp() FROM throttles WHERE key = %(key)s"

FORGIVE = "DELETE FROM throttles WHERE key = %(key)s"

TAKE_BACK = "UPDATE throttles SET tries = greatest(tries - 1, 0), open_at = clock_timestamp() WHERE key = %(key)s"


async def attempt(
    conn: Connection, key: bytes, *, free: int, first: timedelta, longest: timedelta, forget: timedelta
) -> timedelta | None:
    """Count a try; None if it is taken, else how long to wait."""
    given = {"key": key, "free": free, "first": first, "forget": forget, "longest": longest}
    if (await conn.execute(TRY, given)).rowcount:
        return None
    row = await (await conn.execute(WAIT, {"key": key})).fetchone()
    return max(row[0], timedelta()) if row else timedelta()


async def forgive(conn: Connection, key: bytes) -> None:
    """It was the right person after all: their account starts anew."""
    await conn.execute(FORGIVE, {"key": key})


async def take_back(conn: Connection, key: bytes) -> None:
    """It was the right person after all: an address that others share gets this one try back."""
    await conn.execute(TAKE_BACK, {"key": key})
