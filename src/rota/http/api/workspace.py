"""The workspace itself: its name, its zone and its limits."""

from fastapi import APIRouter

from rota.db import workspaces
from rota.http.context import InUnit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.people import WorkspaceOut, WorkspacePatch
from rota.roster import workspace

router = APIRouter(prefix=API, tags=["workspace"], route_class=Repeatable)


@router.get("")
async def get_workspace(unit: InUnit) -> WorkspaceOut:
    """The workspace: its name, zone and limits, and your level in it."""
    found = await workspaces.find(unit.conn, unit.caller.workspace_id)
    return WorkspaceOut.model_validate({**found, "level": unit.caller.level})


@router.patch("")
async def change_workspace(unit: InUnit, body: WorkspacePatch) -> WorkspaceOut:
    """Change the name, the zone for new schedules, or the limits; null takes a limit away. For admins."""
    await workspace.change(unit.conn, unit.caller, body.given())
    return await get_workspace(unit)
