"""Approvals: what agents asked, and what people answered. A run is always locked before its approvals."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import args_row, class_row, dict_row

from rota.db.paging import LARGEST_ID, or_end
from rota.db.pool import Connection
from rota.db.rows import named_rows
from rota.model.approval import Answer, ApprovalStatus, Option, Question
from rota.model.ids import ApprovalId, RunId, SessionId, UserId, WorkspaceId

COLUMNS = """
id, run_id, session_id, attempt, key, question, detail, options, status, option_id, answer_text, answered_by, created_at,
expires_at, answered_at
"""

ASKING = """
-- The run of the attempt that asks, held against whoever would answer or take it, with what its revision says of approvals.
-- fence: a join on coalesce() is a filter under row-level security, and reads all revisions.
WITH held AS MATERIALIZED (
    SELECT r.workspace_id, r.session_id, r.revision, coalesce(r.automation_id, r.agent_id) AS subject_id
      FROM runs r
     WHERE r.workspace_id = %(workspace_id)s AND r.id = %(run_id)s AND r.attempt = %(attempt)s
       AND r.status IN ('running', 'awaiting_approval') AND r.lease_until > clock_timestamp()
       FOR NO KEY UPDATE)
SELECT held.session_id, v.spec ->> 'approval_expires', v.spec -> 'pre_approvals'
  FROM held LEFT JOIN revisions v ON v.workspace_id = held.workspace_id AND v.subject_id = held.subject_id
                                 AND v.revision = held.revision
"""

ASKED_BEFORE = f"""
-- By its id when a commit was in doubt, whatever became of it; by its key; without one only what an earlier attempt asked in
-- the same words and nobody has answered yet.
SELECT {COLUMNS} FROM approvals
 WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s
   AND (id = %(id)s OR status IN ('pending', 'approved', 'refused') AND (key = %(key)s OR (%(key)s::text IS NULL AND key IS NULL AND status = 'pending' AND attempt < %(attempt)s
        AND question = %(question)s AND detail IS NOT DISTINCT FROM %(detail)s::jsonb AND options = %(options)s::jsonb)))
ORDER BY id = %(id)s DESC, id DESC LIMIT 1
"""  # noqa: S608

INSERT = f"""
INSERT INTO approvals (workspace_id, id, run_id, session_id, attempt, key, question, detail, options, status, option_id,
                       expires_at, answered_at)
VALUES (%(workspace_id)s, %(id)s, %(run_id)s, %(session_id)s, %(attempt)s, %(key)s, %(question)s, %(detail)s::jsonb,
        %(options)s::jsonb, %(status)s, %(option_id)s, clock_timestamp() + %(expires)s,
        CASE WHEN %(status)s <> 'pending' THEN clock_timestamp() END)
RETURNING {COLUMNS}
"""  # noqa: S608

ASK_AGAIN = """
UPDATE approvals SET attempt = %(attempt)s, asked_at = clock_timestamp()
 WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'pending'
"""

FIND = f"SELECT {COLUMNS} FROM approvals WHERE workspace_id = %(workspace_id)s AND id = %(id)s"  # noqa: S608

SHOWN = """
-- As people see them: what nobody can answer any more is not pending, whether or not a sweep has been there.
SELECT a.id, a.run_id, a.session_id, r.automation_id, r.agent_id, a.attempt, a.key, a.question, a.detail,
       a.detail IS NOT NULL AS has_detail, a.options,
       CASE WHEN a.status <> 'pending' THEN a.status WHEN r.finished_at IS NOT NULL THEN 'cancelled'
            WHEN a.expires_at <= now() THEN 'expired' ELSE 'pending' END AS status,
       a.option_id, a.answer_text AS text, a.answered_by, u.name AS answered_by_name, a.created_at, a.expires_at,
       a.answered_at, r.status AS run_status, m.name AS automation_name, g.name AS agent_name,
       array_remove(ARRAY[s.owner_id, m.owner_id], NULL) AS owners
  FROM approvals a
       JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
       JOIN sessions s ON s.workspace_id = a.workspace_id AND s.id = a.session_id
       JOIN agents g ON g.workspace_id = a.workspace_id AND g.id = r.agent_id
       LEFT JOIN automations m ON m.workspace_id = a.workspace_id AND m.id = r.automation_id
       LEFT JOIN users u ON u.id = a.answered_by
 WHERE a.workspace_id = %(workspace_id)s
"""

# For pages that look again and again: a long detail stays where it is. Its packed size is known without reading it.
BRIEF = SHOWN.replace(
    "a.detail,",
    "CASE WHEN pg_column_size(a.detail) > 4096 THEN NULL WHEN length(a.detail::text) <= 4096 THEN a.detail END AS detail,",
)

SHOW = f"SELECT * FROM ({SHOWN} AND a.id = %(id)s) shown"  # noqa: S608

PAGE = "AND a.id < %(before)s {chosen}"

# Only what was chosen is in the query, so that each filter can have its index.
CHOSEN = {
    "session_id": " AND a.session_id = %(session_id)s",
    "owner_id": " AND %(owner_id)s IN (s.owner_id, m.owner_id)",
    "others_than": " AND (%(others_than)s IN (s.owner_id, m.owner_id)) IS NOT TRUE",
}


def _by_status(shown: str) -> dict[str | None, str]:
    """Those that are stored so, and those that nobody has swept yet, which are few; both by the index
    approvals_by_status. The status stands in the query itself: for one that any plan must serve, PostgreSQL would walk
    through all there ever were. None: every one."""
    unswept = f"""
    (SELECT * FROM ({shown} {PAGE} AND a.status = 'pending') waits WHERE status = %(status)s ORDER BY id DESC LIMIT %(limit)s)
"""  # noqa: S608
    each: dict[str | None, str] = {
        status.value: unswept
        if status == ApprovalStatus.PENDING
        else f"""
SELECT * FROM (
    ({shown} {PAGE} AND a.status = '{status.value}' ORDER BY a.id DESC LIMIT %(limit)s) UNION ALL {unswept}) shown
ORDER BY id DESC LIMIT %(limit)s
"""  # noqa: S608
        for status in ApprovalStatus
    }
    return {None: f"{shown} {PAGE} ORDER BY a.id DESC LIMIT %(limit)s", **each}


WHOLE, BRIEFLY = _by_status(SHOWN), _by_status(BRIEF)

LOCK_RUN = """
SELECT r.session_id FROM runs r JOIN approvals a ON a.workspace_id = r.workspace_id AND a.run_id = r.id
 WHERE a.workspace_id = %(workspace_id)s AND a.id = %(id)s
   FOR NO KEY UPDATE OF r
"""

ANSWER = f"""
-- The first answer holds: of two people at the same moment, the other finds it no longer pending.
   UPDATE approvals a
      SET status = %(status)s, option_id = %(option_id)s, answer_text = %(text)s, answered_by = %(answered_by)s,
          answered_at = clock_timestamp()
    WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND status = 'pending' AND expires_at > clock_timestamp()
      AND EXISTS (SELECT FROM runs r WHERE r.workspace_id = a.workspace_id AND r.id = a.run_id AND r.finished_at IS NULL)
RETURNING {COLUMNS}
"""  # noqa: S608

EXPIRE = f"""
-- Of runs that wait in vain and have just ended, or that have not asked again since they lost their worker. The run is held,
-- so that it cannot begin to wait for an answer that never comes.
WITH due AS MATERIALIZED (
    SELECT a.workspace_id, a.id FROM approvals a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
     WHERE a.status = 'pending' AND a.expires_at <= clock_timestamp() AND r.status <> 'awaiting_approval'
  ORDER BY r.workspace_id, r.id LIMIT %(limit)s FOR UPDATE OF r SKIP LOCKED)
   UPDATE approvals a SET status = 'expired', answered_at = clock_timestamp()
     FROM due WHERE a.workspace_id = due.workspace_id AND a.id = due.id AND a.status = 'pending'
RETURNING a.workspace_id, {", ".join(f"a.{each.strip()}" for each in COLUMNS.split(","))}
"""  # noqa: S608

WITHDRAW = f"""
-- Questions of runs that have ended: nobody waits for the answer.
   UPDATE approvals a SET status = 'cancelled', answered_at = clock_timestamp()
    WHERE status = 'pending' AND ctid = ANY(ARRAY(
              SELECT a.ctid FROM approvals a JOIN runs r ON r.workspace_id = a.workspace_id AND r.id = a.run_id
               WHERE a.status = 'pending' AND r.finished_at IS NOT NULL LIMIT %(limit)s FOR UPDATE OF a SKIP LOCKED))
RETURNING a.workspace_id, {COLUMNS}
"""  # noqa: S608

WAITED = """
-- How long this attempt has waited until now; questions that overlap count once.
SELECT coalesce(sum(upper(wait) - lower(wait)), '0')
  FROM (SELECT unnest(range_agg(tstzrange(asked_at, greatest(asked_at, coalesce(answered_at, clock_timestamp()))))) AS wait
          FROM approvals
         WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s AND attempt = %(attempt)s) waits
"""

SET_RAN = """
UPDATE approvals a SET ran = g.ran
  FROM json_to_recordset(%(parked)s::json) AS g(workspace_id uuid, id uuid, ran interval)
 WHERE a.workspace_id = g.workspace_id AND a.id = g.id
"""

RESUMED_WITH = """
-- The last answer to this run after its checkpoint: an agent that has stored one since has taken the answer in.
SELECT id, option_id, status = 'approved', answer_text, answered_by FROM approvals
 WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s AND status IN ('approved', 'refused')
   AND answered_at > coalesce(%(since)s::timestamptz, '-infinity')
ORDER BY answered_at DESC LIMIT 1
"""

RAN_BEFORE = """
-- An attempt that follows a parked one has what that left of its time; a new try begins afresh.
SELECT max(ran) FROM approvals WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s AND attempt = %(attempt)s - 1
"""


@dataclass(frozen=True, slots=True)
class Approval:
    id: ApprovalId
    run_id: RunId
    session_id: SessionId
    attempt: int
    key: str | None
    question: str
    detail: dict[str, Any] | None
    options: list[dict[str, Any]]
    status: str
    option_id: str | None
    answer_text: str | None
    answered_by: UserId | None
    created_at: datetime
    expires_at: datetime
    answered_at: datetime | None

    @property
    def answer(self) -> Answer | None:
        if not self.option_id:
            return None
        approved = self.status == ApprovalStatus.APPROVED
        return Answer(self.id, self.option_id, approved, self.answer_text, self.answered_by)

    @property
    def choices(self) -> list[Option]:
        return [Option(**each) for each in self.options]


@dataclass(frozen=True, slots=True)
class Asking:
    """The run that asks, and what its automation says of approvals."""

    session_id: SessionId
    expires: str | None
    pre_approvals: Sequence[str] | None


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _given(question: Question) -> dict[str, Any]:
    return {
        "key": question.key, "question": question.text, "detail": _json(question.detail),
        "options": _json(list(question.options)),
    }  # fmt: skip


async def asking(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> Asking | None:
    """Hold the run for this attempt; None if it belongs to somebody else."""
    async with conn.cursor(row_factory=args_row(Asking)) as cursor:
        await cursor.execute(ASKING, {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt})
        return await cursor.fetchone()


async def asked_before(
    conn: Connection,
    workspace_id: WorkspaceId,
    run_id: RunId,
    attempt: int,
    question: Question,
    *,
    approval_id: ApprovalId,
) -> Approval | None:
    given = {
        "workspace_id": workspace_id, "id": approval_id, "run_id": run_id, "attempt": attempt, **_given(question),
    }  # fmt: skip
    async with conn.cursor(row_factory=class_row(Approval)) as cursor:
        await cursor.execute(ASKED_BEFORE.encode(), given)
        return await cursor.fetchone()


async def insert(
    conn: Connection,
    workspace_id: WorkspaceId,
    approval_id: ApprovalId,
    run_id: RunId,
    session_id: SessionId,
    attempt: int,
    question: Question,
    *,
    expires: timedelta,
    answered: Option | None,
) -> Approval:
    given = {
        "workspace_id": workspace_id, "id": approval_id, "run_id": run_id, "session_id": session_id, "attempt": attempt,
        "status": ApprovalStatus.APPROVED if answered else ApprovalStatus.PENDING,
        "option_id": answered.id if answered else None, "expires": expires, **_given(question),
    }  # fmt: skip
    async with conn.cursor(row_factory=class_row(Approval)) as cursor:
        await cursor.execute(INSERT.encode(), given)
        written = await cursor.fetchone()
    assert written
    return written


async def ask_again(conn: Connection, workspace_id: WorkspaceId, approval_id: ApprovalId, attempt: int) -> None:
    """A later attempt waits for the answer now."""
    await conn.execute(ASK_AGAIN, {"workspace_id": workspace_id, "id": approval_id, "attempt": attempt})


async def find(conn: Connection, workspace_id: WorkspaceId, approval_id: ApprovalId) -> Approval | None:
    async with conn.cursor(row_factory=class_row(Approval)) as cursor:
        await cursor.execute(FIND.encode(), {"workspace_id": workspace_id, "id": approval_id})
        return await cursor.fetchone()


async def show(conn: Connection, workspace_id: WorkspaceId, approval_id: ApprovalId) -> dict[str, Any] | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(SHOW.encode(), {"workspace_id": workspace_id, "id": approval_id})
        return await cursor.fetchone()


async def page(
    conn: Connection,
    workspace_id: WorkspaceId,
    *,
    before: UUID | None,
    limit: int,
    status: str | None = None,
    session_id: SessionId | None = None,
    owner_id: UserId | None = None,
    others_than: UserId | None = None,
    brief: bool = False,
) -> list[dict[str, Any]]:
    """Approvals, newest first; `owner_id` leaves those on that person's automations and sessions, `others_than` those
    on nobody's or another's. `brief` as pages list them: of a long detail only that there is one (`has_detail`)."""
    given: dict[str, Any] = {"session_id": session_id, "owner_id": owner_id, "others_than": others_than}
    chosen = "".join(CHOSEN[name] for name, value in given.items() if value)
    query = (BRIEFLY if brief else WHOLE)[status].replace("{chosen}", chosen)
    given |= {"workspace_id": workspace_id, "before": or_end(before, LARGEST_ID), "limit": limit, "status": status}
    return await named_rows(conn, query, given)


async def lock_run(conn: Connection, workspace_id: WorkspaceId, approval_id: ApprovalId) -> None:
    """Hold the run that an approval belongs to, as everybody does before its approvals."""
    await conn.execute(LOCK_RUN, {"workspace_id": workspace_id, "id": approval_id})


async def answer(
    conn: Connection,
    workspace_id: WorkspaceId,
    approval_id: ApprovalId,
    option: Option,
    *,
    text: str | None,
    answered_by: UserId,
) -> Approval | None:
    """None: it is no longer pending, its time is over, or its run has ended."""
    given = {
        "workspace_id": workspace_id, "id": approval_id, "option_id": option.id, "text": text, "answered_by": answered_by,
        "status": ApprovalStatus.APPROVED if option.approves else ApprovalStatus.REFUSED,
    }  # fmt: skip
    async with conn.cursor(row_factory=class_row(Approval)) as cursor:
        await cursor.execute(ANSWER.encode(), given)
        return await cursor.fetchone()


async def expire(conn: Connection, limit: int) -> list[tuple[WorkspaceId, Approval]]:
    """Questions whose time is over; their runs have been ended before, or do not wait for them."""
    return await _swept(conn, EXPIRE, limit)


async def withdraw(conn: Connection, limit: int) -> list[tuple[WorkspaceId, Approval]]:
    """Questions of runs that have ended."""
    return await _swept(conn, WITHDRAW, limit)


async def _swept(conn: Connection, query: str, limit: int) -> list[tuple[WorkspaceId, Approval]]:
    rows = await conn.execute(query.encode(), {"limit": limit})
    return [(row[0], Approval(*row[1:])) for row in await rows.fetchall()]


async def waited(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> timedelta:
    """How long the attempt has waited for answers."""
    given = {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt}
    row = await (await conn.execute(WAITED, given)).fetchone()
    assert row
    waited: timedelta = row[0]
    return waited


async def set_ran(conn: Connection, parked: Sequence[tuple[WorkspaceId, ApprovalId, timedelta]]) -> None:
    """Remember how long each parked run has run, so that going on does not begin its time afresh."""
    given = [{"workspace_id": w, "id": a, "ran": f"{ran.total_seconds()} seconds"} for w, a, ran in parked]
    await conn.execute(SET_RAN, {"parked": orjson.dumps(given).decode()})


async def resumed_with(
    conn: Connection, workspace_id: WorkspaceId, run_id: RunId, *, since: datetime | None
) -> Answer | None:
    async with conn.cursor(row_factory=args_row(Answer)) as cursor:
        await cursor.execute(RESUMED_WITH, {"workspace_id": workspace_id, "run_id": run_id, "since": since})
        return await cursor.fetchone()


async def ran_before(conn: Connection, workspace_id: WorkspaceId, run_id: RunId, attempt: int) -> timedelta:
    given = {"workspace_id": workspace_id, "run_id": run_id, "attempt": attempt}
    row = await (await conn.execute(RAN_BEFORE, given)).fetchone()
    return row[0] if row and row[0] is not None else timedelta()
