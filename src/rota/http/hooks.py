"""Webhooks in: signed by the Standard Webhooks scheme, no other sign-in."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request

from rota.errors import NotFound
from rota.http.bodies import check
from rota.http.context import Shared
from rota.http.shapes.triggers import FiredOut
from rota.model.ids import as_uuid
from rota.scheduler.inbound import receive_webhook

router = APIRouter(tags=["public"])


PAYLOAD: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {}}}}}


@router.post("/hooks/{trigger_id}", status_code=202, openapi_extra=PAYLOAD)
async def receive(
    request: Request,
    shared: Shared,
    trigger_id: Annotated[str, Path(json_schema_extra={"format": "uuid"})],
    webhook_id: Annotated[str | None, Header()] = None,
    webhook_timestamp: Annotated[str | None, Header()] = None,
    webhook_signature: Annotated[str | None, Header()] = None,
) -> FiredOut:
    """Start a run of the webhook's automation with the body as payload; the same `webhook-id` gives the same run,
    and is refused with another body."""
    found = as_uuid(trigger_id)
    if not found:  # what is no id is the webhook of nobody, too
        raise NotFound("There is no such webhook.")
    body = await request.body()
    headers = {"message_id": webhook_id, "timestamp": webhook_timestamp, "signatures": webhook_signature}
    fired = await receive_webhook(shared.db, shared.vault, found, headers=headers, body=body, payload=_payload(body))
    return FiredOut(runs=list(fired.values()))


def _payload(body: bytes) -> Any:
    return check(body) if body else None
