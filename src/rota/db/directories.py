"""Which sessions no longer need their directory, and the lock under which it is taken away from them."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from rota.db.pool import Connection

LET_GO = """
-- Of these sessions, those that ended long ago and do not work: locked, so that a run that is to go on there waits until the
-- directory is gone, and left for later if somebody has them. Also those whose session is deleted, in a workspace that this
-- database knows: another home's are left alone.
WITH given AS MATERIALIZED (SELECT * FROM unnest(%(workspaces)s::uuid[], %(sessions)s::uuid[]) AS g(workspace_id, id)),
ended AS MATERIALIZED (
    SELECT s.workspace_id, s.id FROM sessions s
     WHERE (s.workspace_id, s.id) IN (SELECT workspace_id, id FROM given)
       AND s.status IN ('done', 'failed', 'archived') AND s.updated_at < now() - %(kept)s
       AND NOT EXISTS (SELECT FROM runs r
                        WHERE r.workspace_id = s.workspace_id AND r.session_id = s.id AND r.finished_at IS NULL)
       AND NOT EXISTS (SELECT FROM automations a
                        WHERE a.workspace_id = s.workspace_id AND a.id = s.automation_id AND a.session_id = s.id)
       FOR UPDATE OF s SKIP LOCKED)
SELECT workspace_id, id FROM ended
 UNION ALL
SELECT g.workspace_id, g.id FROM given g JOIN workspaces w ON w.id = g.workspace_id
 WHERE NOT EXISTS (SELECT FROM sessions s WHERE s.workspace_id = g.workspace_id AND s.id = g.id)
"""

Session = tuple[UUID, UUID]  # a workspace and a session


async def let_go(conn: Connection, sessions: Sequence[Session], kept: timedelta) -> list[Session]:
    """Those of the sessions whose directory may go, held until the transaction ends."""
    values = {"workspaces": [w for w, _ in sessions], "sessions": [s for _, s in sessions], "kept": kept}
    return [(w, s) for w, s in await (await conn.execute(LET_GO, values)).fetchall()]
