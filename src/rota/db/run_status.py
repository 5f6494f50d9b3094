"""Every statement that changes a run's status. Only `rota.runs` may import it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from psycopg import AsyncCursor, DataError
from psycopg.rows import args_row

from rota.db.pool import Connection
from rota.model.ids import AgentId, AutomationId, GrantId, RunId, SessionId, WorkerId, WorkspaceId
from rota.model.run import FIRST_IN_LINE, Claimed, Settlement, SkipReason, Start, Status

UNREADABLE = (DataError, ValueError, OverflowError)

START = """
-- The slot's UNIQUE is the second guard behind the trigger's row lock: a slot that has its run gets no second one,
-- nor a session or event. A taken lane is not passed over in silence: it fails the transaction.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(starts)s::json) AS g(
        workspace_id uuid, id uuid, automation_id uuid, trigger_id uuid, session_id uuid, agent_id uuid, grant_id uuid,
        owner_id uuid, revision integer, source text, slot timestamptz, missed_count integer,
        missed_since timestamptz, idempotency_key text, prompt text, input jsonb, payload jsonb, retry_of uuid,
        created_by uuid, lane uuid, priority smallint, queue uuid, pool text, executor text, max_attempts integer,
        max_rescues integer, timeout interval, start_within interval, ready_at timestamptz,
        waits_for_lane boolean, skip_reason text, fresh_session boolean, budget jsonb)),
written AS (
    INSERT INTO runs (workspace_id, id, automation_id, trigger_id, session_id, agent_id, grant_id, revision, status,
                      source, slot, missed_count, missed_since, idempotency_key, prompt, input, payload, retry_of,
                      created_by, lane, priority, queue, pool, executor, max_attempts, max_rescues, timeout, start_within,
                      ready_at, finished_at, skip_reason, trace_id, budget)
    SELECT workspace_id, id, automation_id, trigger_id, session_id, agent_id, grant_id, revision,
           CASE WHEN skip_reason IS NULL THEN 'queued' ELSE 'skipped' END, source, slot, missed_count, missed_since, idempotency_key,
           CASE WHEN automation_id IS NULL THEN prompt END, input, payload, retry_of,
           created_by, lane, priority, queue, pool, executor, max_attempts, max_rescues, timeout, start_within,
           CASE WHEN skip_reason IS NULL AND NOT waits_for_lane THEN coalesce(ready_at, now()) END,
           CASE WHEN skip_reason IS NOT NULL THEN now() END, skip_reason, replace(id::text, '-', ''), budget
      FROM given
        ON CONFLICT (workspace_id, trigger_id, slot) WHERE slot IS NOT NULL DO NOTHING
 RETURNING id),
opened AS (
    INSERT INTO sessions (workspace_id, id, kind, origin, automation_id, agent_id, owner_id, last_seq)
    SELECT workspace_id, session_id, CASE WHEN automation_id IS NULL THEN 'interactive' ELSE 'automation' END,
           source, automation_id, agent_id, owner_id, 1
      FROM given WHERE fresh_session AND id IN (SELECT id FROM written)),
told AS (
    INSERT INTO events (workspace_id, session_id, seq, kind, run_id, data)
    SELECT workspace_id, session_id, 1, 'run', id, jsonb_strip_nulls(jsonb_build_object(
               'status', 'queued', 'source', source, 'slot', slot, 'prompt', coalesce(prompt,
               (SELECT r.spec ->> 'prompt' FROM revisions r WHERE r.workspace_id = given.workspace_id
                   AND r.subject_id = coalesce(given.automation_id, given.agent_id) AND r.revision = given.revision))))
      FROM given WHERE fresh_session AND id IN (SELECT id FROM written))
SELECT id FROM written
"""

HOLD_LANES = """
-- Who waits behind a lane holds its holder's row until commit: so the holder either ends before, and is no longer seen
-- here, or ends after, and then sees who waits.
SELECT r.id
  FROM json_to_recordset(%(lanes)s::json) AS g(workspace_id uuid, lane uuid)
       CROSS JOIN LATERAL (
           SELECT l.id FROM live_runs l WHERE l.workspace_id = g.workspace_id AND l.automation_id = g.lane
            UNION
           SELECT l.id FROM live_runs l WHERE l.workspace_id = g.workspace_id AND l.lane = g.lane
              AND (l.status IN ('running', 'awaiting_approval') OR (l.status = 'queued' AND l.ready_at IS NOT NULL))
            UNION
           SELECT l.id FROM live_runs l WHERE l.workspace_id = g.workspace_id AND l.lane = g.lane
              AND l.status = 'queued' AND l.ready_at IS NULL) l
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.id = l.id
 WHERE r.finished_at IS NULL
ORDER BY r.workspace_id, r.id
   FOR SHARE OF r
"""

HOLD_AUTOMATED = """
-- The same for a turn of a session that an automation's own run works in, outside the session's lane.
SELECT r.id
  FROM json_to_recordset(%(lanes)s::json) AS g(workspace_id uuid, lane uuid)
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.session_id = g.lane
 WHERE r.automation_id IS NOT NULL AND r.lane IS DISTINCT FROM g.lane
   AND r.status IN ('queued', 'running', 'awaiting_approval')
ORDER BY r.workspace_id, r.id
   FOR SHARE OF r
"""

CHANGED = """r.workspace_id, r.id, r.session_id, r.automation_id, r.agent_id, r.lane, r.attempt, r.status, r.source,
          r.error_class, r.error_detail, r.summary, r.skip_reason, r.trace_id, r.budget IS NOT NULL AS budgeted"""

# The end of a statement that wrote runs: the `news` of each goes into its session's log, in the same statement. Sessions are
# locked in id order and after the runs; the chain goes by RETURNING, because a join of two CTEs compares every pair.
TELL_OF_RUNS = """
held AS MATERIALIZED (
    SELECT s.workspace_id, s.id, n.run_ids, n.attempts, n.told, n.session_status
      FROM (SELECT workspace_id, session_id, array_agg(run_id) AS run_ids, array_agg(attempt) AS attempts,
                   array_agg(data) AS told, max(session_status) AS session_status
              FROM news GROUP BY workspace_id, session_id) n
           JOIN sessions s ON s.workspace_id = n.workspace_id AND s.id = n.session_id
  ORDER BY s.workspace_id, s.id
       FOR NO KEY UPDATE OF s),
numbered AS (
    UPDATE sessions s
       SET last_seq = s.last_seq + cardinality(h.run_ids), updated_at = now(),
           status = CASE WHEN h.session_status IS NULL OR s.has_tasks OR s.status NOT IN ('active', 'paused') THEN s.status
                         ELSE h.session_status END
      FROM held h
     WHERE s.workspace_id = h.workspace_id AND s.id = h.id
 RETURNING s.workspace_id, s.id, s.last_seq - cardinality(h.run_ids) AS before, h.run_ids, h.attempts, h.told),
told AS (
    INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
    SELECT n.workspace_id, n.id, n.before + event.position, 'run', event.run_id, event.attempt, event.data
      FROM numbered n, unnest(n.run_ids, n.attempts, n.told) WITH ORDINALITY AS event(run_id, attempt, data, position))"""

# The same for runs that ended or went back to the queue. A session made for one run ends with it; one that goes on stays,
# and one with tasks ends with them.
TELL_OF_CHANGED = (
    """news AS (
    SELECT workspace_id, session_id, id AS run_id, nullif(attempt, 0) AS attempt,
           CASE WHEN status IN ('queued', 'awaiting_approval') OR lane = session_id THEN NULL
                WHEN status = 'succeeded' THEN 'done' ELSE 'failed' END AS session_status,
           CASE WHEN status = 'succeeded' AND summary IS NOT NULL
                THEN jsonb_build_object('status', status, 'summary', summary)  -- most of them, and the cheaper way
                ELSE jsonb_strip_nulls(jsonb_build_object(
                    'status', status, 'error_class', error_class, 'error_detail', error_detail, 'summary', summary,
                    'skip_reason', skip_reason, 'reason', CASE WHEN status IN ('queued', 'awaiting_approval')
                                                                 OR error_class = 'stalled' THEN reason END)) END AS data
      FROM changed WHERE session_id IS NOT NULL),"""
    + TELL_OF_RUNS
    + """
SELECT workspace_id, id, session_id, automation_id, agent_id, lane, attempt, status, source,
       error_class, error_detail, summary, skip_reason, trace_id, budgeted FROM changed
"""
)

# What may be claimed, of each queue the oldest: read from where the last claim ended (since), because behind it dead entries
# pile up while somebody holds a transaction open. `most` keeps the caps of agents and workspaces; who takes a workspace
# for uncapped gets nothing once it is capped.
_CANDIDATES = """
WITH queues AS MATERIALIZED (
    SELECT q.* FROM json_to_recordset(%(queues)s::json) AS q(
        workspace_id uuid, queue uuid, pool text, executor text, priority smallint, since timestamptz,
        most integer, most_in_workspace integer, workspace_capped boolean)
     WHERE q.workspace_capped OR (SELECT w.max_concurrent FROM workspaces w WHERE w.id = q.workspace_id) IS NULL),
candidates AS MATERIALIZED (
    SELECT c.id, c.ready_at, q.workspace_id, q.queue, q.priority, q.most, q.most_in_workspace
      FROM queues q CROSS JOIN LATERAL (
           SELECT l.id, l.ready_at FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
            WHERE l.status = 'queued' AND l.ready_at IS NOT NULL AND l.workspace_id = q.workspace_id
              AND l.queue = q.queue AND l.pool = q.pool AND l.executor = q.executor AND l.priority = q.priority
              AND l.ready_at >= q.since AND l.ready_at <= statement_timestamp()
              AND r.status = 'queued' AND r.ready_at <= statement_timestamp()
         ORDER BY l.ready_at
            LIMIT least(q.most, q.most_in_workspace, %(places)s)
              FOR UPDATE OF r SKIP LOCKED) c),
"""

_IN_TURNS = """
allowed AS (
    SELECT id, ready_at, workspace_id, priority, most_in_workspace
      FROM (SELECT *, row_number() OVER (PARTITION BY queue ORDER BY priority, ready_at) AS number FROM candidates) each
     WHERE number <= most),
turns AS (
    SELECT *, row_number() OVER (PARTITION BY workspace_id ORDER BY priority, ready_at) AS turn FROM allowed),
chosen AS MATERIALIZED (
    SELECT workspace_id, id, row_number() OVER () - 1 AS number
      FROM (SELECT workspace_id, id FROM turns WHERE turn <= most_in_workspace
          ORDER BY turn, priority, ready_at LIMIT %(places)s) first),
"""

# With one queue there are no turns to take.
_IN_ORDER = """
chosen AS MATERIALIZED (
    SELECT workspace_id, id, row_number() OVER () - 1 AS number FROM candidates),
"""

_CLAIM_CHOSEN = (
    """
claimed AS (
   UPDATE runs r
      SET status = 'running', attempt = r.attempt + 1, worker_id = %(worker_id)s,
          attempt_token_hash = substring(%(token_hashes)s::bytea FROM c.number::integer * 32 + 1 FOR 32),
          lease_until = clock_timestamp() + %(lease)s, started_at = coalesce(r.started_at, clock_timestamp())
     FROM chosen c
    WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING r.workspace_id, r.id, r.session_id, r.automation_id, r.agent_id, r.attempt, r.tries, r.max_attempts, r.source,
          r.executor, r.slot,
          CASE WHEN r.missed_count > 0 THEN jsonb_build_object('count', r.missed_count, 'since', r.missed_since) END AS missed,
          r.payload, r.prompt, r.input,
          (SELECT v.spec FROM revisions v WHERE v.workspace_id = r.workspace_id
              AND v.subject_id = coalesce(r.automation_id, r.agent_id) AND v.revision = r.revision) AS spec,
          r.timeout, r.trace_id,
          (SELECT s.last_seq = 1 FROM sessions s WHERE s.workspace_id = r.workspace_id AND s.id = r.session_id) AS first,
          (SELECT CASE WHEN g.revoked_at IS NOT NULL THEN 'grant_revoked' WHEN g.expires_at <= now() THEN 'grant_expired'
                       WHEN NOT g.scopes && ARRAY['agent:run:*', 'agent:run:' || r.agent_id] THEN 'grant_scope' END
             FROM grants g WHERE g.workspace_id = r.workspace_id AND g.id = r.grant_id) AS refused,
          r.queue, r.pool, r.priority, r.ready_at, c.number, r.budget),
news AS (
    SELECT workspace_id, session_id, id AS run_id, attempt, NULL AS session_status,
           jsonb_build_object('status', 'running', 'worker_id', %(worker_id)s::text) AS data
      FROM claimed WHERE refused IS NULL),
"""
    + TELL_OF_RUNS
    + """
SELECT * FROM claimed
"""
)

CLAIM = (
    """
-- Hand the next ready runs to one worker, stepping over rows that another worker holds, and tell their sessions. Workspaces
-- take turns, so that a long queue of one never delays another's single run. A run whose grant no longer holds comes back
-- with the reason and without an event: whoever claimed it refuses it."""
    + _CANDIDATES
    + _IN_TURNS
    + _CLAIM_CHOSEN
)

CLAIM_FROM_ONE = "-- As CLAIM, for a single queue." + _CANDIDATES + _IN_ORDER + _CLAIM_CHOSEN

SETTLE = (
    """
-- Fenced by primary key and attempt, on the database's clock. No row back: the lease went to somebody else. The status is
-- expected in a column, which keeps the planner to the primary key: the index of running runs fills with dead entries.
WITH given AS MATERIALIZED (
    SELECT *, ARRAY['running', 'awaiting_approval'] AS expected FROM json_to_recordset(%(settlements)s::json) AS g(
        workspace_id uuid, id uuid, attempt integer, status text, tries integer, retry_in interval,
        error_class text, error_detail text, summary text, skip_reason text, rescued boolean, reason text)),
locked AS MATERIALIZED (
    SELECT g.*
      FROM (SELECT * FROM given ORDER BY workspace_id, id) g CROSS JOIN LATERAL (
           SELECT FROM runs r
            WHERE r.workspace_id = g.workspace_id AND r.id = g.id AND r.attempt = g.attempt AND r.status = ANY(g.expected)
              AND (g.rescued OR r.lease_until > clock_timestamp())
              FOR UPDATE) held),
changed AS (
   UPDATE runs r
      SET status = CASE WHEN l.status = 'cancelled' AND r.cancel_reason IN ('grant_invalid', 'budget_exceeded')
                        THEN 'failed' ELSE l.status END,
          tries = l.tries, rescues = r.rescues + coalesce(l.rescued AND l.status = 'queued', false)::integer,
          finished_at = CASE WHEN l.status NOT IN ('queued', 'awaiting_approval') THEN clock_timestamp() END,
          ready_at = CASE WHEN l.status = 'queued' THEN clock_timestamp() + coalesce(l.retry_in, '0') ELSE r.ready_at END,
          error_class = CASE WHEN l.status = 'cancelled'
                             THEN coalesce(r.cancel_reason, l.error_class, 'cancelled_by_user') ELSE l.error_class END,
          error_detail = CASE WHEN l.status = 'cancelled' AND r.cancel_reason = 'grant_invalid'
                              THEN 'Its grant was revoked or has expired while it ran.'
                              WHEN l.status = 'cancelled' AND r.cancel_reason = 'budget_exceeded'
                              THEN 'It has spent what one run may.' ELSE l.error_detail END,
          summary = l.summary, skip_reason = l.skip_reason, lease_until = NULL, attempt_token_hash = NULL,
          worker_id = CASE WHEN l.status = 'queued' THEN NULL ELSE r.worker_id END
     FROM locked l
    WHERE r.workspace_id = l.workspace_id AND r.id = l.id
RETURNING """
    + CHANGED
    + """, l.reason),
"""
    + TELL_OF_CHANGED
)

LEASE_ENDED = """
SELECT r.workspace_id, r.id, r.attempt, r.tries, r.rescues, r.max_rescues, r.worker_id, r.cancel_requested_at IS NOT NULL
  FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
 WHERE l.status IN ('running', 'awaiting_approval') AND l.leased
   AND r.status IN ('running', 'awaiting_approval') AND r.lease_until <= clock_timestamp()
ORDER BY r.workspace_id, r.id LIMIT %(limit)s
   FOR UPDATE OF r SKIP LOCKED
"""

END_QUEUED = (
    """
-- Ends runs that are queued: one by its id, or all triggered ones of an automation or agent that nobody has claimed yet.
WITH found AS MATERIALIZED (
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND id = %(id)s
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s AND status = 'queued'),
chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM found f JOIN runs r ON r.workspace_id = %(workspace_id)s AND r.id = f.id
     WHERE r.status = 'queued'
       AND (r.id = %(id)s OR (r.trigger_id IS NOT NULL AND r.retry_of IS NULL AND r.attempt = 0))
  ORDER BY r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = %(status)s, finished_at = clock_timestamp(), skip_reason = %(skip_reason)s,
          error_class = %(error_class)s, error_detail = %(error_detail)s
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)

END_OF_GRANTS = (
    """
-- What waits under grants that were just revoked: skipped if it never began, else failed. Found among the live ones.
WITH chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
     WHERE l.workspace_id = %(workspace_id)s AND l.status = 'queued'
       AND r.grant_id = ANY(%(grant_ids)s) AND r.status = 'queued'
  ORDER BY r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = CASE WHEN r.started_at IS NULL THEN 'skipped' ELSE 'failed' END, finished_at = clock_timestamp(),
          skip_reason = CASE WHEN r.started_at IS NULL THEN 'grant_revoked' END,
          error_class = CASE WHEN r.started_at IS NOT NULL THEN 'grant_invalid' END,
          error_detail = CASE WHEN r.started_at IS NOT NULL THEN 'Its grant was revoked before it could go on.' END
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)

END_WAITING_EXCEPT = (
    """
WITH chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
     WHERE l.workspace_id = %(workspace_id)s AND l.automation_id = %(automation_id)s AND r.status = 'queued'
       AND l.source NOT IN ('chat', 'task') AND l.id <> ALL(%(keep)s)
  ORDER BY r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = 'cancelled', finished_at = clock_timestamp(), error_class = 'replaced',
          error_detail = 'A later run of this automation took its turn.'
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)

END_STUCK = (
    """
-- Queued and ready for longer than it may wait for a place. Tasks wait as long as it takes. While its agent or workspace
-- runs as many as it may, it is not a place that is missing: time counts from when there was room again.
WITH chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id
      FROM live_runs l
           JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
           JOIN agents a ON a.workspace_id = l.workspace_id AND a.id = l.agent_id
           JOIN workspaces w ON w.id = l.workspace_id
     WHERE l.status = 'queued' AND l.ready_at IS NOT NULL AND l.source <> 'task' AND r.status = 'queued'
       AND greatest(r.ready_at, a.full_at, w.full_at) + r.start_within < clock_timestamp()
     LIMIT %(limit)s FOR UPDATE OF r SKIP LOCKED),
changed AS (
   UPDATE runs r
      SET status = 'failed', finished_at = clock_timestamp(), error_class = 'stuck',
          error_detail = 'No worker had a free place for it within ' || r.start_within || '.'
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)

PROMOTE = """
-- The first that waits in each lane becomes ready, if nothing holds the lane or runs outside it for the same automation; a
-- turn also waits for what its automation does in the session, which then goes on instead of ending.
-- Who waits is looked for first: mostly it is nobody.
WITH waiting AS MATERIALIZED (
    SELECT g.workspace_id, g.lane, w.id
      FROM (SELECT DISTINCT workspace_id, lane FROM json_to_recordset(%(lanes)s::json) AS g(workspace_id uuid, lane uuid)) g
           CROSS JOIN LATERAL (
               SELECT r.id FROM live_runs w JOIN runs r ON r.workspace_id = w.workspace_id AND r.id = w.id
                WHERE w.workspace_id = g.workspace_id AND w.lane = g.lane AND w.status = 'queued' AND w.ready_at IS NULL
                  AND r.status = 'queued' AND r.ready_at IS NULL
             ORDER BY w.priority, w.id LIMIT 1 FOR UPDATE OF r SKIP LOCKED) w),
promoted AS (
       UPDATE runs r SET ready_at = clock_timestamp()
         FROM waiting g
        WHERE r.workspace_id = g.workspace_id AND r.id = g.id
          AND NOT EXISTS (
                  SELECT FROM live_runs h
                   WHERE h.workspace_id = g.workspace_id AND h.lane = g.lane
                     AND (h.status IN ('running', 'awaiting_approval') OR (h.status = 'queued' AND h.ready_at IS NOT NULL)))
          AND NOT EXISTS (
                  SELECT FROM live_runs h
                   WHERE h.workspace_id = g.workspace_id AND h.automation_id = g.lane AND h.lane IS NULL
                     AND h.source NOT IN ('chat', 'task'))
          AND NOT EXISTS (
                  SELECT FROM runs h
                   WHERE h.workspace_id = g.workspace_id AND h.session_id = g.lane AND h.automation_id IS NOT NULL
                     AND h.lane IS DISTINCT FROM g.lane AND h.status IN ('queued', 'running', 'awaiting_approval'))
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
-- The net under promotion: lanes in which runs wait and nothing holds them up.
SELECT DISTINCT w.workspace_id, w.lane FROM live_runs w
 WHERE w.status = 'queued' AND w.ready_at IS NULL AND w.lane IS NOT NULL
   AND NOT EXISTS (
           SELECT FROM live_runs h WHERE h.workspace_id = w.workspace_id AND h.lane = w.lane
              AND (h.status IN ('running', 'awaiting_approval') OR (h.status = 'queued' AND h.ready_at IS NOT NULL)))
   AND (w.lane <> w.session_id OR NOT EXISTS (
           SELECT FROM runs h WHERE h.workspace_id = w.workspace_id AND h.session_id = w.session_id
              AND h.automation_id IS NOT NULL AND h.lane IS DISTINCT FROM w.lane
              AND h.status IN ('queued', 'running', 'awaiting_approval')))
 LIMIT %(limit)s
"""

HOLD = """
-- Runs of tasks that nobody has claimed wait without `ready_at` and without a lane until their session is resumed.
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND status = 'queued'
       AND ready_at IS NOT NULL AND lane IS NULL AND automation_id IS NULL
  ORDER BY id FOR UPDATE SKIP LOCKED)
UPDATE runs r SET ready_at = NULL FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""

HOLD_IN_PAUSED = """
-- The same for runs that go back to the queue while their session is paused.
UPDATE runs r SET ready_at = NULL
  FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, id uuid)
 WHERE r.workspace_id = g.workspace_id AND r.id = g.id AND r.status = 'queued' AND r.lane IS NULL
   AND EXISTS (SELECT FROM sessions s WHERE s.workspace_id = r.workspace_id AND s.id = r.session_id AND s.status = 'paused')
"""

LET_GO = """
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND status = 'queued'
       AND ready_at IS NULL AND lane IS NULL
  ORDER BY id FOR UPDATE)
UPDATE runs r SET ready_at = clock_timestamp() FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
"""

LOCK_LIVE = """
-- Runs are locked before their session, as everywhere. Those that an automation started are not the session's to end.
SELECT id FROM runs
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND automation_id IS NULL
   AND status IN ('queued', 'running', 'awaiting_approval')
ORDER BY id
   FOR UPDATE
"""

END_OF_SESSION = (
    """
-- SKIP LOCKED: whoever claims one just now has its row and waits for the session's, which is ours.
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND status = 'queued' AND automation_id IS NULL
  ORDER BY id FOR UPDATE SKIP LOCKED),
changed AS (
   UPDATE runs r
      SET status = 'cancelled', finished_at = clock_timestamp(), error_class = 'cancelled_by_user',
          error_detail = 'Its session was ended before it began.'
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)

WAIT = """
-- The agent waits for an answer and keeps its process, place and lease.
UPDATE runs SET status = 'awaiting_approval'
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND attempt = %(attempt)s
   AND status = 'running' AND lease_until > clock_timestamp()
"""

GO_ON = """
-- All is answered, and the process that waits still holds its lease. One that does not is rescued.
UPDATE runs r SET status = 'running'
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'awaiting_approval' AND lease_until > clock_timestamp()
   AND NOT EXISTS (SELECT FROM approvals a
                    WHERE a.workspace_id = r.workspace_id AND a.run_id = r.id AND a.status = 'pending')
"""

RESUME = (
    """
-- All is answered: a parked run is queued before everybody else, and stays there if it has to be tried again.
WITH changed AS (
   UPDATE runs r
      SET status = 'queued', ready_at = clock_timestamp(), priority = %(priority)s, worker_id = NULL
    WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'awaiting_approval' AND lease_until IS NULL
      AND NOT EXISTS (SELECT FROM approvals a
                       WHERE a.workspace_id = r.workspace_id AND a.run_id = r.id AND a.status = 'pending')
RETURNING """
    + CHANGED
    + """, 'answered' AS reason),
"""
    + TELL_OF_CHANGED
)

FAIL_PARKED = (
    """
-- A run that waits for an answer that nobody can give any more.
WITH changed AS (
   UPDATE runs r
      SET status = 'failed', finished_at = clock_timestamp(), error_class = %(error_class)s, error_detail = %(error_detail)s
    WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'awaiting_approval' AND lease_until IS NULL
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)

END_EXPIRED = (
    """
-- Nobody answered in time. A process that still waits loses its lease with it, and is stopped by its worker.
WITH due AS MATERIALIZED (
    SELECT DISTINCT workspace_id, run_id FROM (
        SELECT workspace_id, run_id FROM approvals
         WHERE status = 'pending' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT %(limit)s) first),
chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id FROM due d JOIN runs r ON r.workspace_id = d.workspace_id AND r.id = d.run_id
     WHERE r.status = 'awaiting_approval'
  ORDER BY r.workspace_id, r.id FOR UPDATE OF r),
changed AS (
   UPDATE runs r
      SET status = 'failed', finished_at = clock_timestamp(), error_class = 'approval_expired',
          error_detail = 'Nobody answered in time.', lease_until = NULL, attempt_token_hash = NULL
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)

_REQUEST = """
-- Asks the worker of each live run to stop it; what is queued is ended by END_QUEUED, what is parked by END_PARKED.
WITH found AS MATERIALIZED ({which}),
chosen AS MATERIALIZED (
    SELECT r.workspace_id, r.id, r.cancel_requested_at IS NULL AS first
      FROM found f JOIN runs r ON r.workspace_id = %(workspace_id)s AND r.id = f.id
     WHERE r.status IN ('running', 'awaiting_approval') {and_what}
  ORDER BY r.id FOR UPDATE OF r)
   UPDATE runs r SET cancel_requested_at = coalesce(r.cancel_requested_at, clock_timestamp()),
                     cancel_reason = coalesce(r.cancel_reason, %(reason)s)
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING r.id, r.session_id, r.attempt, r.cancel_reason, c.first
"""

REQUEST_CANCEL = _REQUEST.format(
    which="""
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND id = %(id)s
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s
       AND source NOT IN ('chat', 'task')
     UNION
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
       AND status IN ('running', 'awaiting_approval') AND automation_id IS NULL""",
    and_what="",
)

# By itself: no index has the grant, so it looks at everything live in the workspace, which the others must not.
REQUEST_END_OF_GRANTS = _REQUEST.format(
    which="""
    SELECT id FROM live_runs WHERE workspace_id = %(workspace_id)s AND status IN ('running', 'awaiting_approval')""",
    and_what="AND r.grant_id = ANY(%(grant_ids)s)",
)

END_PARKED = (
    """
-- A run that waits for an answer in nobody's hands has no worker to end it.
WITH chosen AS MATERIALIZED (
    SELECT workspace_id, id FROM runs
     WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) AND status = 'awaiting_approval' AND lease_until IS NULL
       AND cancel_requested_at IS NOT NULL
  ORDER BY id FOR UPDATE),
changed AS (
   UPDATE runs r
      SET status = CASE WHEN r.cancel_reason IN ('grant_invalid', 'budget_exceeded') THEN 'failed' ELSE 'cancelled' END,
          finished_at = clock_timestamp(), error_class = r.cancel_reason,
          error_detail = CASE r.cancel_reason WHEN 'grant_invalid' THEN 'Its grant was revoked while it waited for an answer.'
                         WHEN 'budget_exceeded' THEN 'It has spent what one run may.'
                         ELSE 'Cancelled while it waited for an answer.' END
     FROM chosen c WHERE r.workspace_id = c.workspace_id AND r.id = c.id
RETURNING """
    + CHANGED
    + """, NULL AS reason),
"""
    + TELL_OF_CHANGED
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A live run that somebody asked to cancel; `first` unless somebody had before."""

    id: RunId
    session_id: SessionId
    attempt: int
    reason: str
    first: bool


class Ended(NamedTuple):
    """A run whose status just changed for good, or which went back to the queue."""

    workspace_id: WorkspaceId
    id: RunId
    session_id: SessionId | None
    automation_id: AutomationId | None
    agent_id: UUID
    lane: UUID | None
    attempt: int
    status: Status
    source: str
    error_class: str | None
    error_detail: str | None
    summary: str | None
    skip_reason: str | None
    trace_id: str
    budgeted: bool = False


@dataclass(frozen=True, slots=True)
class LostLease:
    workspace_id: WorkspaceId
    id: RunId
    attempt: int
    tries: int
    rescues: int
    max_rescues: int
    worker_id: str
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A claimed run whose row holds something that cannot be read, such as a time beyond the calendar."""

    workspace_id: WorkspaceId
    id: RunId
    attempt: int
    reason: str


def _interval(span: timedelta | None) -> str | None:
    return None if span is None else f"{span.total_seconds()} seconds"


def _plain(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    raise TypeError(type(value).__name__)


async def start(conn: Connection, starts: Sequence[Start]) -> set[UUID]:
    """Write runs with their fresh sessions and first events; the ids of those that were written."""
    rows = await conn.execute(START, {"starts": orjson.dumps(starts, default=_plain).decode()})
    return {run_id for (run_id,) in await rows.fetchall()}


async def hold_lanes(conn: Connection, lanes: Iterable[tuple[UUID, UUID]]) -> None:
    """Keep what is in these lanes from ending unseen until this transaction ends."""
    await conn.execute(HOLD_LANES, {"lanes": _lanes(lanes)})


async def hold_automated(conn: Connection, sessions: Iterable[tuple[UUID, UUID]]) -> None:
    """The same for what automations do in these sessions, outside their lanes."""
    await conn.execute(HOLD_AUTOMATED, {"lanes": _lanes(sessions)})


async def claim(
    conn: Connection,
    worker_id: WorkerId,
    *,
    queues: Sequence[dict[str, Any]],
    places: int,
    lease: timedelta,
    token_hashes: Sequence[bytes],
) -> tuple[list[Claimed], list[Unreadable]]:
    """Claim up to `places` runs, each with one of the hashes; whoever knows what was hashed is that attempt's agent."""
    given = {"worker_id": worker_id, "places": places, "lease": lease, "token_hashes": b"".join(token_hashes)}
    given["queues"] = orjson.dumps(queues).decode()
    async with conn.cursor(row_factory=args_row(Claimed)) as cursor:
        await cursor.execute(CLAIM if len(queues) > 1 else CLAIM_FROM_ONE, given)
        try:
            return await cursor.fetchall(), []
        except UNREADABLE:
            return await _read_one_by_one(cursor)


async def _read_one_by_one(cursor: AsyncCursor[Claimed]) -> tuple[list[Claimed], list[Unreadable]]:
    claimed, unreadable = [], []
    for place in range(cursor.rowcount):
        await cursor.scroll(place, mode="absolute")
        try:
            claimed += await cursor.fetchmany(1)
        except UNREADABLE as failure:
            unreadable.append(_named(cursor, place, failure))
    return claimed, unreadable


def _named(cursor: AsyncCursor[Claimed], place: int, failure: Exception) -> Unreadable:
    """Which row it is can be told from the bytes that the server sent."""
    assert cursor.pgresult
    assert cursor.description
    columns = [column.name for column in cursor.description]
    workspace_id, run_id, attempt = (
        (cursor.pgresult.get_value(place, columns.index(name)) or b"").decode()
        for name in ("workspace_id", "id", "attempt")
    )
    reason = str(failure).strip() or type(failure).__name__
    return Unreadable(WorkspaceId(UUID(workspace_id)), RunId(UUID(run_id)), int(attempt), reason)


def settlement_row(
    run: Claimed | LostLease | Unreadable, settled: Settlement, *, rescued: bool = False, reason: str | None = None
) -> dict[str, Any]:
    """What SETTLE writes of one attempt. `reason` is told where the run goes back to the queue, or was lost."""
    row: dict[str, Any] = {
        "workspace_id": run.workspace_id, "id": run.id, "attempt": run.attempt, "status": settled.status,
        "tries": settled.tries,
    }  # fmt: skip
    if settled.status != Status.SUCCEEDED:
        row |= {
            "retry_in": _interval(settled.retry_in), "error_class": settled.error_class,
            "error_detail": settled.error_detail if settled.status != Status.QUEUED else None,
            "rescued": rescued, "reason": reason,
        }  # fmt: skip
    if settled.summary:
        row["summary"] = settled.summary
    return row


async def settle(conn: Connection, settlements: Sequence[dict[str, Any]]) -> list[Ended]:
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(SETTLE, {"settlements": orjson.dumps(settlements).decode()})
        return await cursor.fetchall()


async def lease_ended(conn: Connection, limit: int) -> list[LostLease]:
    async with conn.cursor(row_factory=args_row(LostLease)) as cursor:
        await cursor.execute(LEASE_ENDED, {"limit": limit})
        return await cursor.fetchall()


async def end_queued(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    run_id: RunId | None = None,
    automation_id: AutomationId | None = None,
    agent_id: AgentId | None = None,
    status: Status,
    skip_reason: SkipReason | None = None,
    error_class: str | None = None,
    error_detail: str | None = None,
) -> list[Ended]:
    """End runs that still wait: one by its id, or every triggered one of an automation."""
    given = {
        "workspace_id": workspace_id, "id": run_id, "automation_id": automation_id, "agent_id": agent_id, "status": status,
        "skip_reason": skip_reason, "error_class": error_class, "error_detail": error_detail,
    }  # fmt: skip
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(END_QUEUED, given)
        return await cursor.fetchall()


async def end_of_grants(conn: Connection, workspace_id: WorkspaceId, grant_ids: list[GrantId]) -> list[Ended]:
    """End what waits under grants that were revoked."""
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(END_OF_GRANTS, {"workspace_id": workspace_id, "grant_ids": grant_ids})
        return await cursor.fetchall()


async def end_waiting_except(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, keep: list[UUID]
) -> list[Ended]:
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(
            END_WAITING_EXCEPT, {"workspace_id": workspace_id, "automation_id": automation_id, "keep": keep}
        )
        return await cursor.fetchall()


async def end_stuck(conn: Connection, limit: int) -> list[Ended]:
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(END_STUCK, {"limit": limit})
        return await cursor.fetchall()


async def promote(conn: Connection, lanes: Iterable[tuple[UUID, UUID]]) -> int:
    """Make the next run of each lane ready; how many became ready."""
    return (await conn.execute(PROMOTE, {"lanes": _lanes(lanes)})).rowcount


def _lanes(lanes: Iterable[tuple[UUID, UUID]]) -> str:
    return orjson.dumps([{"workspace_id": workspace_id, "lane": lane} for workspace_id, lane in lanes]).decode()


async def free_lanes(conn: Connection, limit: int) -> list[tuple[UUID, UUID]]:
    rows = await conn.execute(FREE_LANES, {"limit": limit})
    return [(workspace_id, lane) for workspace_id, lane in await rows.fetchall()]


async def request_cancel(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    run_id: RunId | None = None,
    automation_id: AutomationId | None = None,
    session_id: SessionId | None = None,
    reason: str,
) -> list[Asked]:
    given = {"workspace_id": workspace_id, "id": run_id, "automation_id": automation_id, "session_id": session_id}
    async with conn.cursor(row_factory=args_row(Asked)) as cursor:
        await cursor.execute(REQUEST_CANCEL.encode(), {**given, "reason": reason})
        return await cursor.fetchall()


async def request_end_of_grants(conn: Connection, workspace_id: WorkspaceId, grant_ids: list[GrantId]) -> list[Asked]:
    """Ask for the end of what runs under grants that were revoked."""
    given = {"workspace_id": workspace_id, "grant_ids": grant_ids, "reason": "grant_invalid"}
    async with conn.cursor(row_factory=args_row(Asked)) as cursor:
        await cursor.execute(REQUEST_END_OF_GRANTS.encode(), given)
        return await cursor.fetchall()


async def end_parked(conn: Connection, workspace_id: WorkspaceId, ids: list[RunId]) -> list[Ended]:
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(END_PARKED, {"workspace_id": workspace_id, "ids": ids})
        return await cursor.fetchall()


async def wait(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> None:
    """Running → awaiting approval, in the same place."""
    await conn.execute(WAIT, {"workspace_id": workspace_id, "id": run_id, "attempt": attempt})


async def go_on(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> bool:
    """Awaiting approval → running, in the same place."""
    return (await conn.execute(GO_ON, {"workspace_id": workspace_id, "id": run_id})).rowcount > 0


async def resume(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> list[Ended]:
    """Awaiting approval, parked → queued, first in line."""
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(RESUME, {"workspace_id": workspace_id, "id": run_id, "priority": FIRST_IN_LINE})
        return await cursor.fetchall()


async def fail_parked(
    conn: Connection, workspace_id: WorkspaceId, run_id: RunId, *, error_class: str, error_detail: str
) -> list[Ended]:
    given = {"workspace_id": workspace_id, "id": run_id, "error_class": error_class, "error_detail": error_detail}
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(FAIL_PARKED, given)
        return await cursor.fetchall()


async def end_expired(conn: Connection, limit: int) -> list[Ended]:
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(END_EXPIRED, {"limit": limit})
        return await cursor.fetchall()


async def hold(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """Keep the session's tasks from starting."""
    await conn.execute(HOLD, {"workspace_id": workspace_id, "session_id": session_id})


async def hold_in_paused(conn: Connection, runs: Iterable[tuple[UUID, UUID]]) -> None:
    rows = [{"workspace_id": workspace_id, "id": run_id} for workspace_id, run_id in runs]
    await conn.execute(HOLD_IN_PAUSED, {"runs": orjson.dumps(rows).decode()})


async def let_go(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """Make ready what `hold` kept back."""
    await conn.execute(LET_GO, {"workspace_id": workspace_id, "session_id": session_id})


async def lock_live(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> None:
    """Keep the session's own runs from being claimed or ended by others until this transaction ends."""
    await conn.execute(LOCK_LIVE, {"workspace_id": workspace_id, "session_id": session_id})


async def end_of_session(conn: Connection, workspace_id: WorkspaceId, session_id: SessionId) -> list[Ended]:
    async with conn.cursor(row_factory=args_row(Ended)) as cursor:
        await cursor.execute(END_OF_SESSION, {"workspace_id": workspace_id, "session_id": session_id})
        return await cursor.fetchall()
