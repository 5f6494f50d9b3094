"""The page of what waits for an answer, and the form that answers it, wherever it is shown."""

from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from rota.db import approvals as rows
from rota.db.pool import Connection
from rota.errors import NotFound
from rota.http.api.approvals import Standing, tell
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Shared
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import Next, PageRoute, done, fingerprint, is_live, page, part
from rota.http.ui.words import APPROVALS
from rota.model.caller import Caller
from rota.model.ids import ApprovalId, as_uuid
from rota.sessions import approvals

LISTED = 50
NONE = "There is no such approval."

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/approvals", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    status: Standing = "pending",
    cursor: Cursor = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Questions of the whole workspace, newest first; those that wait unless others are asked for."""
    look = partial(_list, status=status, before=read_cursor(cursor))
    view = View("approvals/list.html", "approvals/_results.html", "approvals/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(conn: Connection, caller: Caller, *, status: Standing, before: UUID | None) -> dict[str, Any]:
    found = await rows.page(conn, caller.workspace_id, before=before, limit=LISTED + 1, status=status, brief=True)
    older, found = len(found) > LISTED, found[:LISTED]
    return {
        "approvals": [each | {"mine": approvals.may_answer(caller, each["owners"])} for each in found],
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "chosen": status,
        "filters": list(APPROVALS.items()),
        "seen": fingerprint(found, older),
    }


@router.get("/{approval}")
async def question_page(unit: InUnit, request: Request, approval: str) -> Response:
    """One question with all that it is about, however long."""
    found = await rows.show(unit.conn, unit.caller.workspace_id, _id(approval))
    if not found:
        raise NotFound(NONE)
    found["mine"] = approvals.may_answer(unit.caller, found["owners"])
    if is_live(request):  # it was answered
        return part(unit, request, "approvals/_asked.html", approval=found, whole=True)
    return await page(unit, request, "approvals/one.html", approval=found, whole=True)


@router.post("/{approval}")
async def answer(
    unit: InUnit,
    request: Request,
    approval: str,
    given: Annotated[str, Form(alias="answer", max_length=200)],
    text: Annotated[str, Form(max_length=10_000)] = "",
    to: Next = "",
) -> Response:
    answered = await approvals.answer(unit.conn, unit.caller, _id(approval), given, text=text.strip() or None)
    tell(unit, answered)
    session = f"/w/{unit.caller.workspace_slug}/sessions/{answered.session_id}"
    return done(request, to or session, "Your answer is on its way to the agent.")


def _id(ref: str) -> ApprovalId:
    found: UUID | None = as_uuid(ref)
    if found is None:
        raise NotFound(NONE)
    return ApprovalId(found)
