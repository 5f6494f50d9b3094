"""Events: named things that happened, which fire the triggers that wait for them."""

from fastapi import APIRouter

from rota.db.listener import RUNS
from rota.db.pool import Connection
from rota.http.api.repeats import IdempotencyKey
from rota.http.context import InUnit
from rota.http.routes import API
from rota.http.shapes.triggers import EventIn, FiredOut
from rota.model.caller import Level
from rota.scheduler.inbound import publish_event
from rota.sessions import repeats

router = APIRouter(prefix=API + "/events", tags=["events"])


@router.post("", status_code=202)
async def post_event(unit: InUnit, body: EventIn, idempotency_key: IdempotencyKey = None) -> FiredOut:
    """Fire every event trigger of this workspace with this name. The same `key` gives the same runs."""
    repeats.check_key(idempotency_key)
    caller, workspace_id = unit.caller, unit.caller.workspace_id
    caller.must_be(Level.MEMBER, "post an event")  # a repeat too

    async def publish(conn: Connection) -> list[str]:
        fired = await publish_event(conn, caller, body.event, body.data, body.key)
        return [str(run_id) for run_id in fired.values()]

    request = {"post": "event", "by": caller.user_id, **body.model_dump(mode="json")}
    runs = await repeats.once(unit.conn, workspace_id, workspace_id, idempotency_key, request, publish)
    unit.wake(RUNS, workspace_id)
    return FiredOut(runs=runs)
