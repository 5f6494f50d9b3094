"""What the end of a run means for its automation: failures in a row, who waits for it, and its grant once it is deleted."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from rota.db import at_once
from rota.db.arrays import Integers, Uuids
from rota.db.at_once import Step
from rota.db.pool import Connection
from rota.model.ids import AgentId, AutomationId, SessionId, WorkspaceId

NONE: Mapping[WorkspaceId, Sequence[AgentId]] = MappingProxyType({})

CONCERNED = """
-- Of the workspaces in which runs ended, those where more is to be done. Usually none. It must be a statement of its own: who
-- came to wait while the end was being written is seen by a new snapshot only.
-- Given are the ids of lanes, automations and sessions together, of each workspace a part: no two things share one. All are
-- looked for at once, in indexes that hold only what is looked for: where they hold nothing, a batch costs no more than a
-- run. Who is capped has room again, and a queue of its own: each agent's is looked for, since it may be capped only now.
SELECT * FROM (
    SELECT g.workspace_id,
           (SELECT true FROM live_runs w WHERE w.workspace_id = g.workspace_id AND w.lane = ANY(g.ids)
               AND w.waits LIMIT 1) AS waited_for,
           a.failing, a.deleted,
           (SELECT true FROM triggers t WHERE t.workspace_id = g.workspace_id AND t.after_automation_id = ANY(g.ids)
               AND t.kind = 'after' LIMIT 1) AS awaited,
           (SELECT array_agg(s.id) FROM sessions s WHERE s.workspace_id = g.workspace_id AND s.id = ANY(g.ids)
               AND s.has_tasks) AS with_tasks,
           coalesce(
               (SELECT true FROM unnest(g.agents) AS c(agent_id) CROSS JOIN LATERAL (
                    SELECT FROM ready_runs q WHERE q.workspace_id = g.workspace_id AND q.queue = c.agent_id
                  ORDER BY q.pool LIMIT 1) q LIMIT 1),
               (SELECT (SELECT true FROM ready_runs q WHERE q.workspace_id = w.id ORDER BY q.queue LIMIT 1)
                  FROM workspaces w WHERE w.id = g.workspace_id AND w.max_concurrent IS NOT NULL)) AS has_room
      FROM (SELECT workspace_id, (%(ids)s::uuid[])[ids_from : ids_to] AS ids,
                   (%(agents)s::uuid[])[agents_from : agents_to] AS agents
              FROM unnest(%(workspaces)s::uuid[], %(ids_from)s::integer[], %(ids_to)s::integer[],
                          %(agents_from)s::integer[], %(agents_to)s::integer[])
                   AS parts(workspace_id, ids_from, ids_to, agents_from, agents_to)
            OFFSET 0) g
           CROSS JOIN LATERAL (
               SELECT bool_or(a.failures > 0) AS failing, array_agg(a.id) FILTER (WHERE a.deleted_at IS NOT NULL) AS deleted
                 FROM automations a
                WHERE a.workspace_id = g.workspace_id AND a.id = ANY(g.ids)
                  AND (a.failures > 0 OR a.deleted_at IS NOT NULL)) a
    OFFSET 0) found
 WHERE waited_for OR failing OR deleted IS NOT NULL OR awaited OR with_tasks IS NOT NULL OR has_room
"""

COUNT_FAILURES = """
-- A success starts the count anew. Gives back the automations that have now failed as often as they may; what is deleted
-- fires no more, and is not paused.
WITH locked AS MATERIALIZED (
    SELECT a.workspace_id, a.id, a.status AS before,
           CASE WHEN given.succeeded THEN 0 ELSE a.failures END + given.failed AS failures
      FROM json_to_recordset(%(outcomes)s::json) AS given(workspace_id uuid, id uuid, succeeded boolean, failed integer)
           JOIN automations a ON a.workspace_id = given.workspace_id AND a.id = given.id
     WHERE given.failed > 0 OR a.failures > 0
  ORDER BY a.workspace_id, a.id FOR NO KEY UPDATE OF a),
counted AS (
    UPDATE automations a
       SET failures = l.failures,
           status = CASE WHEN l.failures >= a.pause_after_failures AND a.deleted_at IS NULL THEN 'paused' ELSE a.status END,
           paused_reason = CASE WHEN l.failures >= a.pause_after_failures AND a.deleted_at IS NULL AND a.status = 'active'
                                THEN 'It failed' || CASE l.failures WHEN 1 THEN '.'
                                     ELSE ' ' || l.failures || ' times in a row.' END
                                ELSE a.paused_reason END
      FROM locked l WHERE a.workspace_id = l.workspace_id AND a.id = l.id
 RETURNING a.workspace_id, a.id, a.status, l.before)
SELECT workspace_id, id FROM counted WHERE status = 'paused' AND before = 'active'
"""

HOLD = """
SELECT a.id
  FROM json_to_recordset(%(automations)s::json) AS given(workspace_id uuid, id uuid)
       JOIN automations a ON a.workspace_id = given.workspace_id AND a.id = given.id
ORDER BY a.workspace_id, a.id
   FOR NO KEY UPDATE OF a
"""

HOLD_FAILING = """
-- Those of them in which failures are counted. By an index that holds no others: mostly it is empty.
SELECT a.id
  FROM unnest(%(workspaces)s::uuid[], %(automations)s::uuid[]) AS given(workspace_id, id)
       JOIN automations a ON a.workspace_id = given.workspace_id AND a.id = given.id
 WHERE a.failures > 0
ORDER BY a.workspace_id, a.id
   FOR NO KEY UPDATE OF a
"""

REVOKE_OF_DELETED = """
UPDATE grants g SET revoked_at = now()
  FROM json_to_recordset(%(automations)s::json) AS given(workspace_id uuid, id uuid)
       JOIN automations a ON a.workspace_id = given.workspace_id AND a.id = given.id AND a.deleted_at IS NOT NULL
 WHERE g.workspace_id = a.workspace_id AND g.id = a.grant_id AND g.revoked_at IS NULL
   AND NOT EXISTS (SELECT FROM live_runs r WHERE r.workspace_id = a.workspace_id AND r.automation_id = a.id)
"""


class Concerned(NamedTuple):
    """A workspace in which the end of runs concerns others."""

    workspace_id: WorkspaceId
    waited_for: bool | None
    failing: bool | None
    deleted: Sequence[AutomationId] | None
    awaited: bool | None
    with_tasks: Sequence[SessionId] | None
    has_room: bool | None


def _given(automations: Iterable[tuple[UUID, UUID]]) -> str:
    rows = [{"workspace_id": workspace_id, "id": automation_id} for workspace_id, automation_id in set(automations)]
    return orjson.dumps(rows).decode()


def ask(ids: Mapping[WorkspaceId, Sequence[UUID]], agents: Mapping[WorkspaceId, Sequence[AgentId]] = NONE) -> Step:
    """The step that asks in which of these workspaces more is to be done, with ids of lanes, automations and sessions in
    each, and of agents that run fewer now. Its rows are what `Concerned` is made of."""
    workspaces = list(ids)
    return CONCERNED, {
        "workspaces": Uuids.of(workspaces),
        **_parts("ids", list(ids.values())),
        **_parts("agents", [agents.get(each, ()) for each in workspaces]),
    }


def _parts(name: str, of_each: Sequence[Sequence[UUID]]) -> dict[str, object]:
    """All in one array, and where the part of each begins and ends in it."""
    ends = list(accumulate(map(len, of_each)))
    starts = [1 + end - len(part) for end, part in zip(ends, of_each, strict=True)]
    together = Uuids.of(chain.from_iterable(of_each))
    return {name: together, f"{name}_from": Integers.of(starts), f"{name}_to": Integers.of(ends)}


async def concerned(conn: Connection, asked: Step) -> list[Concerned]:
    [rows] = await at_once.run(conn, asked)
    return [Concerned(*row) for row in rows]


async def hold(conn: Connection, automations: Iterable[tuple[UUID, UUID]]) -> None:
    """Lock these, in the order in which everybody does."""
    await conn.execute(HOLD, {"automations": _given(automations)})


def hold_failing(automations: Iterable[tuple[UUID, UUID]]) -> Step:
    """The step that locks those of these whose failures in a row a success ends."""
    pairs = set(automations)
    return HOLD_FAILING, {
        "workspaces": Uuids.of(workspace_id for workspace_id, _ in pairs),
        "automations": Uuids.of(automation_id for _, automation_id in pairs),
    }


async def count_failures(
    conn: Connection, outcomes: Sequence[dict[str, Any]]
) -> list[tuple[WorkspaceId, AutomationId]]:
    """Count failures in a row; the automations that were paused for them. Given is of each whether a run of it
    `succeeded`, and how many have `failed` since."""
    rows = await conn.execute(COUNT_FAILURES, {"outcomes": orjson.dumps(outcomes).decode()})
    return [(workspace_id, automation_id) for workspace_id, automation_id in await rows.fetchall()]


async def revoke_of_deleted(conn: Connection, automations: Iterable[tuple[UUID, UUID]]) -> None:
    automations = list(automations)
    await hold(conn, automations)  # first: of two last runs that end at once the second then sees that the first ended
    await conn.execute(REVOKE_OF_DELETED, {"automations": _given(automations)})
