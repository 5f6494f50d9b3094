"""Triggers of an automation, each by itself."""

from uuid import UUID

from fastapi import APIRouter

from rota.db.listener import TRIGGERS
from rota.errors import Invalid
from rota.http.context import InUnit, Shared, Unit
from rota.http.shapes.triggers import TriggerIn, TriggerOut, TriggerPatch
from rota.model.ids import AutomationId
from rota.roster import automations, triggers, views

router = APIRouter(prefix="/automations/{automation}/triggers", tags=["triggers"])


async def _shown(unit: Unit, automation_id: AutomationId, trigger_id: UUID, secret: str | None = None) -> TriggerOut:
    found = await automations.find(unit.conn, unit.caller, str(automation_id))
    [view] = await views.shown(unit.conn, unit.caller.workspace_id, [found])
    trigger = next(each for each in view["triggers"] if each["id"] == trigger_id)
    return TriggerOut.model_validate({**trigger, "secret": secret})


@router.post("", status_code=201)
async def add_trigger(unit: InUnit, shared: Shared, automation: str, body: TriggerIn) -> TriggerOut:
    """Give an automation one more trigger. A webhook's secret is in this answer and never shown again."""
    automation_id, trigger_id = await automations.add_trigger(unit.conn, unit.caller, automation, body.form("trigger"))
    unit.about(trigger_id)
    unit.wake(TRIGGERS)
    secret = None
    if "webhook" in (body.model_extra or {}):
        secret = await triggers.new_secret(unit.conn, shared.vault, unit.caller.workspace_id, trigger_id)
    return await _shown(unit, automation_id, trigger_id, secret)


@router.patch("/{trigger_id}")
async def change_trigger(
    unit: InUnit, shared: Shared, automation: str, trigger_id: UUID, body: TriggerPatch
) -> TriggerOut:
    """Change one trigger: enable or disable it, or give it another schedule or zone, which counts from now."""
    automation_id = await automations.change_trigger(unit.conn, unit.caller, automation, trigger_id, body.changes())
    unit.wake(TRIGGERS)
    secret = None
    if "webhook" in (body.model_extra or {}):
        secret = await triggers.first_secret(unit.conn, shared.vault, unit.caller.workspace_id, trigger_id)
    return await _shown(unit, automation_id, trigger_id, secret)


@router.delete("/{trigger_id}", status_code=204)
async def remove_trigger(unit: InUnit, automation: str, trigger_id: UUID) -> None:
    """Take one trigger away. Its runs stay in the ledger."""
    await automations.remove_trigger(unit.conn, unit.caller, automation, trigger_id)


@router.post("/{trigger_id}/secret", status_code=201)
async def renew_secret(unit: InUnit, shared: Shared, automation: str, trigger_id: UUID) -> TriggerOut:
    """A new secret for a webhook, shown this once. The one before stays valid for 24 hours."""
    found = await automations.find(unit.conn, unit.caller, automation, lock=True)
    unit.caller.must_own(found["owner_id"], "renew this secret")
    trigger = await triggers.find(unit.conn, found, trigger_id)
    if trigger["kind"] != "webhook":
        raise Invalid("Only a webhook has a secret.", code="not_a_webhook", field="trigger_id")
    secret = await triggers.new_secret(unit.conn, shared.vault, unit.caller.workspace_id, trigger_id)
    return await _shown(unit, AutomationId(found["id"]), trigger_id, secret)
