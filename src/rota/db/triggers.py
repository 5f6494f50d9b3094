"""Triggers: what is due, and when each is due next."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from psycopg import DataError
from psycopg.rows import TupleRow, dict_row

from rota.db import pauses
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.firing import Due, Firing, Flight, Policy, Timing
from rota.model.ids import AgentId, AutomationId, RunId, TriggerId, WorkspaceId
from rota.model.run import SkipReason

NEXT = """
-- All that an idle pass reads: the heads of two partial indexes.
SELECT (SELECT min(next_fire_at) FROM triggers WHERE next_fire_at IS NOT NULL),
       (SELECT min(until) FROM pauses WHERE resumed_at IS NULL),
       coalesce(%(now)s::timestamptz, now())
"""

OVERDUE = """
-- How many are due for longer than a healthy fleet ever takes; a hundred thousand at most.
SELECT count(*) FROM (
    SELECT FROM triggers WHERE next_fire_at < now() - %(late)s::interval LIMIT 100000) overdue
"""
OVERDUE_AFTER = timedelta(minutes=1)

TIMING_COLUMNS = """
       t.kind, t.cron, t.every, t.time_of_day, t.at, t.timezone, t.anchor_at, t.starts_at, t.ends_at, t.max_fires, t.fires,
"""

# Whether any account has a budget is asked once a statement.
POLICY_COLUMNS = """
       a.workspace_id, a.id, a.agent_id, a.grant_id, a.owner_id, a.revision, a.overlap, a.catch_up, a.catch_up_limit,
       a.late_after, a.session, a.session_id, CASE WHEN a.session = 'same' OR octet_length(a.prompt) <= 1000 THEN a.prompt END,
       a.max_attempts, a.max_rescues, a.timeout, a.start_within,
       g.queue, g.executor, g.pool, g.refused,
       a.budget IS NOT NULL OR EXISTS (SELECT FROM accounts WHERE budget IS NOT NULL),
"""

# Why this grant or this agent may not run now, revoked before expired.
STANDING = """
       CROSS JOIN LATERAL (
           SELECT CASE WHEN agent.max_concurrent IS NULL THEN agent.workspace_id ELSE agent.id END AS queue,
                  agent.executor, agent.pool,
                  CASE WHEN agent.status = 'paused' OR agent.deleted_at IS NOT NULL THEN 'agent_paused'
                       WHEN held.revoked_at IS NOT NULL THEN 'grant_revoked'
                       WHEN held.expires_at <= now() THEN 'grant_expired'
                       WHEN NOT held.scopes && ARRAY['agent:run:*', 'agent:run:' || agent.id] THEN 'grant_scope'
                   END AS refused
             FROM agents agent, grants held
            WHERE agent.workspace_id = a.workspace_id AND agent.id = a.agent_id
              AND held.workspace_id = a.workspace_id AND held.id = a.grant_id
            LIMIT 1) g
"""

# As EXISTS the planner hashes all runs in flight; as a scalar with LIMIT 1 it looks up one automation.
IN_FLIGHT = """
       (SELECT true FROM live_runs r
         WHERE r.workspace_id = a.workspace_id AND r.automation_id = a.id AND r.source NOT IN ('chat', 'task')
         LIMIT 1)
"""

WAITING = """
       (SELECT true FROM live_runs r
         WHERE r.workspace_id = a.workspace_id AND r.automation_id = a.id AND r.source NOT IN ('chat', 'task')
           AND NOT EXISTS (SELECT FROM taken_runs t WHERE t.workspace_id = r.workspace_id AND t.id = r.id)
         LIMIT 1)
"""

LANE_TAKEN = """
       CASE WHEN a.session = 'same' THEN
       (SELECT true FROM live_runs r
         WHERE r.workspace_id = a.workspace_id AND r.lane = a.session_id AND NOT r.waits
         LIMIT 1) END
"""

FLIGHT = f"{IN_FLIGHT}, {WAITING}, {LANE_TAKEN}"

DUE = f"""
-- Lock first, then look up: a plain join of due triggers to automations reads every automation stored.
-- The automation is locked too, so that two replicas never fill one lane from two triggers; who finds it
-- locked comes again.
WITH due AS MATERIALIZED (
    SELECT * FROM triggers
     WHERE next_fire_at <= coalesce(%(now)s::timestamptz, now())
  ORDER BY next_fire_at
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED)
SELECT t.id, t.next_fire_at, t.overlap, t.jitter,
       {TIMING_COLUMNS}
       {POLICY_COLUMNS}
       {IN_FLIGHT}, NULL, {LANE_TAKEN},
       coalesce(%(now)s::timestamptz, clock_timestamp())
  FROM due t
       CROSS JOIN LATERAL (
           SELECT * FROM automations a
            WHERE a.workspace_id = t.workspace_id AND a.id = t.automation_id
              AND a.status = 'active' AND a.deleted_at IS NULL
              FOR NO KEY UPDATE SKIP LOCKED) a
       {STANDING}
"""  # noqa: S608 — constants of this module

WHERE_ONE_WAITS = f"""
-- In a statement of its own, behind the locks: a run now that was committed while they were taken is not seen before.
SELECT a.id FROM json_to_recordset(%(automations)s::json) AS a(workspace_id uuid, id uuid) WHERE {WAITING}
"""  # noqa: S608

DUE_IDS = (
    "SELECT workspace_id, id FROM triggers WHERE next_fire_at <= coalesce(%(now)s::timestamptz, now()) LIMIT %(limit)s"
)

DUE_ONE = DUE.replace(
    "WHERE next_fire_at <=", "WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND next_fire_at <="
)

DUE_OF_AUTOMATION = f"""
-- For who has locked the automation. A trigger that is being fired is waited for, and is not due then. What came due
-- while the lock was waited for is due too, though the transaction began before it.
WITH due AS MATERIALIZED (
    SELECT * FROM triggers
     WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s
       AND next_fire_at <= coalesce(%(now)s::timestamptz, statement_timestamp())
       FOR UPDATE)
SELECT t.id, t.next_fire_at, t.overlap, t.jitter,
       {TIMING_COLUMNS}
       {POLICY_COLUMNS}
       {FLIGHT}, coalesce(%(now)s::timestamptz, statement_timestamp())
  FROM due t JOIN automations a ON a.workspace_id = t.workspace_id AND a.id = t.automation_id
       {STANDING}
"""  # noqa: S608

LOCK_AUTOMATIONS = """
-- In id order, and in a statement of its own: what is read next must be newer than the lock.
SELECT a.id FROM automations a
 WHERE (a.workspace_id, a.id) IN (
           SELECT t.workspace_id, t.automation_id
             FROM json_to_recordset(%(triggers)s::json) AS g(workspace_id uuid, id uuid)
                  JOIN triggers t ON t.workspace_id = g.workspace_id AND t.id = g.id)
ORDER BY a.workspace_id, a.id
   FOR NO KEY UPDATE
"""

INBOUND = f"""
SELECT t.id, now(), t.overlap, t.jitter,
       {TIMING_COLUMNS}
       {POLICY_COLUMNS}
       {FLIGHT},
       CASE WHEN a.status = 'paused' OR EXISTS (
                SELECT FROM pauses p WHERE p.workspace_id = a.workspace_id AND {pauses.GOES_ON}) THEN 'paused' END
  FROM json_to_recordset(%(triggers)s::json) AS g0(workspace_id uuid, id uuid)
       JOIN triggers t ON t.workspace_id = g0.workspace_id AND t.id = g0.id AND t.enabled
       JOIN automations a ON a.workspace_id = t.workspace_id AND a.id = t.automation_id AND a.deleted_at IS NULL
       {STANDING}
"""  # noqa: S608

OF_EVENT = """
SELECT t.workspace_id, t.id FROM triggers t
 WHERE t.workspace_id = %(workspace_id)s AND t.event = %(event)s AND t.kind = 'event' AND t.enabled
"""

EVENT_CIRCLE = """
-- The automations that wait for the event and stand among those that led to this run: back from each run to the one
-- whose agent posted its event, whose end it followed, which it repeats, or whose agent added its task.
WITH RECURSIVE cause AS (
    SELECT r.id, r.automation_id, r.source, r.payload, r.retry_of
      FROM runs r WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s
    UNION ALL
    SELECT r.id, r.automation_id, r.source, r.payload, r.retry_of
      FROM cause c
           CROSS JOIN LATERAL (
               SELECT CASE WHEN c.source IN ('event', 'after') THEN (c.payload->>'run_id')::uuid
                           WHEN c.source = 'retry' THEN c.retry_of
                           WHEN c.source = 'task' THEN (SELECT t.added_by_run FROM tasks t
                                                         WHERE t.workspace_id = %(workspace_id)s AND t.run_id = c.id) END AS id
               OFFSET 0) earlier  -- fence: a join on this expression is a filter under row-level security
           JOIN runs r ON r.workspace_id = %(workspace_id)s AND r.id = earlier.id)
SELECT DISTINCT a.slug
  FROM triggers t JOIN automations a ON a.workspace_id = t.workspace_id AND a.id = t.automation_id AND a.deleted_at IS NULL
 WHERE t.workspace_id = %(workspace_id)s AND t.event = %(event)s AND t.kind = 'event' AND t.enabled
   AND t.automation_id IN (SELECT automation_id FROM cause)
ORDER BY a.slug
"""

AFTER = """
SELECT t.workspace_id, t.id, g.run_id, g.status, g.summary
  FROM json_to_recordset(%(ended)s::json) AS g(workspace_id uuid, automation_id uuid, run_id uuid, status text, summary text)
       JOIN triggers t ON t.workspace_id = g.workspace_id AND t.after_automation_id = g.automation_id
 WHERE t.kind = 'after' AND t.enabled AND g.status = ANY(t.after_on)
ORDER BY g.run_id
"""

AFTER_WAYS = """
-- Every step along "runs after" that can be reached from an automation, once: where ways part and meet again, there
-- are many more ways than steps.
WITH RECURSIVE step(later, earlier) AS (
    SELECT NULL::uuid, %(start)s::uuid
    UNION
    SELECT t.automation_id, t.after_automation_id
      FROM step JOIN triggers t ON t.workspace_id = %(workspace_id)s AND t.automation_id = step.earlier AND t.kind = 'after')
SELECT step.later, a.id, a.slug
  FROM step JOIN automations a ON a.workspace_id = %(workspace_id)s AND a.id = step.earlier
"""

FIND_WEBHOOK = """
SELECT t.workspace_id, t.id FROM triggers t JOIN automations a ON a.workspace_id = t.workspace_id AND a.id = t.automation_id
 WHERE t.id = %(id)s AND t.kind = 'webhook' AND t.enabled AND a.deleted_at IS NULL
"""

COUNT_FIRES = """
UPDATE triggers t SET fires = t.fires + g.fires
  FROM json_to_recordset(%(counts)s::json) AS g(workspace_id uuid, id uuid, fires integer)
 WHERE t.workspace_id = g.workspace_id AND t.id = g.id
"""

UNCOUNT = f"""
-- Runs that were fired and then skipped are none of their triggers' fires, which only count runs. Those that rest because
-- they had fired as often as they may come back: they are due again (GO_ON).
WITH skipped AS (
    SELECT r.workspace_id, r.trigger_id, count(*) AS runs
      FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
           JOIN runs r ON r.workspace_id = g.workspace_id AND r.id = g.id
     WHERE r.status = 'skipped' AND r.retry_of IS NULL
  GROUP BY 1, 2),
locked AS MATERIALIZED (
    SELECT t.workspace_id, t.id, s.runs
      FROM skipped s JOIN triggers t ON t.workspace_id = s.workspace_id AND t.id = s.trigger_id
  ORDER BY t.workspace_id, t.id FOR NO KEY UPDATE OF t),
counted AS (
    UPDATE triggers t SET fires = greatest(0, t.fires - l.runs)
      FROM locked l WHERE t.workspace_id = l.workspace_id AND t.id = l.id
 RETURNING t.*, l.runs)
SELECT t.workspace_id, t.id, {TIMING_COLUMNS} clock_timestamp()
  FROM counted t
 WHERE t.kind IN ('cron', 'every', 'at') AND t.enabled AND t.next_fire_at IS NULL AND t.parked_error IS NULL
   AND t.fires < t.max_fires AND t.fires + t.runs >= t.max_fires
"""  # noqa: S608

GO_ON = """
-- A statement of its own, behind the trigger's lock: who paused or deleted its automation while that was waited for is seen,
-- and who does so now waits for it.
UPDATE triggers t SET next_fire_at = %(next_fire_at)s
 WHERE t.workspace_id = %(workspace_id)s AND t.id = %(id)s
   AND EXISTS (SELECT FROM automations a WHERE a.workspace_id = t.workspace_id AND a.id = t.automation_id
                  AND a.status = 'active' AND a.deleted_at IS NULL)
"""

ADVANCE = """
UPDATE triggers t
   SET next_fire_at = g.next_fire_at, fires = g.fires
  FROM json_to_recordset(%(firings)s::json) AS g(workspace_id uuid, id uuid, next_fire_at timestamptz, fires integer)
 WHERE t.workspace_id = g.workspace_id AND t.id = g.id
"""

REST_WHILE_PAUSED = """
-- In a statement of its own, behind the locks of the automations: it sees an agent or a workspace that was resumed while
-- they were waited for, and whoever resumes one waits for them.
UPDATE triggers t SET next_fire_at = NULL
  FROM json_to_recordset(%(triggers)s::json) AS g(workspace_id uuid, id uuid), automations a, agents
 WHERE t.workspace_id = g.workspace_id AND t.id = g.id
   AND a.workspace_id = t.workspace_id AND a.id = t.automation_id
   AND agents.workspace_id = a.workspace_id AND agents.id = a.agent_id
   AND (agents.status = 'paused' OR agents.deleted_at IS NOT NULL
        OR EXISTS (SELECT FROM pauses p WHERE p.workspace_id = t.workspace_id AND p.resumed_at IS NULL))
"""

DUE_OF = """
-- Of an agent, or of the whole workspace.
SELECT DISTINCT a.id
  FROM automations a JOIN triggers t ON t.workspace_id = a.workspace_id AND t.automation_id = a.id
 WHERE a.workspace_id = %(workspace_id)s AND (a.agent_id = %(agent_id)s OR %(agent_id)s::uuid IS NULL)
   AND t.next_fire_at <= %(until)s
ORDER BY a.id
"""

RESTING = {
    whose: f"""
-- The schedules of active automations that are not due at any time, or were due until then, and that nothing keeps paused:
-- of an agent, of an automation, or of the whole workspace.
SELECT t.*
  FROM automations a
       JOIN triggers t ON t.workspace_id = a.workspace_id AND t.automation_id = a.id
       JOIN agents g ON g.workspace_id = a.workspace_id AND g.id = a.agent_id
 WHERE a.workspace_id = %(workspace_id)s
   AND {condition} AND a.status = 'active' AND a.deleted_at IS NULL AND g.status = 'active' AND g.deleted_at IS NULL
   AND NOT EXISTS (SELECT FROM pauses p WHERE p.workspace_id = a.workspace_id AND p.resumed_at IS NULL)
   AND t.kind IN ('cron', 'every', 'at') AND t.enabled AND t.parked_error IS NULL
   AND (t.next_fire_at IS NULL OR t.next_fire_at <= %(until)s)
ORDER BY t.id
"""  # noqa: S608 — constants of this module
    for whose, condition in (
        ("agent", "a.agent_id = %(agent_id)s"), ("automation", "a.id = %(automation_id)s"), ("workspace", "true")
    )
}  # fmt: skip

SET_NEXT_OF_ALL = """
UPDATE triggers t SET next_fire_at = g.next_fire_at
  FROM json_to_recordset(%(triggers)s::json) AS g(id uuid, next_fire_at timestamptz)
 WHERE t.workspace_id = %(workspace_id)s AND t.id = g.id
"""

PARK = """
UPDATE triggers SET next_fire_at = NULL, parked_error = %(error)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

INSERT = """
INSERT INTO triggers (workspace_id, id, automation_id, kind, cron, every, time_of_day, at, timezone, event,
                      after_automation_id, after_on, editor_mode, editor, overlap, anchor_at, starts_at, ends_at,
                      max_fires, jitter, enabled, next_fire_at)
VALUES (%(workspace_id)s, %(id)s, %(automation_id)s, %(kind)s, %(cron)s, %(every)s, %(time_of_day)s, %(at)s,
        %(timezone)s, %(event)s, %(after_automation_id)s, %(after_on)s, %(editor_mode)s, %(editor)s, %(overlap)s,
        %(anchor_at)s, %(starts_at)s, %(ends_at)s, %(max_fires)s, %(jitter)s, %(enabled)s, %(next_fire_at)s)
"""

UPDATE = """
UPDATE triggers
   SET kind = %(kind)s, cron = %(cron)s, every = %(every)s, time_of_day = %(time_of_day)s, at = %(at)s,
       timezone = %(timezone)s, event = %(event)s, after_automation_id = %(after_automation_id)s, after_on = %(after_on)s,
       editor_mode = %(editor_mode)s, editor = %(editor)s, overlap = %(overlap)s, anchor_at = %(anchor_at)s,
       starts_at = %(starts_at)s, ends_at = %(ends_at)s, max_fires = %(max_fires)s, jitter = %(jitter)s,
       enabled = %(enabled)s, next_fire_at = %(next_fire_at)s, parked_error = NULL
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

DUE_BETWEEN = """
-- Of so many at most: a whole house may be due at nine, and somebody who writes a schedule looks with every change of it.
SELECT count(DISTINCT automation_id) FROM (
    SELECT automation_id FROM triggers
     WHERE workspace_id = %(workspace_id)s AND next_fire_at >= %(start)s AND next_fire_at < %(end)s
       AND automation_id IS DISTINCT FROM %(but)s
     LIMIT %(limit)s) due
"""

DUE_UNTIL = """
-- Triggers that are due first, with their automations and the budgets that concern them. Paused ones have no next fire.
SELECT t.*, a.slug AS automation_slug, a.name AS automation_name, a.budget, c.id AS account_id, c.budget AS account_budget
  FROM triggers t JOIN automations a ON a.workspace_id = t.workspace_id AND a.id = t.automation_id
       JOIN grants held ON held.workspace_id = a.workspace_id AND held.id = a.grant_id
       JOIN accounts c ON c.workspace_id = held.workspace_id AND c.id = held.account_id
 WHERE t.workspace_id = %(workspace_id)s AND t.next_fire_at < %(end)s
ORDER BY t.next_fire_at LIMIT %(limit)s
"""

LOCK_AFTER = "SELECT pg_advisory_xact_lock(hashtextextended('after ' || %(workspace_id)s::text, 0))"

MINIMUM_INTERVAL = "SELECT minimum_interval FROM workspaces WHERE id = %(workspace_id)s"

HOLD_LIMIT = """
-- Who adds a schedule to a workspace that has a limit waits for who does just that.
SELECT max_schedules FROM workspaces WHERE id = %(workspace_id)s AND max_schedules IS NOT NULL FOR NO KEY UPDATE
"""

SCHEDULES = """
SELECT count(*) FROM triggers t JOIN automations a ON a.workspace_id = t.workspace_id AND a.id = t.automation_id
 WHERE t.workspace_id = %(workspace_id)s AND t.kind IN ('cron', 'every', 'at') AND a.deleted_at IS NULL
"""

OF_AUTOMATIONS = """
SELECT t.*, a.name AS after_name, a.slug AS after_slug, a.deleted_at AS after_deleted_at
  FROM triggers t LEFT JOIN automations a ON a.workspace_id = t.workspace_id AND a.id = t.after_automation_id
 WHERE t.workspace_id = %(workspace_id)s AND t.automation_id = ANY(%(automation_ids)s)
ORDER BY t.id
"""

SET_NEXT = """
UPDATE triggers SET next_fire_at = %(next_fire_at)s, parked_error = NULL
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s
"""

REST = """
UPDATE triggers SET next_fire_at = NULL WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s
"""

DELETE = "DELETE FROM triggers WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)"


def due_from(row: TupleRow) -> Due:
    return Due(
        trigger_id=row[0],
        slot=row[1],
        overlap=row[2],
        jitter=row[3],
        timing=Timing(*row[4:15]),
        policy=Policy(*row[15:37]),
        flight=Flight(busy=bool(row[37]), waiting=bool(row[38]), lane_taken=bool(row[39])),
    )


async def next_due(conn: Connection, now: datetime | None) -> tuple[datetime | None, datetime | None, datetime]:
    """When the next trigger is due, when the pause of a workspace ends next, and what time it is."""
    row = await (await conn.execute(NEXT, {"now": now})).fetchone()
    assert row
    return row[0], row[1], row[2]


async def count_overdue(conn: Connection) -> int:
    """How many triggers should have fired more than a minute ago."""
    row = await (await conn.execute(OVERDUE, {"late": OVERDUE_AFTER})).fetchone()
    assert row
    return int(row[0])


async def lock_due(conn: Connection, now: datetime | None, limit: int) -> list[tuple[Due, datetime]]:
    """Lock what is due and nobody else holds, with all that decides about it; and the time of the look. Whether the
    workspace is paused is read behind the locks: pausing waits for them, and then skips what was fired."""
    rows = await (await conn.execute(DUE, {"now": now, "limit": limit})).fetchall()
    found = [(due_from(row), row[40]) for row in rows]
    if found and (paused := await pauses.among(conn, {due.policy.workspace_id for due, _ in found}, now)):
        found = [(_refused_if(due, due.policy.workspace_id in paused), at) for due, at in found]
    if may_wait := {_automation(due) for due, _ in found if due.flight.busy and due.keeps_one_waiting}:
        waiting = await _where_one_waits(conn, may_wait)
        found = [(_with_waiting(due, waiting), at) for due, at in found]
    return found


def _refused_if(due: Due, paused: bool) -> Due:
    return due._replace(policy=due.policy._replace(refused=SkipReason.PAUSED)) if paused else due


def _automation(due: Due) -> tuple[UUID, UUID]:
    return due.policy.workspace_id, due.policy.automation_id


def _with_waiting(due: Due, automations: set[UUID]) -> Due:
    return due._replace(flight=due.flight._replace(waiting=due.policy.automation_id in automations))


async def _where_one_waits(conn: Connection, automations: Iterable[tuple[UUID, UUID]]) -> set[UUID]:
    given = orjson.dumps([{"workspace_id": w, "id": a} for w, a in automations]).decode()
    return {found for (found,) in await (await conn.execute(WHERE_ONE_WAITS, {"automations": given})).fetchall()}


async def lock_due_of(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, *, now: datetime | None = None
) -> list[tuple[Due, datetime]]:
    """What is due of one automation and was not fired yet; and the time of the look, if it is not given."""
    given = {"workspace_id": workspace_id, "automation_id": automation_id, "now": now}
    rows = await (await conn.execute(DUE_OF_AUTOMATION, given)).fetchall()
    return [(due_from(row), row[40]) for row in rows]


async def unreadable(conn: Connection, now: datetime | None, limit: int) -> list[tuple[UUID, UUID, str]]:
    """Due triggers whose row holds a value that no program can take, each with what is wrong."""
    found = []
    for workspace_id, trigger_id in await _pairs(conn, DUE_IDS, {"now": now, "limit": limit}):
        given = {"now": now, "limit": 1, "workspace_id": workspace_id, "id": trigger_id}
        try:
            await (await conn.execute(DUE_ONE.encode(), given)).fetchall()
        except DataError as failure:
            found.append((workspace_id, trigger_id, str(failure)))
    return found


async def lock_inbound(conn: Connection, triggers: Iterable[tuple[UUID, UUID]]) -> dict[UUID, Due]:
    """Triggers that something outside has fired, with all that decides about it; their automations are locked."""
    given = {"triggers": orjson.dumps([{"workspace_id": w, "id": t} for w, t in triggers]).decode()}
    await conn.execute(LOCK_AUTOMATIONS, given)
    found: dict[UUID, Due] = {}
    for row in await (await conn.execute(INBOUND, given)).fetchall():
        due = due_from(row)
        found[due.trigger_id] = due._replace(policy=due.policy._replace(refused=row[40] or due.policy.refused))
    return found


async def of_event(conn: Connection, workspace_id: WorkspaceId, event: str) -> list[tuple[UUID, UUID]]:
    return await _pairs(conn, OF_EVENT, {"workspace_id": workspace_id, "event": event})


async def lock_awaiting(conn: Connection, workspace_id: WorkspaceId, event: str) -> None:
    """Lock the automations that wait for the event, for those who hold something else that comes after in the order."""
    found = await of_event(conn, workspace_id, event)
    given = orjson.dumps([{"workspace_id": w, "id": t} for w, t in found]).decode()
    await conn.execute(LOCK_AUTOMATIONS, {"triggers": given})


async def event_circle(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, event: str) -> list[str]:
    """The slugs of those that the event would start again, though they led to the run that posts it."""
    given = {"workspace_id": workspace_id, "run_id": run_id, "event": event}
    return [slug for (slug,) in await (await conn.execute(EVENT_CIRCLE, given)).fetchall()]


async def find_webhook(conn: Connection, trigger_id: UUID) -> tuple[UUID, UUID] | None:
    found = await _pairs(conn, FIND_WEBHOOK, {"id": trigger_id})
    return found[0] if found else None


async def after(conn: Connection, ended: list[dict[str, Any]]) -> list[tuple[UUID, UUID, dict[str, Any]]]:
    """The triggers that wait for these runs, each with what its run is told about the one that ended."""
    rows = await conn.execute(AFTER, {"ended": orjson.dumps(ended).decode()})
    return [
        (workspace_id, trigger_id, {"run_id": str(run_id), "status": status, "summary": summary})
        for workspace_id, trigger_id, run_id, status, summary in await rows.fetchall()
    ]


async def after_path(conn: Connection, workspace_id: WorkspaceId, start: UUID, goal: UUID) -> list[str] | None:
    """The slugs from `start` to `goal` along "runs after", if there is a way."""
    rows = await conn.execute(AFTER_WAYS, {"workspace_id": workspace_id, "start": start})
    steps = {earlier: (later, slug) for later, earlier, slug in await rows.fetchall()}
    way: list[str] = []
    at: UUID | None = goal if goal in steps else None
    while at is not None:  # what is saved has no circle, so that any way back ends at the start
        at, slug = steps[at]
        way.append(slug)
    return way[::-1] or None


async def count_fires(conn: Connection, fires: Iterable[tuple[UUID, UUID, int]]) -> None:
    given = [{"workspace_id": w, "id": t, "fires": n} for w, t, n in fires]
    await conn.execute(COUNT_FIRES, {"counts": orjson.dumps(given).decode()})


async def uncount(
    conn: Connection, runs: Iterable[tuple[UUID, UUID]]
) -> list[tuple[WorkspaceId, TriggerId, Timing, datetime]]:
    """These runs were skipped after they were fired. The triggers that rested for it, and what time it is."""
    given = orjson.dumps([{"workspace_id": w, "id": r} for w, r in runs]).decode()
    rows = await (await conn.execute(UNCOUNT, {"runs": given})).fetchall()
    return [(row[0], row[1], Timing(*row[2:13]), row[13]) for row in rows]


async def go_on(conn: Connection, workspace_id: WorkspaceId, trigger_id: TriggerId, at: datetime | None) -> None:
    """As `set_next`, for one that is locked, if its automation is active."""
    await conn.execute(GO_ON, {"workspace_id": workspace_id, "id": trigger_id, "next_fire_at": at})


async def _pairs(conn: Connection, query: str, given: dict[str, Any]) -> list[tuple[UUID, UUID]]:
    return [(w, t) for w, t in await (await conn.execute(query.encode(), given)).fetchall()]


async def advance(conn: Connection, firings: Iterable[Firing]) -> None:
    given = [
        {
            "workspace_id": each.workspace_id,
            "id": each.trigger_id,
            "next_fire_at": each.next_fire_at,
            "fires": each.fires,
        }
        for each in firings
    ]
    await conn.execute(ADVANCE, {"firings": orjson.dumps(given).decode()})


async def rest_while_paused(conn: Connection, triggers: Iterable[tuple[UUID, UUID]]) -> None:
    """Let these triggers rest if their agent or workspace is still paused. Their automations must be locked."""
    given = [{"workspace_id": w, "id": t} for w, t in triggers]
    await conn.execute(REST_WHILE_PAUSED, {"triggers": orjson.dumps(given).decode()})


async def due_of(
    conn: Connection, workspace_id: WorkspaceId, agent_id: AgentId | None, *, until: datetime
) -> list[AutomationId]:
    """The automations of this agent, or of the workspace, that were due until then and not fired yet."""
    rows = await conn.execute(DUE_OF, {"workspace_id": workspace_id, "agent_id": agent_id, "until": until})
    return [automation_id for (automation_id,) in await rows.fetchall()]


async def resting(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    agent_id: AgentId | None = None,
    automation_id: AutomationId | None = None,
    until: datetime,
) -> list[dict[str, Any]]:
    """The schedules of active automations that will not fire unless they are set: an agent's, one automation's, or all
    of the workspace."""
    given = {"workspace_id": workspace_id, "agent_id": agent_id, "automation_id": automation_id, "until": until}
    whose = "agent" if agent_id else "automation" if automation_id else "workspace"
    return await named_rows(conn, RESTING[whose], given)


async def set_next_of_all(
    conn: Connection, workspace_id: WorkspaceId, times: Iterable[tuple[TriggerId, datetime | None]]
) -> None:
    given = [{"id": trigger_id, "next_fire_at": at} for trigger_id, at in times]
    await conn.execute(SET_NEXT_OF_ALL, {"workspace_id": workspace_id, "triggers": orjson.dumps(given).decode()})


async def park(conn: Connection, workspace_id: WorkspaceId, trigger_id: TriggerId, error: str) -> None:
    """Take a trigger that cannot be evaluated out of the race and keep why."""
    await conn.execute(PARK, {"workspace_id": workspace_id, "id": trigger_id, "error": error})


async def insert(conn: Connection, trigger: dict[str, Any]) -> None:
    await conn.execute(INSERT, trigger)


async def update(conn: Connection, trigger: dict[str, Any]) -> None:
    await conn.execute(UPDATE, trigger)


async def lock_after(conn: Connection, workspace_id: UUID) -> None:
    """One at a time may add "runs after": two that pass each other could close a circle."""
    await conn.execute(LOCK_AFTER, {"workspace_id": workspace_id})


async def of_automations(conn: Connection, workspace_id: WorkspaceId, ids: list[AutomationId]) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(OF_AUTOMATIONS, {"workspace_id": workspace_id, "automation_ids": ids})
        return await cursor.fetchall()


async def set_next(conn: Connection, workspace_id: WorkspaceId, trigger_id: TriggerId, at: datetime | None) -> None:
    await conn.execute(SET_NEXT, {"workspace_id": workspace_id, "id": trigger_id, "next_fire_at": at})


async def rest(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> None:
    """Nothing of this automation is due until it is resumed."""
    await conn.execute(REST, {"workspace_id": workspace_id, "automation_id": automation_id})


async def delete(conn: Connection, workspace_id: WorkspaceId, ids: list[TriggerId]) -> None:
    await conn.execute(DELETE, {"workspace_id": workspace_id, "ids": ids})


async def due_between(
    conn: Connection,
    workspace_id: WorkspaceId,
    start: datetime,
    end: datetime,
    *,
    but: AutomationId | None,
    limit: int,
) -> int:
    """How many other automations of this workspace are due next in this span, as far as they are counted."""
    given = {"workspace_id": workspace_id, "start": start, "end": end, "but": but, "limit": limit}
    row = await (await conn.execute(DUE_BETWEEN, given)).fetchone()
    return row[0] if row else 0


async def minimum_interval(conn: Connection, workspace_id: WorkspaceId) -> timedelta | None:
    """How close together the fires of one schedule may come here."""
    row = await (await conn.execute(MINIMUM_INTERVAL, {"workspace_id": workspace_id})).fetchone()
    return row[0] if row else None


async def over_limit(conn: Connection, workspace_id: WorkspaceId) -> int | None:
    """How many schedules this workspace may have, if it has more; until commit nobody else adds one."""
    limit = await (await conn.execute(HOLD_LIMIT, {"workspace_id": workspace_id})).fetchone()
    if not limit:
        return None
    count = await (await conn.execute(SCHEDULES, {"workspace_id": workspace_id})).fetchone()
    return limit[0] if count and count[0] > limit[0] else None


async def due_until(conn: Connection, workspace_id: WorkspaceId, end: datetime, *, limit: int) -> list[dict[str, Any]]:
    """Triggers of this workspace that are due before then, the first ones first."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(DUE_UNTIL, {"workspace_id": workspace_id, "end": end, "limit": limit})
        return await cursor.fetchall()
