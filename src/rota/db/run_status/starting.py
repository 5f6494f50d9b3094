"""Runs come into the ledger."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import orjson

from rota.db.pool import Connection
from rota.model.run import Start

START = """
-- The slot's UNIQUE is the second guard behind the trigger's row lock: a slot that has its run gets no second one,
-- nor a session or event. A taken lane is not passed over in silence: it fails the transaction.
-- fence: the subject is computed here, because a search by coalesce() is a filter under row-level security.
WITH given AS MATERIALIZED (
    SELECT *, coalesce(automation_id, agent_id) AS subject_id FROM json_to_recordset(%(starts)s::json) AS g(
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
                   AND r.subject_id = given.subject_id AND r.revision = given.revision))))
      FROM given WHERE fresh_session AND id IN (SELECT id FROM written))
SELECT id FROM written
"""


def _plain(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    raise TypeError(type(value).__name__)


async def start(conn: Connection, starts: Sequence[Start]) -> set[UUID]:
    """Write runs with their fresh sessions and first events; the ids of those that were written."""
    rows = await conn.execute(START, {"starts": orjson.dumps(starts, default=_plain).decode()})
    return {run_id for (run_id,) in await rows.fetchall()}
