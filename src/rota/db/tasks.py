"""Tasks and what they wait for. Whoever changes them holds the lock of their session's row."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import orjson
from psycopg.rows import args_row, dict_row

from rota.db import imports
from rota.db.pool import Connection
from rota.model.ids import RunId, SessionId, TaskId, WorkspaceId, as_uuid
from rota.model.task import MAX_TASK_DEPTH, MAX_TASKS, Known, NewTask, Standing

Where: TypeAlias = tuple[WorkspaceId, SessionId]

SUMMARIES_GIVEN = 1000  # of those it waited for; an agent that wants all of more asks for the session's tasks

KNOWN = """
SELECT id, key, status, added_by_run FROM tasks
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND (key = ANY(%(keys)s) OR id = ANY(%(ids)s))
"""

ADD = """
INSERT INTO tasks (workspace_id, session_id, id, key, role, unmet, prompt, input, timeout, max_attempts, batch, added_by_run,
                   depth)
SELECT %(workspace_id)s, %(session_id)s, id, key, role, unmet, prompt, input, timeout, max_attempts, %(batch)s, %(run_id)s,
       %(depth)s
  FROM json_to_recordset(%(tasks)s::json) AS g(
       id uuid, key text, role text, unmet integer, prompt text, input jsonb, timeout interval, max_attempts integer)
"""

STANDING = """
-- Under the lock of the session, so that nobody else adds a task of this run meanwhile. A task's run adds tasks that are one
-- deeper; without an automation the defaults hold.
SELECT coalesce(a.max_task_depth, %(max_depth)s), coalesce(a.max_tasks, %(max_tasks)s),
       1 + coalesce((SELECT t.depth FROM tasks t WHERE t.workspace_id = r.workspace_id AND t.run_id = r.id), 0),
       (SELECT count(*) FROM tasks t WHERE t.workspace_id = r.workspace_id AND t.added_by_run = r.id)
  FROM (SELECT r.workspace_id, r.id, coalesce(r.automation_id, s.automation_id) AS automation_id
          FROM runs r LEFT JOIN sessions s ON s.workspace_id = r.workspace_id AND s.id = r.session_id
         WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s
        OFFSET 0) r  -- fence: a join on coalesce() is a filter under row-level security
       LEFT JOIN automations a ON a.workspace_id = r.workspace_id AND a.id = r.automation_id
"""

ADD_DEPENDENCIES = """
INSERT INTO task_dependencies (workspace_id, session_id, task_id, depends_on)
SELECT %(workspace_id)s, %(session_id)s, (pair ->> 0)::uuid, (pair ->> 1)::uuid
  FROM json_array_elements(%(pairs)s::json) AS pair
"""

GATHER = """
UPDATE tasks SET batch = %(batch)s
 WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND id = ANY(%(ids)s)
"""

SETTLE = """
-- Only a ready task ends, and with its latest run only: a run that was replaced by its retry says nothing more of it.
   UPDATE tasks t
      SET status = CASE WHEN g.done THEN 'done' ELSE 'failed' END, reason = g.reason, finished_at = clock_timestamp()
     FROM json_to_recordset(%(ended)s::json) AS g(workspace_id uuid, run_id uuid, done boolean, reason text)
    WHERE t.workspace_id = g.workspace_id AND t.run_id = g.run_id AND t.status = 'ready'
RETURNING t.workspace_id, t.session_id, t.id, t.key, t.role, t.run_id, t.status, t.reason
"""

LOWER = """
-- A count instead of a look at every dependency: a task that waits for ten thousand would look at them ten thousand times.
WITH met AS MATERIALIZED (
    SELECT d.workspace_id, d.session_id, d.task_id, count(*) AS count
      FROM json_to_recordset(%(done)s::json) AS g(workspace_id uuid, session_id uuid, id uuid)
           JOIN task_dependencies d
             ON d.workspace_id = g.workspace_id AND d.session_id = g.session_id AND d.depends_on = g.id
  GROUP BY 1, 2, 3)
UPDATE tasks t SET unmet = t.unmet - met.count
  FROM met
 WHERE t.workspace_id = met.workspace_id AND t.session_id = met.session_id AND t.id = met.task_id
"""

SKIP = """
-- All that waits for a failed or skipped task, however far away.
WITH RECURSIVE behind AS (
    SELECT d.workspace_id, d.session_id, d.task_id
      FROM json_to_recordset(%(failed)s::json) AS g(workspace_id uuid, session_id uuid, id uuid)
           JOIN task_dependencies d
             ON d.workspace_id = g.workspace_id AND d.session_id = g.session_id AND d.depends_on = g.id
    UNION
    SELECT d.workspace_id, d.session_id, d.task_id
      FROM behind b JOIN task_dependencies d
             ON d.workspace_id = b.workspace_id AND d.session_id = b.session_id AND d.depends_on = b.task_id)
   UPDATE tasks t SET status = 'skipped', reason = 'dependency_failed', finished_at = clock_timestamp()
     FROM behind b
    WHERE t.workspace_id = b.workspace_id AND t.session_id = b.session_id AND t.id = b.task_id AND t.status = 'pending'
RETURNING t.workspace_id, t.session_id, t.id, t.key, t.role, t.run_id, t.status, t.reason
"""

CLOSE = """
-- The session was ended by hand: what has not begun does not begin any more.
   UPDATE tasks SET status = 'skipped', reason = 'session_ended', finished_at = clock_timestamp()
    WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND status = 'pending'
RETURNING workspace_id, session_id, id, key, role, run_id, status, reason
"""

REVIVE = """
-- What was skipped because of this task waits again, unless it also waits for another one that failed.
WITH RECURSIVE behind AS (
    SELECT task_id FROM task_dependencies
     WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND depends_on = %(id)s
    UNION
    SELECT d.task_id FROM behind b JOIN task_dependencies d
        ON d.workspace_id = %(workspace_id)s AND d.session_id = %(session_id)s AND d.depends_on = b.task_id),
doomed AS (
    SELECT d.task_id FROM tasks t JOIN task_dependencies d
        ON d.workspace_id = t.workspace_id AND d.session_id = t.session_id AND d.depends_on = t.id
     WHERE t.workspace_id = %(workspace_id)s AND t.session_id = %(session_id)s AND t.id <> %(id)s
       AND (t.status = 'failed' OR (t.status = 'skipped' AND t.reason = 'session_ended'))
    UNION
    SELECT d.task_id FROM doomed b JOIN task_dependencies d
        ON d.workspace_id = %(workspace_id)s AND d.session_id = %(session_id)s AND d.depends_on = b.task_id)
   UPDATE tasks t SET status = 'pending', reason = NULL, finished_at = NULL
     FROM (SELECT task_id FROM behind EXCEPT SELECT task_id FROM doomed) revived
    WHERE t.workspace_id = %(workspace_id)s AND t.session_id = %(session_id)s AND t.id = revived.task_id
      AND t.status = 'skipped' AND t.reason = 'dependency_failed'
RETURNING t.workspace_id, t.session_id, t.id, t.key, t.role, t.run_id, t.status, t.reason
"""

RELEASABLE = """
-- Tasks that wait for nobody any more, in sessions that are active, with all that their run needs.
SELECT t.workspace_id, t.session_id, t.id, t.key, t.role, t.prompt, t.input, t.timeout, t.max_attempts, s.owner_id, s.goal,
       r.agent_id, r.grant_id, a.revision, a.executor, a.pool, a.max_concurrent IS NOT NULL AS capped,
       a.status = 'paused' AS agent_paused, a.deleted_at IS NOT NULL AS agent_deleted, waited.count AS waited_for,
       waited.given AS dependencies
  FROM json_to_recordset(%(sessions)s::json) AS g(workspace_id uuid, id uuid)
       JOIN sessions s ON s.workspace_id = g.workspace_id AND s.id = g.id AND s.status = 'active'
       JOIN tasks t ON t.workspace_id = s.workspace_id AND t.session_id = s.id AND t.status = 'pending' AND t.unmet = 0
       JOIN session_roles r ON r.workspace_id = t.workspace_id AND r.session_id = t.session_id AND r.name = t.role
       JOIN agents a ON a.workspace_id = r.workspace_id AND a.id = r.agent_id
       CROSS JOIN LATERAL (
           SELECT count(*) AS count, coalesce(jsonb_agg(jsonb_build_object(
                      'key', p.key, 'role', p.role, 'run_id', p.run_id, 'summary', u.summary) ORDER BY p.id)
                      FILTER (WHERE d.number <= %(given)s), '[]') AS given
             FROM (SELECT depends_on, row_number() OVER (ORDER BY depends_on) AS number FROM task_dependencies
                    WHERE workspace_id = t.workspace_id AND session_id = t.session_id AND task_id = t.id) d
                  JOIN tasks p ON p.workspace_id = t.workspace_id AND p.session_id = t.session_id AND p.id = d.depends_on
                  LEFT JOIN runs u ON u.workspace_id = p.workspace_id AND u.id = p.run_id) waited
ORDER BY t.workspace_id, t.id
"""

READY = """
UPDATE tasks t SET status = 'ready', run_id = g.run_id
  FROM json_to_recordset(%(ready)s::json) AS g(workspace_id uuid, session_id uuid, id uuid, run_id uuid)
 WHERE t.workspace_id = g.workspace_id AND t.session_id = g.session_id AND t.id = g.id AND t.status = 'pending'
"""

OF_RUNS = """
SELECT t.workspace_id, t.session_id, t.id, t.key, t.role, t.run_id, t.status, t.reason
  FROM json_to_recordset(%(runs)s::json) AS g(workspace_id uuid, run_id uuid)
       JOIN tasks t ON t.workspace_id = g.workspace_id AND t.run_id = g.run_id AND t.status = 'ready'
ORDER BY t.workspace_id, t.id
"""

AGAIN = """
-- A failed task is ready again, with the run that retries it.
   UPDATE tasks SET status = 'ready', run_id = %(run_id)s, reason = NULL, finished_at = NULL
    WHERE workspace_id = %(workspace_id)s AND run_id = %(old_run_id)s AND status = 'failed'
RETURNING workspace_id, session_id, id, key, role, run_id, status, reason
"""

SHOWN = """
-- A ready task runs when its run does.
SELECT t.id, t.key, t.role, t.prompt, t.input, t.run_id, t.reason, t.timeout, t.max_attempts, t.added_by_run, t.created_at,
       t.finished_at, t.batch, r.started_at, r.summary, r.error_class, r.error_detail,
       CASE WHEN t.status = 'ready' AND r.status IN ('running', 'awaiting_approval') THEN 'running' ELSE t.status END AS status,
       ARRAY(SELECT d.depends_on FROM task_dependencies d
              WHERE d.workspace_id = t.workspace_id AND d.session_id = t.session_id AND d.task_id = t.id
           ORDER BY d.depends_on) AS depends_on
  FROM tasks t LEFT JOIN runs r ON r.workspace_id = t.workspace_id AND r.id = t.run_id
 WHERE t.workspace_id = %(workspace_id)s AND t.session_id = %(session_id)s
"""

COUNTS = """
SELECT CASE WHEN t.status = 'ready' AND r.status IN ('running', 'awaiting_approval') THEN 'running' ELSE t.status END, count(*)
  FROM tasks t LEFT JOIN runs r ON r.workspace_id = t.workspace_id AND r.id = t.run_id AND t.status = 'ready'
 WHERE t.workspace_id = %(workspace_id)s AND t.session_id = %(session_id)s
GROUP BY 1
"""

ASKING = """
-- Those whose run waits for an answer, each with its first question.
SELECT t.id, (SELECT a.id FROM approvals a
               WHERE a.workspace_id = r.workspace_id AND a.run_id = r.id AND a.status = 'pending'
            ORDER BY a.id LIMIT 1)
  FROM tasks t JOIN runs r ON r.workspace_id = t.workspace_id AND r.id = t.run_id AND r.status = 'awaiting_approval'
 WHERE t.workspace_id = %(workspace_id)s AND t.session_id = %(session_id)s AND t.status = 'ready'
"""


class Changed(NamedTuple):
    """A task whose status has just changed. `place` is which it is of how many that were added with it, if those are
    many; `retried` marks a failed one that is ready again."""

    workspace_id: WorkspaceId
    session_id: SessionId
    id: TaskId
    key: str
    role: str
    run_id: RunId | None
    status: str
    reason: str | None
    place: tuple[int, int] | None = None
    retried: bool = False


class End(NamedTuple):
    """How the run of a task ended."""

    workspace_id: WorkspaceId
    run_id: RunId
    done: bool
    reason: str | None


def _json(rows: Any) -> str:
    return orjson.dumps(rows, default=_plain).decode()


def _plain(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    raise TypeError(type(value).__name__)


async def _changed(conn: Connection, query: str, given: dict[str, Any]) -> list[Changed]:
    async with conn.cursor(row_factory=args_row(Changed)) as cursor:
        await cursor.execute(query.encode(), given)
        return await cursor.fetchall()


async def known(conn: Connection, where: Where, refs: Iterable[str]) -> list[Known]:
    """Those of the session's tasks that are named, by key or id."""
    refs = list(refs)
    ids = [found for ref in refs if (found := as_uuid(ref))]
    given = {"workspace_id": where[0], "session_id": where[1], "keys": refs, "ids": ids}
    rows = await conn.execute(KNOWN, given)
    return [Known(*row) for row in await rows.fetchall()]


async def standing(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> Standing:
    """Where a run stands that is about to add tasks to its session."""
    given = {"workspace_id": workspace_id, "run_id": run_id, "max_depth": MAX_TASK_DEPTH, "max_tasks": MAX_TASKS}
    row = await (await conn.execute(STANDING, given)).fetchone()
    assert row, "its lease is held"
    return Standing(*row)


async def add(
    conn: Connection, where: Where, new: Sequence[NewTask], *, batch: UUID, run_id: RunId | None, depth: int = 1
) -> None:
    given = {"workspace_id": where[0], "session_id": where[1]}
    rows = [
        {
            "id": task.id, "key": task.key, "role": task.role, "unmet": task.unmet, "prompt": task.prompt,
            "input": task.input, "timeout": task.timeout, "max_attempts": task.max_attempts,
        }
        for task in new
    ]  # fmt: skip
    await conn.execute(ADD, {**given, "tasks": _json(rows), "batch": batch, "run_id": run_id, "depth": depth})
    pairs = [(task.id, needed) for task in new for needed in task.depends_on]
    if pairs:
        await conn.execute(ADD_DEPENDENCIES, {**given, "pairs": _json(pairs)})


async def gather(conn: Connection, where: Where, again: Iterable[TaskId], *, batch: UUID) -> None:
    """Count tasks that are there among a batch that names them again."""
    given = {"workspace_id": where[0], "session_id": where[1], "ids": list(again), "batch": batch}
    await conn.execute(GATHER, given)


async def settle(conn: Connection, ended: Sequence[End]) -> list[Changed]:
    """Tasks end with their runs; those that did."""
    return await _changed(conn, SETTLE, {"ended": _json([each._asdict() for each in ended])})


async def lower(conn: Connection, done: Sequence[Changed]) -> None:
    """Those that wait for these wait for so many fewer."""
    await conn.execute(LOWER, {"done": _json([_place(each) for each in done])})


async def skip(conn: Connection, failed: Iterable[tuple[WorkspaceId, SessionId, TaskId]]) -> list[Changed]:
    """Skip what waits for these, however far away; those that were skipped."""
    rows = [{"workspace_id": w, "session_id": s, "id": i} for w, s, i in failed]
    return await _changed(conn, SKIP, {"failed": _json(rows)})


async def close(conn: Connection, where: Where) -> list[Changed]:
    return await _changed(conn, CLOSE, {"workspace_id": where[0], "session_id": where[1]})


async def revive(conn: Connection, task: Changed) -> list[Changed]:
    given = {"workspace_id": task.workspace_id, "session_id": task.session_id, "id": task.id}
    return await _changed(conn, REVIVE, given)


async def again(conn: Connection, workspace_id: WorkspaceId, old: RunId, new: RunId) -> Changed | None:
    """The failed task of a run gets another one; None if the run is no failed task's latest."""
    found = await _changed(conn, AGAIN, {"workspace_id": workspace_id, "old_run_id": old, "run_id": new})
    return found[0] if found else None


async def releasable(conn: Connection, sessions: Iterable[Where]) -> list[dict[str, Any]]:
    rows = [{"workspace_id": workspace_id, "id": session_id} for workspace_id, session_id in sessions]
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(RELEASABLE, {"sessions": _json(rows), "given": SUMMARIES_GIVEN})
        return await cursor.fetchall()


async def make_ready(conn: Connection, ready: Sequence[tuple[WorkspaceId, SessionId, TaskId, RunId]]) -> None:
    rows = [{"workspace_id": w, "session_id": s, "id": t, "run_id": r} for w, s, t, r in ready]
    await conn.execute(READY, {"ready": _json(rows)})


async def of_runs(conn: Connection, runs: Iterable[tuple[WorkspaceId, RunId]]) -> list[Changed]:
    """The tasks that have not ended and belong to these runs."""
    rows = [{"workspace_id": workspace_id, "run_id": run_id} for workspace_id, run_id in runs]
    return await _changed(conn, OF_RUNS, {"runs": _json(rows)})


def _place(task: Changed) -> dict[str, UUID]:
    return {"workspace_id": task.workspace_id, "session_id": task.session_id, "id": task.id}


async def page(
    conn: Connection,
    where: Where,
    *,
    after: UUID | None = None,
    limit: int | None = None,
    batch: UUID | None = None,
) -> list[dict[str, Any]]:
    """Tasks in the order in which they were added; of an imported session, those that it had."""
    conditions = (" AND t.id > %(after)s" if after else "") + (" AND t.batch = %(batch)s" if batch else "")
    given = {"workspace_id": where[0], "session_id": where[1], "after": after, "limit": limit, "batch": batch}
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(f"{SHOWN}{conditions} ORDER BY t.id LIMIT %(limit)s".encode(), given)
        found = await cursor.fetchall()
    return found if found or batch else await imports.tasks(conn, where, after=after, limit=limit)


async def counts(conn: Connection, where: Where) -> dict[str, int]:
    """How many tasks stand how."""
    rows = await conn.execute(COUNTS, {"workspace_id": where[0], "session_id": where[1]})
    return dict(await rows.fetchall()) or await imports.counts(conn, where)


async def asking(conn: Connection, where: Where) -> dict[UUID, UUID | None]:
    """Those that wait for an answer, and the question of each; none where it was answered just now."""
    rows = await conn.execute(ASKING, {"workspace_id": where[0], "session_id": where[1]})
    return dict(await rows.fetchall())
