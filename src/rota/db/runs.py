"""Runs as they are read: the ledger."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import dict_row

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.ids import AutomationId, RunId, UserId, WorkspaceId, id_at
from rota.model.run import Status

COLUMNS = """
r.id, r.automation_id, r.trigger_id, r.session_id, r.agent_id, r.grant_id, r.revision, r.status, r.source, r.slot,
CASE WHEN r.missed_count > 0 THEN jsonb_build_object('count', r.missed_count, 'since', r.missed_since) END AS missed,
r.payload, r.prompt, r.input, r.retry_of, r.created_by, r.ready_at, r.queued_at, r.started_at, r.finished_at, r.attempt, r.tries, r.rescues,
r.max_attempts, r.executor, r.pool, r.timeout, r.worker_id, r.skip_reason, r.error_class, r.error_detail, r.summary, r.trace_id, r.cancel_requested_at,
coalesce(r.refused_tasks, '{}') AS refused_tasks,
(SELECT coalesce(jsonb_object_agg(unit, amount), '{}')
   FROM (SELECT unit, sum(amount) AS amount FROM usage u WHERE u.workspace_id = r.workspace_id AND u.run_id = r.id
         GROUP BY unit) spent) AS usage
"""

FIND = f"SELECT {COLUMNS} FROM runs r WHERE r.workspace_id = %(workspace_id)s AND r.id = %(id)s"  # noqa: S608

LIST = f"""
SELECT {COLUMNS} FROM runs r
 WHERE r.workspace_id = %(workspace_id)s AND r.id < %(before)s
"""  # noqa: S608

# Where each that has not ended is looked for.
LIST_LIVE: dict[str | None, str] = {
    status: f"""
SELECT {COLUMNS} FROM {among} l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
 WHERE l.workspace_id = %(workspace_id)s AND l.id < %(before)s
"""  # noqa: S608
    for status, among in (
        (Status.QUEUED, "live_runs"), (Status.RUNNING, "taken_runs"), (Status.AWAITING_APPROVAL, "taken_runs"),
    )
}  # fmt: skip

# What else is true of each rare ending, as its index says it.
RARE: dict[str | None, str] = {
    Status.FAILED: " AND r.error_class NOT IN ('cancelled_by_user', 'replaced')",
    Status.CANCELLED: " AND r.error_class IN ('cancelled_by_user', 'replaced')",
    Status.SKIPPED: " AND r.skip_reason IS NOT NULL",
}

BESIDE = """
-- The sessions of the runs of an automation right before and after one of them.
SELECT (SELECT n.session_id
          FROM (SELECT r.id, r.session_id FROM runs r
                 WHERE r.workspace_id = %(workspace_id)s AND r.automation_id = %(automation_id)s AND r.id < %(id)s
              ORDER BY r.id DESC LIMIT %(limit)s) n
         WHERE n.session_id <> %(session_id)s ORDER BY n.id DESC LIMIT 1),
       (SELECT n.session_id
          FROM (SELECT r.id, r.session_id FROM runs r
                 WHERE r.workspace_id = %(workspace_id)s AND r.automation_id = %(automation_id)s AND r.id > %(id)s
              ORDER BY r.id LIMIT %(limit)s) n
         WHERE n.session_id <> %(session_id)s ORDER BY n.id LIMIT 1)
"""

OF_SESSION = """
-- What all runs of a session took together: from the first start to the last end, and every unit of usage.
WITH newest AS MATERIALIZED (
    SELECT r.workspace_id, r.id, r.started_at, r.finished_at FROM runs r
     WHERE r.workspace_id = %(workspace_id)s AND r.session_id = %(session_id)s ORDER BY r.id DESC LIMIT %(limit)s)
SELECT count(*) AS runs, min(started_at) AS started_at,
       CASE WHEN bool_and(finished_at IS NOT NULL) THEN max(finished_at) END AS finished_at,
       (SELECT coalesce(jsonb_object_agg(unit, amount), '{}')
          FROM (SELECT u.unit, sum(u.amount) AS amount
                  FROM newest n JOIN usage u ON u.workspace_id = n.workspace_id AND u.run_id = n.id GROUP BY u.unit) spent) AS usage
  FROM newest
"""

BY_IDS = f"SELECT {COLUMNS} FROM runs r WHERE r.workspace_id = %(workspace_id)s AND r.id = ANY(%(ids)s)"  # noqa: S608

USUAL_DURATION = """
-- The median of its last twenty successes.
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at))
  FROM (SELECT finished_at, started_at FROM runs
         WHERE workspace_id = %(workspace_id)s AND automation_id = %(automation_id)s AND status = 'succeeded'
      ORDER BY id DESC LIMIT 20) recent
"""

BY_KEYS = """
SELECT r.trigger_id, r.idempotency_key, r.id
  FROM json_to_recordset(%(keys)s::json) AS g(workspace_id uuid, trigger_id uuid, key text)
       JOIN runs r ON r.workspace_id = g.workspace_id AND r.trigger_id = g.trigger_id AND r.idempotency_key = g.key
"""

HAS_PAYLOAD = """
SELECT r.payload IS NOT DISTINCT FROM g.payload
  FROM runs r, json_to_record(%(given)s::json) AS g(payload jsonb)
 WHERE r.workspace_id = %(workspace_id)s AND r.id = %(id)s
"""

QUEUED_OF = """
SELECT l.id FROM live_runs l JOIN runs r ON r.workspace_id = l.workspace_id AND r.id = l.id
 WHERE l.workspace_id = %(workspace_id)s AND l.automation_id = %(automation_id)s AND l.source NOT IN ('chat', 'task')
   AND r.status = 'queued'
ORDER BY l.id LIMIT 1
"""


async def find(conn: Connection, workspace_id: WorkspaceId, run_id: RunId) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(FIND, {"workspace_id": workspace_id, "id": run_id})
        return await cursor.fetchone()


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FILTERS = ("automation_id", "agent_id", "session_id", "status", "owner_id")

# Who owns the automation, or, where there is none, who started the run: the rule by which a run may be cancelled.
# As a scalar subquery it looks up the automation of each run that is read; as IN it reads all automations of the owner first.
OF_OWNER = """CASE WHEN r.automation_id IS NULL THEN r.created_by
     ELSE (SELECT a.owner_id FROM automations a WHERE a.workspace_id = %(workspace_id)s AND a.id = r.automation_id)
     END = %(owner_id)s"""

# The runs of somebody who has many automations are found soon by a walk through the ledger.
MANY_AUTOMATIONS = 100
OWNS_MANY = f"""
SELECT count(*) > {MANY_AUTOMATIONS} FROM (
    SELECT FROM automations WHERE workspace_id = %(workspace_id)s AND owner_id = %(owner_id)s LIMIT {MANY_AUTOMATIONS + 1}) owned
"""  # noqa: S608 — a constant of this module

LIST_OF_OWNER: dict[str | None, str] = {
    status: f"""
-- The newest of each automation of the owner by runs_of_automation, and the newest without one by runs_of_person: a walk
-- through the whole ledger would read everybody's until it has found enough.
WITH owned AS MATERIALIZED (
    SELECT newest.id
      FROM automations a CROSS JOIN LATERAL (
           SELECT r.id FROM runs r
            WHERE r.workspace_id = %(workspace_id)s AND r.automation_id BETWEEN a.id AND a.id AND r.id < %(before)s {such}
         ORDER BY r.automation_id DESC, r.id DESC LIMIT %(limit)s) newest
     WHERE a.workspace_id = %(workspace_id)s AND a.owner_id = %(owner_id)s
 UNION ALL
    (SELECT r.id FROM runs r
      WHERE r.workspace_id = %(workspace_id)s AND r.automation_id IS NULL AND r.created_by = %(owner_id)s AND r.id < %(before)s {such}
   ORDER BY r.id DESC LIMIT %(limit)s))
SELECT {COLUMNS} FROM runs r
 WHERE r.workspace_id = %(workspace_id)s AND r.id = ANY(ARRAY(SELECT id FROM owned ORDER BY id DESC LIMIT %(limit)s))
"""  # noqa: S608
    for status, such in ((None, ""), (Status.SUCCEEDED, "AND r.status = %(status)s"))
}

# PostgreSQL takes a workspace's few agents for equally busy, and would look for one that never ran in the whole ledger. A
# range in this order leads it to the agent's own index.
OF_AGENT, BY_AGENT = "r.agent_id BETWEEN %(agent_id)s AND %(agent_id)s", "r.agent_id DESC, r.id"


async def page(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    limit: int,
    since: UUID | None = None,
    **filters: Any,
) -> list[dict[str, Any]]:
    """Runs, newest first, from the id `since` on, by any of `FILTERS`."""
    chosen = {name: value for name, value in filters.items() if value is not None and name in FILTERS}
    status, of = chosen.get("status"), {name: f"r.{name} = %({name})s" for name in chosen}
    if "owner_id" in chosen:
        of["owner_id"] = OF_OWNER
    live = LIST_LIVE.get(status)
    listed, in_order = (live, "l.id") if live else (LIST + RARE.get(status, ""), "r.id")
    alone = chosen.keys() <= {"owner_id", "status"} and status in LIST_OF_OWNER and not since
    if "owner_id" in chosen and alone and not await _owns_many(conn, workspace_id, chosen["owner_id"]):
        listed, of = LIST_OF_OWNER[status], {}
    if "agent_id" in chosen and not live:
        of["agent_id"], in_order = OF_AGENT, BY_AGENT
    conditions = "".join(f" AND {each}" for each in of.values()) + (" AND r.id >= %(since)s" if since else "")
    async with conn.cursor(row_factory=dict_row) as cursor:
        given = {
            "workspace_id": workspace_id,
            "before": or_end(before, LARGEST_ID),
            "limit": limit,
            "since": since,
            **chosen,
        }
        await cursor.execute(f"{listed}{conditions} ORDER BY {in_order} DESC LIMIT %(limit)s".encode(), given)
        return await cursor.fetchall()


async def beside(
    conn: Connection, workspace_id: WorkspaceId, run: Mapping[str, Any], *, limit: int
) -> tuple[UUID | None, UUID | None]:
    """The sessions of the previous and the next run of the same automation, among so many each."""
    given = {name: run[name] for name in ("automation_id", "id", "session_id")}
    row = await (await conn.execute(BESIDE, {**given, "workspace_id": workspace_id, "limit": limit})).fetchone()
    assert row
    return row[0], row[1]


async def of_session(conn: Connection, workspace_id: WorkspaceId, session_id: UUID, *, limit: int) -> dict[str, Any]:
    """What the newest runs of a session took together."""
    given = {"workspace_id": workspace_id, "session_id": session_id, "limit": limit}
    [row] = await named_rows(conn, OF_SESSION, given)
    return row


async def by_ids(conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    rows = await named_rows(conn, BY_IDS, {"workspace_id": workspace_id, "ids": list(ids)})
    return {row["id"]: row for row in rows}


async def _owns_many(conn: Connection, workspace_id: WorkspaceId, owner_id: UserId) -> bool:
    row = await (await conn.execute(OWNS_MANY, {"workspace_id": workspace_id, "owner_id": owner_id})).fetchone()
    return bool(row and row[0])


async def queued_of(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> RunId | None:
    rows = await conn.execute(QUEUED_OF, {"workspace_id": workspace_id, "automation_id": automation_id})
    row = await rows.fetchone()
    return row[0] if row else None


FOREMOST_OF_SESSIONS = f"""
-- What waits is looked for among the newest runs: an automation's one session has as many as it has ever run.
-- LIMIT 1: without it a plan may join all runs. fence: OFFSET 0 keeps the choice apart from the look-up, since a search by
-- coalesce() is a filter under row-level security and reads all runs for each session.
WITH taken AS MATERIALIZED (
    SELECT t.session_id, t.id FROM taken_runs t
     WHERE t.workspace_id = %(workspace_id)s AND t.session_id = ANY(%(ids)s))
SELECT foremost.* FROM unnest(%(ids)s::uuid[]) AS s(id)
       CROSS JOIN LATERAL (
           SELECT coalesce(
                      (SELECT t.id FROM taken t WHERE t.session_id = s.id ORDER BY t.id DESC LIMIT 1),
                      (SELECT id FROM (SELECT n.id, n.status FROM runs n
                                        WHERE n.workspace_id = %(workspace_id)s AND n.session_id = s.id
                                     ORDER BY n.id DESC LIMIT 100) newest
                        WHERE status = 'queued' ORDER BY id LIMIT 1),
                      (SELECT n.id FROM runs n
                        WHERE n.workspace_id = %(workspace_id)s AND n.session_id = s.id ORDER BY n.id DESC LIMIT 1)) AS id
           OFFSET 0) chosen
       CROSS JOIN LATERAL (
           SELECT {COLUMNS} FROM runs r WHERE r.workspace_id = %(workspace_id)s AND r.id = chosen.id LIMIT 1) foremost
"""  # noqa: S608


async def foremost_of_sessions(
    conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID]
) -> dict[UUID, dict[str, Any]]:
    """The run that each session is about just now, if it has one: the newest that an agent works on or asks in, else
    the one that waits first in line, else the newest of all."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(FOREMOST_OF_SESSIONS.encode(), {"workspace_id": workspace_id, "ids": list(ids)})
        return {each["session_id"]: each for each in await cursor.fetchall()}


LATEST_OF_AGENTS = f"""
SELECT latest.* FROM unnest(%(ids)s::uuid[]) AS a(id)
       CROSS JOIN LATERAL (
           SELECT {COLUMNS} FROM runs r
            WHERE r.workspace_id = %(workspace_id)s AND r.agent_id BETWEEN a.id AND a.id
         ORDER BY {BY_AGENT} DESC LIMIT %(limit)s) latest
"""  # noqa: S608


async def latest_of_agents(
    conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID], *, limit: int = 1
) -> dict[UUID, list[dict[str, Any]]]:
    """The newest runs of each agent that has run, newest first."""
    found: dict[UUID, list[dict[str, Any]]] = {}
    async with conn.cursor(row_factory=dict_row) as cursor:
        given = {"workspace_id": workspace_id, "ids": list(ids), "limit": limit}
        await cursor.execute(LATEST_OF_AGENTS.encode(), given)
        for each in await cursor.fetchall():
            found.setdefault(each["agent_id"], []).append(each)
    return found


SUBJECTS = """
-- What each run is of: its automation, or its agent when it was run directly.
SELECT r.id, g.name AS agent_name, CASE WHEN g.deleted_at IS NULL THEN g.id END AS agent_ref, a.name AS automation_name,
       a.id AS automation_ref
  FROM runs r
       JOIN agents g ON g.workspace_id = r.workspace_id AND g.id = r.agent_id
       LEFT JOIN automations a ON a.workspace_id = r.workspace_id AND a.id = r.automation_id
 WHERE r.workspace_id = %(workspace_id)s AND r.id = ANY(%(ids)s)
"""


async def subjects(conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Names for a page of runs, by the run's id."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(SUBJECTS, {"workspace_id": workspace_id, "ids": list(ids)})
        return {row["id"]: row for row in await cursor.fetchall()}


REASONS = """
SELECT id, left(error_detail, 500) FROM runs
 WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) AND error_detail IS NOT NULL
"""


async def reasons(conn: Connection, workspace_id: WorkspaceId, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Why these failed, as their agents or executors said it: the beginning of it."""
    rows = await conn.execute(REASONS, {"workspace_id": workspace_id, "ids": list(ids)})
    return dict(await rows.fetchall())


async def by_keys(conn: Connection, keys: Iterable[tuple[UUID, UUID, str]]) -> dict[tuple[UUID, str], RunId]:
    """Runs that these triggers and idempotency keys have started before."""
    given = [{"workspace_id": w, "trigger_id": t, "key": key} for w, t, key in keys]
    rows = await conn.execute(BY_KEYS, {"keys": orjson.dumps(given).decode()})
    return {(trigger_id, key): run_id for trigger_id, key, run_id in await rows.fetchall()}


async def has_payload(conn: Connection, workspace_id: UUID, run_id: RunId, payload: Any) -> bool:
    """Whether this is what the run was given, as the table keeps it: whatever the order of its fields."""
    given = {"workspace_id": workspace_id, "id": run_id, "given": orjson.dumps({"payload": payload}).decode()}
    return await (await conn.execute(HAS_PAYLOAD, given)).fetchone() == (True,)


async def usual_duration(conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId) -> timedelta | None:
    given = {"workspace_id": workspace_id, "automation_id": automation_id}
    row = await (await conn.execute(USUAL_DURATION, given)).fetchone()
    return timedelta(seconds=row[0]) if row and row[0] is not None else None


BY_DAY = """
-- How an automation's newest runs ended, by the day of their slot in a zone. Bounded: one that fires every second has
-- millions, and the heap is read for each.
SELECT (coalesce(slot, queued_at) AT TIME ZONE %(zone)s)::date AS day, status, count(*) AS count, sum(missed_count) AS missed
  FROM (SELECT r.id, r.slot, r.queued_at, r.status, r.missed_count FROM runs r
         WHERE r.workspace_id = %(workspace_id)s AND r.automation_id = %(automation_id)s AND r.id >= %(since)s
      ORDER BY r.id DESC LIMIT %(limit)s) newest
GROUP BY 1, 2
"""

RUN_TIME_BY_DAY = """
-- Running time and number of the workspace's newest runs, by the day they were queued.
SELECT day, coalesce(sum(extract(epoch FROM took)), 0) AS seconds, count(*) AS runs FROM (
    SELECT (r.queued_at AT TIME ZONE %(zone)s)::date AS day, r.finished_at - r.started_at AS took
      FROM runs r WHERE r.workspace_id = %(workspace_id)s AND r.id >= %(since)s
  ORDER BY r.id DESC LIMIT %(limit)s) newest
GROUP BY day
"""

SPENT_BY_DAY = """
-- What an automation's newest runs took, by the day they were queued: their running time, and every unit of usage. Money
-- stands by the currency of the account that each was charged to: euros and dollars have no sum.
WITH newest AS MATERIALIZED (
    SELECT r.workspace_id, r.id, (r.queued_at AT TIME ZONE %(zone)s)::date AS day, r.finished_at - r.started_at AS took
      FROM runs r
     WHERE r.workspace_id = %(workspace_id)s AND r.automation_id = %(automation_id)s AND r.id >= %(since)s
  ORDER BY r.id DESC LIMIT %(limit)s)
SELECT day, 'run time' AS unit, sum(extract(epoch FROM took))::float8 AS amount FROM newest WHERE took IS NOT NULL GROUP BY day
UNION ALL
SELECT n.day, CASE u.unit WHEN 'money' THEN 'money ' || c.currency ELSE u.unit END, sum(u.amount)::float8
  FROM newest n
       JOIN usage u ON u.workspace_id = n.workspace_id AND u.run_id = n.id
       JOIN accounts c ON c.workspace_id = u.workspace_id AND c.id = u.account_id
GROUP BY 1, 2
"""

SLOTS_FROM = f"""
-- The rows of the ledger that were written from a moment on, oldest first, and stand for a slot.
SELECT {COLUMNS} FROM runs r
 WHERE r.workspace_id = %(workspace_id)s AND r.automation_id = %(automation_id)s AND r.id >= %(since)s AND r.slot IS NOT NULL
ORDER BY r.id LIMIT %(limit)s
"""  # noqa: S608

LAST_SLOT = f"""
-- The last slot until a moment for which each trigger has a row, and of those the latest.
SELECT last.*
  FROM triggers t CROSS JOIN LATERAL (
       SELECT {COLUMNS} FROM runs r
        WHERE r.workspace_id = %(workspace_id)s AND r.trigger_id = t.id AND r.slot < %(until)s AND r.slot IS NOT NULL
     ORDER BY r.slot DESC LIMIT 1) last
 WHERE t.workspace_id = %(workspace_id)s AND t.automation_id = %(automation_id)s
ORDER BY last.slot DESC LIMIT 1
"""  # noqa: S608

LATENESS = """
-- From slot to start, by stretches of time: of each the newest few, so that a busy day is told whole and costs no more.
SELECT span.at, late.median, late.most
  FROM unnest(%(starts)s::timestamptz[], %(since)s::uuid[], %(until)s::uuid[]) AS span(at, since, until)
       CROSS JOIN LATERAL (
           SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY took) AS median,
                  percentile_cont(0.95) WITHIN GROUP (ORDER BY took) AS most
             FROM (SELECT extract(epoch FROM r.started_at - r.slot)::float8 AS took FROM runs r
                    WHERE r.workspace_id = %(workspace_id)s AND r.id >= span.since AND r.id < span.until
                      AND r.slot IS NOT NULL AND r.started_at IS NOT NULL
                 ORDER BY r.id DESC LIMIT %(limit)s) newest) late
 WHERE late.median IS NOT NULL
ORDER BY span.at
"""

WAITING = """
SELECT count(*) FROM (
    SELECT FROM ready_runs WHERE workspace_id = %(workspace_id)s LIMIT %(limit)s) waiting
"""


async def by_day(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, *, since: UUID, zone: str, limit: int
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "automation_id": automation_id, "since": since, "zone": zone, "limit": limit}
    return await named_rows(conn, BY_DAY, given)


async def spent_by_day(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, *, since: UUID, zone: str, limit: int
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "automation_id": automation_id, "since": since, "zone": zone, "limit": limit}
    return await named_rows(conn, SPENT_BY_DAY, given)


async def run_time_by_day(
    conn: Connection, workspace_id: WorkspaceId, *, since: UUID, zone: str, limit: int
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "since": since, "zone": zone, "limit": limit}
    return await named_rows(conn, RUN_TIME_BY_DAY, given)


async def slots_from(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, *, since: UUID, limit: int
) -> list[dict[str, Any]]:
    given = {"workspace_id": workspace_id, "automation_id": automation_id, "since": since, "limit": limit}
    return await named_rows(conn, SLOTS_FROM, given)


async def last_slot(
    conn: Connection, workspace_id: WorkspaceId, automation_id: AutomationId, *, until: datetime
) -> dict[str, Any] | None:
    """The row of the latest slot before this moment, whatever became of it."""
    given = {"workspace_id": workspace_id, "automation_id": automation_id, "until": until}
    return next(iter(await named_rows(conn, LAST_SLOT, given)), None)


async def lateness(
    conn: Connection, workspace_id: WorkspaceId, *, start: datetime, end: datetime, bucket: timedelta, limit: int
) -> list[dict[str, Any]]:
    """By stretches of time in which runs were written: the median, and what 95 of 100 are within."""
    first = start - (start - EPOCH) % bucket  # the same stretches whenever somebody looks
    starts = [first + bucket * number for number in range(-((first - end) // bucket))]
    given = {
        "workspace_id": workspace_id, "starts": starts, "limit": limit,
        "since": [id_at(each) for each in starts], "until": [id_at(each + bucket) for each in starts],
    }  # fmt: skip
    return await named_rows(conn, LATENESS, given)


async def waiting(conn: Connection, workspace_id: WorkspaceId, *, limit: int) -> int:
    """How many runs wait for a place, up to `limit`."""
    [row] = await named_rows(conn, WAITING, {"workspace_id": workspace_id, "limit": limit})
    return int(row["count"])
