"""Running → succeeded, failed, cancelled, or queued again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
from psycopg.rows import args_row

from rota.db.arrays import Integers, Texts, Uuids
from rota.db.at_once import Step
from rota.db.pool import Connection, short
from rota.db.run_status.claiming import Unreadable
from rota.db.run_status.news import ARE_HELD, CHANGED, COUNTED_IN, TELL_OF_CHANGED_AT_ONCE, Ended, ended
from rota.model.ids import RunId, WorkspaceId
from rota.model.run import Claimed, Settlement, Status

# Of a run that somebody asked to cancel no attempt follows the one that ends, however it ends.
AGAIN = "l.status = 'queued' AND r.cancel_requested_at IS NULL"
# One that has used up its budget fails, also if it reached its end before it was stopped.
CANCELS = """(l.status = 'cancelled' OR l.status = 'queued' AND r.cancel_requested_at IS NOT NULL
              OR (r.cancel_reason = 'budget_exceeded') IS TRUE)"""

SETTLE = short(
    f"""
-- Fenced by primary key and attempt, on the database's clock. No row back: the lease went to somebody else. The status is
-- expected in a column, which keeps the planner to the primary key: the index of running runs fills with dead entries.
WITH given AS MATERIALIZED (
    SELECT *, ARRAY['running', 'awaiting_approval'] AS live FROM json_to_recordset(%(settlements)s::json) AS g(
        workspace_id uuid, id uuid, attempt integer, status text, tries integer, retry_in interval,
        error_class text, error_detail text, summary text, skip_reason text, rescued boolean, reason text, fault text)
    ORDER BY workspace_id, id),
changed AS (
   UPDATE runs r
      SET status = CASE WHEN NOT {CANCELS} THEN l.status
                        WHEN r.cancel_reason IN ('grant_invalid', 'budget_exceeded') THEN 'failed' ELSE 'cancelled' END,
          tries = l.tries, rescues = r.rescues + ((l.rescued AND l.status = 'queued') IS TRUE)::integer,
          finished_at = CASE WHEN {CANCELS} OR l.status NOT IN ('queued', 'awaiting_approval') THEN clock_timestamp() END,
          ready_at = CASE WHEN {AGAIN} THEN clock_timestamp() + coalesce(l.retry_in, '0') ELSE r.ready_at END,
          error_class = CASE WHEN {CANCELS}
                             THEN coalesce(r.cancel_reason, l.error_class, 'cancelled_by_user') ELSE l.error_class END,
          error_detail = CASE WHEN NOT {CANCELS} THEN l.error_detail WHEN r.cancel_reason = 'grant_invalid'
                              THEN 'Its grant was revoked or has expired while it ran.' WHEN r.cancel_reason = 'budget_exceeded'
                              THEN coalesce(r.cancel_detail, 'It has spent what its budget allows.') ELSE l.error_detail END,
          summary = l.summary, skip_reason = l.skip_reason, lease_until = NULL, attempt_token_hash = NULL,
          worker_id = CASE WHEN {AGAIN} THEN NULL ELSE r.worker_id END
     FROM given l
    WHERE r.workspace_id = l.workspace_id AND r.id = l.id AND r.attempt = l.attempt AND r.status = ANY(l.live)
      AND (l.rescued OR r.lease_until > clock_timestamp())
RETURNING """
    + CHANGED
    + """, true AS freed, l.reason, l.fault),
"""
    + TELL_OF_CHANGED_AT_ONCE
)

SUCCEED = short("""
-- As SETTLE, for attempts that succeeded, which most do. They are given in id order, and so that their sessions are in id
-- order too, each once: so the writing itself takes the locks, in that order.
WITH given AS MATERIALIZED (
    SELECT *, ARRAY['running', 'awaiting_approval'] AS expected
      FROM unnest(%(workspaces)s::uuid[], %(ids)s::uuid[], %(attempts)s::integer[], %(summaries)s::text[])
           WITH ORDINALITY AS g(workspace_id, id, attempt, summary, number)),
changed AS (
   UPDATE runs r
      SET status = 'succeeded', finished_at = clock_timestamp(), summary = g.summary, lease_until = NULL,
          attempt_token_hash = NULL
     FROM given g
    WHERE r.workspace_id = g.workspace_id AND r.id = g.id AND r.attempt = g.attempt AND r.status = ANY(g.expected)
      AND r.lease_until > clock_timestamp()
RETURNING r.workspace_id, r.id, r.session_id, r.lane, r.attempt, r.summary, g.number),
numbered AS (
    UPDATE sessions s
       SET last_seq = s.last_seq + 1, updated_at = now(),
           status = CASE WHEN c.lane = c.session_id OR s.has_tasks OR s.status NOT IN ('active', 'paused') THEN s.status
                         ELSE 'done' END
      FROM changed c
     WHERE s.workspace_id = c.workspace_id AND s.id = c.session_id
 RETURNING s.workspace_id, s.id, s.last_seq, c.id AS run_id, c.attempt, c.summary),
told AS (
    INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
    SELECT workspace_id, id, last_seq, 'run', run_id, attempt,
           CASE WHEN summary IS NULL THEN '{"status": "succeeded"}'
                ELSE jsonb_build_object('status', 'succeeded', 'summary', summary) END
      FROM numbered)
SELECT count(*), CASE WHEN count(*) < cardinality(%(ids)s::uuid[]) THEN array_agg(number) END FROM changed
""")

_LOST = "r.status IN ('running', 'awaiting_approval') AND r.lease_until <= clock_timestamp()"
LEASE_ENDED = f"""
WITH candidates AS MATERIALIZED (
    SELECT r.workspace_id, r.id, CASE WHEN r.rescues >= r.max_rescues THEN r.automation_id END AS automation_id
      FROM taken_runs t JOIN runs r ON r.workspace_id = t.workspace_id AND r.id = t.id
     WHERE t.leased AND {_LOST}
  ORDER BY r.workspace_id, r.id LIMIT %(limit)s),{COUNTED_IN.removesuffix(",")}
SELECT r.workspace_id, r.id, r.attempt, r.tries, r.rescues, r.max_rescues, r.worker_id, r.cancel_requested_at IS NOT NULL
  FROM candidates c JOIN runs r ON r.workspace_id = c.workspace_id AND r.id = c.id
 WHERE {ARE_HELD} AND {_LOST}
ORDER BY r.workspace_id, r.id
   FOR UPDATE OF r SKIP LOCKED
"""


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
            "retry_in": _interval(settled.retry_in), "rescued": rescued, "reason": reason,
        }  # fmt: skip
    if settled.status == Status.QUEUED:  # the attempt may have failed, but the run has not
        row["fault"] = settled.error_class
    elif settled.status != Status.SUCCEEDED:
        row |= {
            "error_class": settled.error_class, "error_detail": settled.error_detail,
        }  # fmt: skip
    if settled.summary:
        row["summary"] = settled.summary
    return row


async def settle(conn: Connection, settlements: Sequence[dict[str, Any]]) -> list[Ended]:
    return await ended(conn, SETTLE, {"settlements": orjson.dumps(settlements).decode()})


def succeed(runs: Sequence[Claimed], summaries: Sequence[str | None]) -> Step:
    """The step that settles these attempts, in the order that SUCCEED needs. Its row: how many were accepted and, if not
    all were, their numbers from 1."""
    return SUCCEED, {
        "workspaces": Uuids.of([run.workspace_id for run in runs]),
        "ids": Uuids.of([run.id for run in runs]),
        "attempts": Integers.of([run.attempt for run in runs]),
        "summaries": Texts.of(summaries),
    }


async def lease_ended(conn: Connection, limit: int) -> list[LostLease]:
    async with conn.cursor(row_factory=args_row(LostLease)) as cursor:
        await cursor.execute(LEASE_ENDED, {"limit": limit})
        return await cursor.fetchall()


def _interval(span: timedelta | None) -> str | None:
    return None if span is None else f"{span.total_seconds()} seconds"
