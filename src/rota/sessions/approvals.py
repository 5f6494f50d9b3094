"""Questions to people: asked by an agent at work, answered by whoever may, and waited for."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rota.db import approvals, events, isolation
from rota.db.approvals import Approval, Asking
from rota.db.events import NewEvent
from rota.db.listener import ANSWERS, Listener
from rota.db.pool import PASSING, Connection, Database
from rota.errors import Conflict, Invalid, Lost, NotFound
from rota.model.approval import PRE_APPROVAL, ApprovalStatus, Option, Question, checked, chosen, pre_approved
from rota.model.caller import Caller, Level
from rota.model.duration import parse_duration
from rota.model.ids import ApprovalId, RunId, UserId, WorkspaceId, new_id
from rota.notify import telling
from rota.runs import parking

POLL_SECONDS = 1.0
EXPIRES = "1d"


async def ask(
    conn: Connection,
    workspace_id: WorkspaceId,
    run_id: RunId,
    attempt: int,
    question: Question,
    *,
    keeps_process: bool,
    approval_id: ApprovalId | None = None,
) -> Approval:
    """Ask for an attempt at work. What was asked before, or is approved beforehand, comes back with its answer.

    Wake the session's channel after the commit. `Lost` once the attempt belongs to somebody else. Who cannot tell
    whether a commit went through asks again with the same `approval_id`.
    """
    approval_id = approval_id or ApprovalId(new_id())
    checked(question)
    asking = await approvals.asking(conn, workspace_id, run_id, attempt)
    if asking is None:
        raise Lost("This attempt belongs to another worker now.")
    approval = await approvals.asked_before(conn, workspace_id, run_id, attempt, question, approval_id=approval_id)
    if approval is None:
        approval = await _write(conn, workspace_id, approval_id, run_id, attempt, question, asking)
    elif _differs(approval, question):
        raise Invalid(
            f"This run has asked another question with the key {question.key!r}; give this one a key of its own.",
            code="approval_key_reused",
            field="key",
        )
    elif approval.status == ApprovalStatus.PENDING and approval.attempt != attempt:
        await approvals.ask_again(conn, workspace_id, approval.id, attempt)
    if approval.status == ApprovalStatus.PENDING and keeps_process:
        await parking.wait(conn, workspace_id, run_id, attempt)
    return approval


async def _write(
    conn: Connection,
    workspace_id: WorkspaceId,
    approval_id: ApprovalId,
    run_id: RunId,
    attempt: int,
    question: Question,
    asking: Asking,
) -> Approval:
    option = pre_approved(asking.pre_approvals or (), question)
    approval = await approvals.insert(
        conn,
        workspace_id,
        approval_id,
        run_id,
        asking.session_id,
        attempt,
        question,
        expires=parse_duration(asking.expires or EXPIRES),
        answered=option,
    )
    await events.append(conn, [_asked(workspace_id, approval, option)])
    if option is None:
        await telling.of_approval(conn, workspace_id, approval.id)
    return approval


def _differs(approval: Approval, question: Question) -> bool:
    """An answer holds for what its person was shown, and for nothing else."""
    return (approval.question, approval.detail, approval.choices) != (
        question.text,
        question.detail,
        list(question.options),
    )


def _asked(workspace_id: WorkspaceId, approval: Approval, option: Option | None) -> NewEvent:
    data: dict[str, Any] = {
        "approval_id": approval.id, "status": approval.status, "question": approval.question, "detail": approval.detail,
        "options": approval.options, "key": approval.key, "expires_at": None if option else approval.expires_at,
        "option_id": approval.option_id, "by": PRE_APPROVAL if option else None,
    }  # fmt: skip
    told = {name: value for name, value in data.items() if value is not None}
    return NewEvent(workspace_id, approval.session_id, "approval", told, approval.run_id, approval.attempt)


async def answer(
    conn: Connection, caller: Caller, approval_id: ApprovalId, given: str, *, text: str | None = None
) -> Approval:
    """Answer for good, by an option's id or by “approve” or “refuse”; the run goes on once nothing else is asked.

    After the commit wake the session's channel, `ANSWERS` with the id, and `RUNS` with the workspace.
    """
    found = await approvals.show(conn, caller.workspace_id, approval_id)
    if not found:
        raise NotFound("There is no such approval.")
    _must_be_allowed(caller, found)
    option = chosen([Option(**each) for each in found["options"]], given)
    if option is None:
        ids = ", ".join(f"“{each['id']}”" for each in found["options"])
        raise Invalid(f"There is no such option; answer with one of {ids}.", code="unknown_option", field="answer")
    await approvals.lock_run(conn, caller.workspace_id, approval_id)
    approval = await approvals.answer(
        conn, caller.workspace_id, approval_id, option, text=text, answered_by=caller.user_id
    )
    if approval is None:
        raise await _refusal(conn, caller, approval_id)
    await events.append(conn, [_answered_event(caller, approval, option)])
    await telling.settled(conn, caller.workspace_id, [approval.id])
    await parking.answered(conn, caller.workspace_id, approval.run_id)
    return approval


def may_answer(caller: Caller, owners: Sequence[UserId]) -> bool:
    """Members answer for their own automations and sessions, admins for everybody's; an agent never."""
    return caller.level == Level.ADMIN or (caller.level == Level.MEMBER and caller.user_id in owners)


def _must_be_allowed(caller: Caller, found: Mapping[str, Any]) -> None:
    owners = found["owners"]
    caller.must_own(caller.user_id if may_answer(caller, owners) else owners[0], "answer this approval")


async def _refusal(conn: Connection, caller: Caller, approval_id: ApprovalId) -> Conflict:
    found = await approvals.show(conn, caller.workspace_id, approval_id)
    assert found
    match found["status"]:
        case "expired":
            return Conflict("Nobody answered in time; it has expired.", code="approval_expired")
        case "cancelled":
            return Conflict("Its run has ended; there is nothing left to answer.", code="approval_cancelled")
        case status:
            by = found["answered_by_name"] or "a pre-approval"
            return Conflict(
                f"It has been {status} already, by {by}.",
                code="already_answered",
                approval_status=status,
                answered_by=found["answered_by"] and str(found["answered_by"]),
                answered_by_name=found["answered_by_name"],
            )


def _answered_event(caller: Caller, approval: Approval, option: Option) -> NewEvent:
    data: dict[str, Any] = {
        "approval_id": approval.id, "status": approval.status, "option_id": option.id, "label": option.label,
        "text": approval.answer_text, "answered_by": caller.user_id, "by": caller.name,
    }  # fmt: skip
    told = {name: value for name, value in data.items() if value is not None}
    return NewEvent(caller.workspace_id, approval.session_id, "approval", told, approval.run_id, approval.attempt)


async def wait_for_answer(
    db: Database, listener: Listener, workspace_id: WorkspaceId, approval_id: ApprovalId, *, within: float | None = None
) -> Approval | None:
    """The approval once it is no longer pending; None after `within` seconds, or if there is none."""
    answered = asyncio.Event()

    def hear(told: str) -> None:
        if told in {"", str(approval_id)}:
            answered.set()

    async with listener.subscribed(ANSWERS, hear):
        try:
            async with asyncio.timeout(within):
                return await _answered(db, workspace_id, approval_id, answered)
        except TimeoutError:
            return None


async def _answered(
    db: Database, workspace_id: WorkspaceId, approval_id: ApprovalId, heard: asyncio.Event
) -> Approval | None:
    while True:
        heard.clear()
        try:
            async with isolation.in_workspace(db, workspace_id) as conn:
                found = await approvals.find(conn, workspace_id, approval_id)
        except PASSING:
            pass  # the database comes back; until then nobody can answer
        else:
            if found is None or found.status != ApprovalStatus.PENDING:
                return found
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await heard.wait()
        except TimeoutError:
            continue
