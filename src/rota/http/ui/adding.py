"""What people add to a goal on its page: a role, and a task."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from rota.db.listener import RUNS, session_channel
from rota.http.context import InUnit, Unit
from rota.http.shapes.tasks import RoleIn, TasksIn
from rota.http.ui import choosing, forms, goal_fields
from rota.http.ui.rendering import PageRoute, done, is_live
from rota.http.ui.sessions import address_of, id_of, refused
from rota.model.ids import SessionId
from rota.sessions import changing, roles, tasks

router = APIRouter(route_class=PageRoute, prefix="/w/{workspace}/sessions", include_in_schema=False)


@router.post("/{session}/roles")
async def add_role(unit: InUnit, request: Request, session: str) -> Response:
    """Give an agent a role; the page looks again, since a task may be that role's now."""
    session_id = id_of(session)
    await _must_own(unit, session_id, "give roles in this session")
    typed = {name: text.strip() for name, text in (await forms.typed(request, *goal_fields.ROLE)).items()}
    try:
        async with unit.conn.transaction():
            body = RoleIn.model_validate(typed)
            agent = await choosing.meant(unit.conn, unit.caller, choosing.AGENT, body.agent, "agent")
            await roles.give(unit.conn, unit.caller, session_id, body.name, agent)
    except forms.WRONG as wrong:
        return await refused(unit, request, session_id, forms.rejected(request, wrong, "role", typed))
    return _added(unit, request, session_id, f"{body.name} takes part.")


@router.post("/{session}/tasks")
async def add_task(unit: InUnit, request: Request, session: str) -> Response:
    """Add a task; it starts at once if it waits for none. A session that had ended goes on."""
    session_id, own = id_of(session), "tasks.0."
    await _must_own(unit, session_id, "add tasks to this session")
    typed = await forms.typed(request, *(f"{own}{name}" for name in goal_fields.TASK))
    row = {name.removeprefix(own): text for name, text in typed.items()}
    try:
        async with unit.conn.transaction():
            body = TasksIn.model_validate({"tasks": [goal_fields.task_of(row)]})
            await tasks.add(unit.conn, unit.caller.workspace_id, session_id, [body.tasks[0].form()])
    except forms.WRONG as wrong:
        return await refused(unit, request, session_id, forms.rejected(request, wrong, "task", typed))
    unit.wake(RUNS, unit.caller.workspace_id)
    return _added(unit, request, session_id, "The task is added.")


async def _must_own(unit: Unit, session_id: SessionId, to: str) -> None:
    found = await changing.find(unit.conn, unit.caller.workspace_id, session_id)
    unit.caller.must_own(found["owner_id"], to)


def _added(unit: Unit, request: Request, session_id: SessionId, told: str) -> Response:
    unit.wake(session_channel(session_id))
    answer = done(request, address_of(unit.caller, session_id), told)
    if is_live(request):
        answer.headers["HX-Refresh"] = "true"
    return answer
