"""Preview: what a schedule would do, before it is saved."""

from fastapi import APIRouter

from rota.http.context import Looking
from rota.http.routes import API
from rota.http.shapes.triggers import FireOut, PreviewIn, PreviewOut, WarningOut
from rota.scheduler.preview import preview

router = APIRouter(prefix=API + "/automations", tags=["automations"])


@router.post("/preview")
async def preview_schedule(unit: Looking, body: PreviewIn) -> PreviewOut:
    """The next fires of a schedule, in UTC and in its own zone, in words, with warnings. Saves nothing."""
    shown = await preview(
        unit.conn, unit.caller, body.schedule, after=body.after, count=body.count, automation=body.automation
    )
    return PreviewOut(
        text=shown.text,
        fires=[FireOut(at=each.at, local=each.local) for each in shown.fires],
        warnings=[WarningOut(code=each.code, message=each.message) for each in shown.warnings],
    )
