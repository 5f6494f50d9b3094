"""What the session of a run is told when its status changes, in the statement that changes it."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import args_row

from rota.db.pool import Connection
from rota.model.ids import AgentId, AutomationId, RunId, SessionId, WorkspaceId
from rota.model.run import Status

# Failures are counted in automations, which are locked before runs. Who finds the runs that fail by looking for them looks
# first (`candidates`), then locks their automations, and then those runs that still are what they were.
COUNTED_IN = """
counted_in AS MATERIALIZED (
    SELECT a.id FROM automations a
     WHERE (a.workspace_id, a.id) IN (SELECT workspace_id, automation_id FROM candidates)
  ORDER BY a.workspace_id, a.id FOR NO KEY UPDATE),"""
ARE_HELD = "(SELECT count(*) FROM counted_in) >= 0"

CHANGED = """r.workspace_id, r.id, r.session_id, r.automation_id, r.lane, r.attempt, r.status, r.source, r.error_class,
          r.error_detail, r.summary, r.skip_reason, r.trace_id, r.budget IS NOT NULL AS budgeted,
          r.agent_id"""

_OF_EACH_SESSION = """
    SELECT workspace_id, session_id, array_agg(run_id) AS run_ids, array_agg(attempt) AS attempts, array_agg(data) AS told,
           max(session_status) AS session_status
      FROM news GROUP BY workspace_id, session_id ORDER BY workspace_id, session_id"""

_HELD = f"""
held AS MATERIALIZED (
    SELECT n.* FROM ({_OF_EACH_SESSION}) n JOIN sessions s ON s.workspace_id = n.workspace_id AND s.id = n.session_id
  ORDER BY s.workspace_id, s.id FOR NO KEY UPDATE OF s),"""


def _written(sessions: str) -> str:
    return f"""
numbered AS (
    UPDATE sessions s
       SET last_seq = s.last_seq + cardinality(n.run_ids), updated_at = now(),
           status = CASE WHEN n.session_status IS NULL OR s.has_tasks OR s.status NOT IN ('active', 'paused') THEN s.status
                         ELSE n.session_status END
      FROM {sessions} n
     WHERE s.workspace_id = n.workspace_id AND s.id = n.session_id
 RETURNING s.workspace_id, s.id, s.last_seq - cardinality(n.run_ids) AS before, n.run_ids, n.attempts, n.told),
told AS (
    INSERT INTO events (workspace_id, session_id, seq, kind, run_id, attempt, data)
    SELECT workspace_id, id, before + generate_series(1, cardinality(run_ids)), 'run',
           unnest(run_ids), unnest(attempts), unnest(told)
      FROM numbered)"""


# The end of a statement that wrote runs: the `news` of each goes into its session's log, in the same statement. Sessions are
# locked in id order and after the runs; the chain goes by RETURNING, because a join of two CTEs compares every pair. The
# line of a worker plans only one way (db/pool.Reserved), so there the writing itself takes the locks, in that order.
_TELL = _HELD + _written("held")
_TELL_AT_ONCE = _written(f"({_OF_EACH_SESSION})")

# The same for runs that ended or went back to the queue; `fault` is the error class of an attempt that another follows. A session made for one run ends with it; one that goes on stays,
# and one with tasks ends with them.
_NEWS_OF_CHANGED = """news AS (
    SELECT workspace_id, session_id, id AS run_id, nullif(attempt, 0) AS attempt,
           CASE WHEN status IN ('queued', 'awaiting_approval') OR lane = session_id THEN NULL
                WHEN status = 'succeeded' THEN 'done' ELSE 'failed' END AS session_status,
           jsonb_strip_nulls(jsonb_build_object(
               'status', status, 'error_class', coalesce(error_class, fault), 'error_detail', error_detail, 'summary', summary,
               'skip_reason', skip_reason, 'reason', CASE WHEN status IN ('queued', 'awaiting_approval')
                                                            OR error_class = 'stalled' THEN reason END)) AS data
      FROM changed WHERE session_id IS NOT NULL),"""
_THEN_SHOW = """
SELECT workspace_id, id, session_id, automation_id, lane, attempt, status, source,
       error_class, summary, skip_reason, trace_id, budgeted, agent_id, freed FROM changed
"""
TELL_OF_CHANGED = _NEWS_OF_CHANGED + _TELL + _THEN_SHOW
TELL_OF_CHANGED_AT_ONCE = _NEWS_OF_CHANGED + _TELL_AT_ONCE + _THEN_SHOW

# The end of a statement whose `changed` needs no reason, of runs that held no lease.
TELL = "RETURNING " + CHANGED + ", false AS freed, NULL AS reason, NULL AS fault),\n" + TELL_OF_CHANGED


class Ended(NamedTuple):
    """A run whose status just changed for good, or which went back to the queue."""

    workspace_id: WorkspaceId
    id: RunId
    session_id: SessionId | None
    automation_id: AutomationId | None
    lane: UUID | None
    attempt: int
    status: Status
    source: str
    error_class: str | None
    summary: str | None
    skip_reason: str | None
    trace_id: str
    budgeted: bool = False
    agent_id: AgentId | None = None
    freed: bool = False  # it ran until now: its agent and workspace run one fewer


async def ended(conn: Connection, statement: str, given: Mapping[str, Any]) -> list[Ended]:
    async with conn.cursor(row_factory=args_row(Ended), binary=True) as cursor:
        await cursor.execute(statement, given)
        return await cursor.fetchall()
