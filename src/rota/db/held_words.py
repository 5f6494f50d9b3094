"""What an attempt that speaks over HTTP has begun to say, and may be the beginning of a secret: as numbers only."""

from rota.db.pool import Connection
from rota.model.ids import RunId, WorkspaceId
from rota.model.redaction import Held

# Locked: of two requests of one attempt the second sees what the first has left. The numbers mean the secrets of then: once
# one was given another value, they would bring letters of that into the transcript.
FIND = """
SELECT h.form, h.size, h.shown, h.covered FROM held_words h
 WHERE h.workspace_id = %(workspace_id)s AND h.run_id = %(run_id)s AND h.attempt = %(attempt)s
   AND NOT EXISTS (SELECT FROM credentials c WHERE c.workspace_id = h.workspace_id AND c.updated_at >= h.held_at) FOR UPDATE
"""

HOLD = """
INSERT INTO held_words (workspace_id, run_id, attempt, form, size, shown, covered)
VALUES (%(workspace_id)s, %(run_id)s, %(attempt)s, %(form)s, %(size)s, %(shown)s, %(covered)s)
    ON CONFLICT (workspace_id, run_id, attempt) DO UPDATE
   SET form = excluded.form, size = excluded.size, shown = excluded.shown, covered = excluded.covered, held_at = now()
"""

LET_GO = """
DELETE FROM held_words WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s AND attempt = %(attempt)s
"""


async def find(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> Held | None:
    given = {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt}
    row = await (await conn.execute(FIND, given)).fetchone()
    return Held(*row) if row else None


async def hold(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int, held: Held | None) -> None:
    given = {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt}
    if held is None:
        await conn.execute(LET_GO, given)
    else:
        await conn.execute(HOLD, {**given, **held._asdict()})
