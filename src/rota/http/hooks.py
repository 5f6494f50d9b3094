"""Webhooks in: signed by the Standard Webhooks scheme, no other sign-in."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Request

from rota.http.bodies import check
from rota.http.context import Shared
from rota.http.shapes.triggers import FiredOut
from rota.scheduler.inbound import receive_webhook

router = APIRouter(tags=["public"])


PAYLOAD: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {}}}}}


@router.post("/hooks/{trigger_id}", status_code=202, openapi_extra=PAYLOAD)
async def receive(
    request: Request,
    shared: Shared,
    trigger_id: UUID,
    webhook_id: Annotated[str | None, Header()] = None,
    webhook_timestamp: Annotated[str | None, Header()] = None,
    webhook_signature: Annotated[str | None, Header()] = None,
) -> FiredOut:
    """Start a run of the webhook's automation with the body as payload; the same `webhook-id` gives the same run."""
    body = await request.body()
    headers = {"message_id": webhook_id, "timestamp": webhook_timestamp, "signatures": webhook_signature}
    fired = await receive_webhook(
        shared.db, shared.vault, trigger_id, headers=headers, body=body, payload=_payload(body)
    )
    return FiredOut(runs=list(fired.values()))


def _payload(body: bytes) -> Any:
    return check(body) if body else None
