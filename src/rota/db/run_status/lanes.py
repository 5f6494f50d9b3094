"""Runs that wait for one another: who comes to wait, and who is next."""

from collections.abc import Iterable
from uuid import UUID

import orjson

from rota.db.pool import Connection

MOST_LOOKS = 20  # what is missed after so many, the sweep finds

HOLD_LANES = """
-- Who waits behind a lane holds its holder's row until commit: so the holder either ends before, and is no longer seen
-- here, or ends after, and then sees who waits. Of those that wait, however many, none comes to hold the lane meanwhile: but
-- for the first, where nobody has it.
WITH seen AS MATERIALIZED (
    SELECT DISTINCT g.workspace_id, l.id
      FROM json_to_recordset(%(lanes)s::json) AS g(workspace_id uuid, lane uuid)
           CROSS JOIN LATERAL (
               SELECT l.id FROM live_runs l
                WHERE l.workspace_id = g.workspace_id AND l.automation_id = g.lane AND NOT l.waits
                UNION ALL
               SELECT l.id FROM live_runs l WHERE l.workspace_id = g.workspace_id AND l.lane = g.lane AND NOT l.waits
                UNION ALL
              (SELECT l.id FROM live_runs l WHERE l.workspace_id = g.workspace_id AND l.lane = g.lane AND l.waits
                  AND NOT EXISTS (
                          SELECT FROM live_runs h
                           WHERE h.workspace_id = g.workspace_id AND h.lane = g.lane AND NOT h.waits)
             ORDER BY l.priority, l.id LIMIT 1)) l),
held AS MATERIALIZED (
    SELECT r.id
      FROM seen JOIN runs r ON r.workspace_id = seen.workspace_id AND r.id = seen.id
     WHERE r.finished_at IS NULL
  ORDER BY r.workspace_id, r.id
       FOR SHARE OF r)
SELECT (SELECT count(*) FROM seen) = (SELECT count(*) FROM held)
"""

HOLD_ALL = """
SELECT r.id FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
 WHERE l.workspace_id = %(workspace_id)s AND l.automation_id = %(automation_id)s AND r.finished_at IS NULL
ORDER BY r.id
   FOR SHARE OF r
"""

PROMOTE = """
-- The first that waits in each lane becomes ready, if nothing holds the lane or runs outside it for the same automation, in
-- no lane or in the one that was its before its session was changed; a turn also waits for what its automation does in the session, which then goes on instead of ending. That cannot end
-- unseen: who ends it and who starts the turn both write to the session's log, and so one after the other.
-- Who waits is looked for first: mostly it is nobody. And only among what lives: the one session of an automation has had
-- every run of it.
WITH waiting AS MATERIALIZED (
    SELECT g.workspace_id, g.lane, w.id, row_number() OVER (
               PARTITION BY g.workspace_id, coalesce(w.automation_id, w.id) ORDER BY w.priority, w.id) AS number
      FROM (SELECT DISTINCT workspace_id, lane FROM json_to_recordset(%(lanes)s::json) AS g(workspace_id uuid, lane uuid)) g
           CROSS JOIN LATERAL (
               SELECT r.id, w.automation_id, w.priority FROM live_runs w JOIN runs r ON r.workspace_id = w.workspace_id AND r.id = w.id
                WHERE w.workspace_id = g.workspace_id AND w.lane = g.lane AND w.waits
                  AND r.status = 'queued' AND r.ready_at IS NULL
             ORDER BY w.priority, w.id LIMIT 1 FOR UPDATE OF r SKIP LOCKED) w),
promoted AS (
       UPDATE runs r SET ready_at = clock_timestamp()
         FROM waiting g
        WHERE r.workspace_id = g.workspace_id AND r.id = g.id AND g.number = 1
          AND NOT EXISTS (
                  SELECT FROM live_runs h
                   WHERE h.workspace_id = g.workspace_id AND h.lane = g.lane AND NOT h.waits)
          AND NOT EXISTS (
                  SELECT FROM live_runs h
                   WHERE h.workspace_id = g.workspace_id AND h.automation_id = r.automation_id
                     AND h.lane IS DISTINCT FROM g.lane AND h.source NOT IN ('chat', 'task')
                     AND NOT h.waits)
          AND NOT EXISTS (
                  SELECT FROM sessions s JOIN live_runs h ON h.workspace_id = s.workspace_id AND h.automation_id = s.automation_id
                   WHERE s.workspace_id = g.workspace_id AND s.id = g.lane AND h.session_id = s.id
                     AND h.lane IS DISTINCT FROM g.lane)
    RETURNING r.workspace_id, r.id, r.session_id, r.lane),
over AS MATERIALIZED (
    SELECT s.workspace_id, s.id
      FROM promoted p JOIN sessions s ON s.workspace_id = p.workspace_id AND s.id = p.session_id
     WHERE p.lane = p.session_id AND s.status IN ('done', 'failed')
  ORDER BY s.workspace_id, s.id
       FOR NO KEY UPDATE OF s),
going_on AS (
    UPDATE sessions s SET status = 'active', updated_at = now()
      FROM over WHERE s.workspace_id = over.workspace_id AND s.id = over.id AND s.status IN ('done', 'failed'))
SELECT id FROM promoted
"""

FREE_LANES = """
-- The net under promotion: lanes in which runs wait and nothing of what PROMOTE asks for holds them up. Those it would not
-- promote must not be among them: as many as a pass takes would hide the others for good.
SELECT DISTINCT w.workspace_id, w.lane FROM live_runs w
 WHERE w.waits AND w.lane IS NOT NULL
   AND NOT EXISTS (
           SELECT FROM live_runs h WHERE h.workspace_id = w.workspace_id AND h.lane = w.lane AND NOT h.waits)
   AND NOT EXISTS (
           SELECT FROM live_runs h
            WHERE h.workspace_id = w.workspace_id AND h.automation_id = w.automation_id
              AND h.lane IS DISTINCT FROM w.lane AND h.source NOT IN ('chat', 'task') AND NOT h.waits)
   AND NOT EXISTS (
           SELECT FROM sessions s JOIN live_runs h ON h.workspace_id = s.workspace_id AND h.automation_id = s.automation_id
            WHERE s.workspace_id = w.workspace_id AND s.id = w.lane AND h.session_id = s.id
              AND h.lane IS DISTINCT FROM w.lane)
 LIMIT %(limit)s
"""


async def hold_lanes(conn: Connection, lanes: Iterable[tuple[UUID, UUID]]) -> None:
    """Keep what holds these lanes from ending unseen until this transaction ends."""
    given = {"lanes": _lanes(lanes)}
    for _ in range(MOST_LOOKS):
        [(all_held,)] = await (await conn.execute(HOLD_LANES, given)).fetchall()
        if all_held:
            break  # else one ended while its row was waited for, and another may have come after it


async def hold_all(conn: Connection, workspace_id: UUID, automation_id: UUID) -> None:
    """Keep every live run of an automation, also those that wait, from ending until this transaction ends."""
    await conn.execute(HOLD_ALL, {"workspace_id": workspace_id, "automation_id": automation_id})


async def promote(conn: Connection, lanes: Iterable[tuple[UUID, UUID]]) -> int:
    """Make the next run of each lane ready; how many became ready."""
    return (await conn.execute(PROMOTE, {"lanes": _lanes(lanes)})).rowcount


async def free_lanes(conn: Connection, limit: int) -> list[tuple[UUID, UUID]]:
    rows = await conn.execute(FREE_LANES, {"limit": limit})
    return [(workspace_id, lane) for workspace_id, lane in await rows.fetchall()]


def _lanes(lanes: Iterable[tuple[UUID, UUID]]) -> str:
    return orjson.dumps([{"workspace_id": workspace_id, "lane": lane} for workspace_id, lane in lanes]).decode()
