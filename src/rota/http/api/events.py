"""Events: named things that happened, which fire the triggers that wait for them."""

from fastapi import APIRouter

from rota.db.listener import RUNS
from rota.http.context import InUnit
from rota.http.shapes.triggers import EventIn, FiredOut
from rota.scheduler.inbound import publish_event

router = APIRouter(prefix="/events", tags=["events"])


@router.post("", status_code=202)
async def post_event(unit: InUnit, body: EventIn) -> FiredOut:
    """Fire every event trigger of this workspace with this name. The same `key` gives the same runs."""
    fired = await publish_event(unit.conn, unit.caller, body.event, body.data, body.key)
    unit.wake(RUNS, unit.caller.workspace_id)
    return FiredOut(runs=list(fired.values()))
