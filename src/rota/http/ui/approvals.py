"""The page of what waits for an answer, and the form that answers it, wherever it is shown."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from rota.db import approvals as rows
from rota.db.pool import Connection
from rota.errors import NotFound
from rota.http.api.approvals import tell
from rota.http.api.paging import Cursor
from rota.http.context import InUnit, Shared
from rota.http.shapes.pages import cursor_of, read_cursor
from rota.http.ui import live as stream
from rota.http.ui.live import LastEventId, Live, View
from rota.http.ui.rendering import Next, PageRoute, choose, done, fingerprint, is_live, page, part
from rota.http.ui.words import APPROVALS
from rota.model.caller import Caller, Level
from rota.model.ids import ApprovalId, as_uuid
from rota.sessions import approvals

LISTED = 50
OTHERS = "others"
FOR_A_MEMBER = {
    "pending": "For you",
    OTHERS: "Others",
    **{name: APPROVALS[name] for name in APPROVALS if name != "pending"},
}
NONE = "There is no such approval."

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/approvals", include_in_schema=False)


@router.get("")
async def list_page(
    unit: InUnit,
    request: Request,
    shared: Shared,
    status: str = "pending",
    cursor: Cursor = None,
    live: Live = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Questions, newest first; those that wait unless others are asked for. A member sees first the ones that they may
    answer; those of others have a tab of their own."""
    filters = FOR_A_MEMBER if unit.caller.level == Level.MEMBER else APPROVALS
    chosen, unknown = choose(status, filters)
    look = partial(_list, status=chosen or "pending", filters=filters, unknown=unknown, before=read_cursor(cursor))
    view = View("approvals/list.html", "approvals/_results.html", "approvals/_list.html", look)
    return await stream.shown(unit, request, shared, view, live, last_event_id)


async def _list(
    conn: Connection, caller: Caller, *, status: str, filters: Mapping[str, str], unknown: str = "", before: UUID | None
) -> dict[str, Any]:
    whose: dict[str, Any] = {}
    if caller.level == Level.MEMBER and status in {"pending", OTHERS}:
        whose = {"others_than" if status == OTHERS else "owner_id": caller.user_id}
    stored = "pending" if status == OTHERS else status
    found = await rows.page(
        conn, caller.workspace_id, before=before, limit=LISTED + 1, status=stored, brief=True, **whose
    )
    older, found = len(found) > LISTED, found[:LISTED]
    return {
        "approvals": [each | {"mine": approvals.may_answer(caller, each["owners"])} for each in found],
        "older": cursor_of(found[-1]["id"]) if older else None,
        "first": before is None,
        "lives": before is None,
        "chosen": status,
        "filters": list(filters.items()),
        "unknown": unknown,
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
    return done(request, to or session, "Answer sent.")


def _id(ref: str) -> ApprovalId:
    found: UUID | None = as_uuid(ref)
    if found is None:
        raise NotFound(NONE)
    return ApprovalId(found)
