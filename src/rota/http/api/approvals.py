"""Approvals: what agents ask, and the answers that they wait for."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query

from rota.db import approvals as rows
from rota.db.approvals import Approval
from rota.db.listener import ANSWERS, RUNS, session_channel
from rota.errors import NotFound
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit
from rota.http.context import InUnit, Unit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.approvals import AnswerIn, ApprovalOut
from rota.http.shapes.pages import Page, page_of, read_cursor
from rota.model.ids import ApprovalId, SessionId
from rota.sessions import approvals

router = APIRouter(prefix=API + "/approvals", tags=["approvals"], route_class=Repeatable)

Standing = Literal["pending", "approved", "refused", "expired", "cancelled"]


@router.get("")
async def list_approvals(
    unit: InUnit,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    status: Standing | None = None,
    mine: Annotated[bool, Query(description="Only those on your own automations and sessions")] = False,
    session: Annotated[UUID | None, Query(description="Id")] = None,
) -> Page[ApprovalOut]:
    """Questions of agents, newest first."""
    found = await rows.page(
        unit.conn,
        unit.caller.workspace_id,
        before=read_cursor(cursor),
        limit=limit + 1,
        status=status,
        session_id=SessionId(session) if session else None,
        owner_id=unit.caller.user_id if mine else None,
    )
    return page_of(found, limit, ApprovalOut)


@router.get("/{approval_id}")
async def get_approval(unit: InUnit, approval_id: UUID) -> ApprovalOut:
    """One question, and its answer if it has one."""
    found = await rows.show(unit.conn, unit.caller.workspace_id, ApprovalId(approval_id))
    if not found:
        raise NotFound("There is no such approval.")
    return ApprovalOut.model_validate(found)


@router.post("/{approval_id}")
async def answer_approval(unit: InUnit, approval_id: UUID, given: AnswerIn) -> ApprovalOut:
    """Answer a question for good; its run goes on. Answers 409 with who was first once it is answered."""
    answered = await approvals.answer(unit.conn, unit.caller, ApprovalId(approval_id), given.answer, text=given.text)
    tell(unit, answered)
    return await get_approval(unit, approval_id)


def tell(unit: Unit, answered: Approval) -> None:
    """Wake who waits for the answer, who watches the session, and who may take up the run."""
    unit.wake(ANSWERS, answered.id)
    unit.wake(session_channel(answered.session_id))
    unit.wake(RUNS, unit.caller.workspace_id)
