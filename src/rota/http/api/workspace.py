"""The workspace itself: its name, its zone and its limits, and its pause."""

from fastapi import APIRouter

from rota.db import pauses, workspaces
from rota.http.context import InUnit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.people import PauseIn, WorkspaceOut, WorkspacePatch
from rota.roster import pausing, workspace

router = APIRouter(prefix=API, tags=["workspace"], route_class=Repeatable)


@router.get("")
async def get_workspace(unit: InUnit) -> WorkspaceOut:
    """The workspace: its name, zone and limits, your level in it, and whether all its automations are paused."""
    found = await workspaces.find(unit.conn, unit.caller.workspace_id)
    pause = await pauses.find(unit.conn, unit.caller.workspace_id)
    return WorkspaceOut.model_validate({**found, "level": unit.caller.level, "pause": pause})


@router.patch("")
async def change_workspace(unit: InUnit, body: WorkspacePatch) -> WorkspaceOut:
    """Change the name, the zone for new schedules, or the limits; null takes a limit away. For admins."""
    await workspace.change(unit.conn, unit.caller, body.given())
    return await get_workspace(unit)


@router.post("/pause")
async def pause_workspace(unit: InUnit, body: PauseIn) -> WorkspaceOut:
    """Pause all automations: until the workspace is resumed, no schedule, webhook, event or end of another run starts
    a run. Waiting runs are skipped, those at work finish, and people can still start runs. Again, it replaces the
    reason and the end. For admins."""
    await pausing.pause(unit.conn, unit.caller, reason=body.reason, until=body.until, lasts=body.lasts)
    return await get_workspace(unit)


@router.post("/resume")
async def resume_workspace(unit: InUnit) -> WorkspaceOut:
    """End the pause of all automations; schedules count from now. What was paused itself stays so. For admins."""
    await pausing.resume(unit.conn, unit.caller)
    return await get_workspace(unit)
