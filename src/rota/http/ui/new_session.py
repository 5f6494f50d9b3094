"""A new session: a conversation with one agent, or a goal for several, each in a role, with the first tasks."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rota.db import agents
from rota.db.listener import RUNS
from rota.errors import Invalid
from rota.http.context import InUnit, Unit
from rota.http.shapes.sessions import SessionIn
from rota.http.shapes.tasks import RoleIn
from rota.http.ui import choosing, forms, goal_fields
from rota.http.ui.forms import UNTOUCHED, Form
from rota.http.ui.goal_fields import Goal
from rota.http.ui.rendering import PageRoute, is_live, page, part
from rota.model.caller import Level
from rota.model.ids import SessionId
from rota.sessions import opening

TO_OPEN = "open a session"

Kind = Literal["interactive", "background"]

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/sessions", include_in_schema=False)


@router.get("/new")
async def new_page(unit: InUnit, request: Request, kind: Annotated[Kind, Query()] = "interactive") -> Response:
    """One form for each kind."""
    unit.caller.must_be(Level.MEMBER, TO_OPEN)
    return await _form(unit, request, kind)


async def _form(unit: Unit, request: Request, kind: Kind, form: Form = UNTOUCHED, goal: Goal | None = None) -> Response:
    offered = await choosing.agents_offered(unit.conn, unit.caller, active=True)
    some = offered.options or await agents.page(unit.conn, unit.caller.workspace_id, before=None, limit=1)
    facts: dict[str, Any] = {
        "kind": kind,
        "form": form,
        "goal": goal or goal_fields.blank(),
        "agents": offered,
        "paused": some and not offered.options,
        "roles": [],  # to choose from: here they are written on the same page
        "most": goal_fields.MOST,
    }
    if is_live(request):  # a row more or less, in place
        return part(unit, request, "sessions/_goal_rows.html", **facts)
    response = await page(unit, request, "sessions/new.html", **facts)
    response.status_code = form.status
    return response


@router.post("")
async def open_session(unit: InUnit, request: Request) -> Response:
    """Open it and go on to its page; or the form again, with everything that was typed."""
    unit.caller.must_be(Level.MEMBER, TO_OPEN)
    sent = await forms.typed(request, "kind")
    return await (_pursue if sent["kind"] == "background" else _converse)(unit, request)


async def _converse(unit: Unit, request: Request) -> Response:
    typed = await forms.typed(request, "agent", "prompt")
    try:
        async with unit.conn.transaction():
            body = SessionIn.model_validate({"agent": typed["agent"], "prompt": goal_fields.said(typed["prompt"])})
            if body.prompt is None:
                raise Invalid("Write what should be done.", field="prompt")
            agent = await choosing.meant(unit.conn, unit.caller, choosing.AGENT, typed["agent"], "agent")
            opened = await opening.converse(unit.conn, unit.caller, agent, prompt=body.prompt)
    except forms.WRONG as wrong:
        if is_live(request):
            raise forms.in_place(wrong) from None
        return await _form(unit, request, "interactive", forms.rejected(request, wrong, "new", typed))
    return _opened(unit, request, opened)


async def _pursue(unit: Unit, request: Request) -> Response:
    goal = await goal_fields.read(request)
    if goal.rearranged:
        unit.record = None  # nothing is to be saved yet
        return await _form(unit, request, "background", goal=goal)
    try:
        async with unit.conn.transaction():
            body = SessionIn.model_validate(goal.values())
            if body.goal is None:
                raise Invalid("Say what is to be achieved.", field="goal")
            seats = [await _seat(unit, at, role) for at, role in enumerate(body.roles)]
            opened = await opening.pursue(
                unit.conn, unit.caller, body.goal, title=body.title, draft=body.draft, seats=seats,
                forms=[task.form() for task in body.tasks],
            )  # fmt: skip
    except forms.WRONG as wrong:
        form = forms.rejected(request, wrong, "new", goal.typed())
        return await _form(unit, request, "background", form, goal)
    return _opened(unit, request, opened)


async def _seat(unit: Unit, at: int, role: RoleIn) -> dict[str, str]:
    agent = await choosing.meant(unit.conn, unit.caller, choosing.AGENT, role.agent, f"roles.{at}.agent")
    return {"name": role.name, "agent": agent}


def _opened(unit: Unit, request: Request, session_id: SessionId) -> Response:
    unit.about(session_id)
    unit.wake(RUNS, unit.caller.workspace_id)
    return forms.gone(request, f"/w/{unit.caller.workspace_slug}/sessions/{session_id}")
