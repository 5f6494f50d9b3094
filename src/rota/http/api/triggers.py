"""Triggers of an automation, each by itself."""

from uuid import UUID

from fastapi import APIRouter

from rota.db.listener import TRIGGERS
from rota.errors import Invalid, NotFound
from rota.http.api.repeats import Once
from rota.http.context import InUnit, Shared, Unit
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.triggers import TriggerIn, TriggerOut, TriggerPatch
from rota.roster import automations, triggers, views

router = APIRouter(prefix=API + "/automations/{automation}/triggers", tags=["triggers"], route_class=Repeatable)


async def _shown(unit: Unit, automation: str, trigger_id: UUID, secret: str | None = None) -> TriggerOut:
    found = await automations.find(unit.conn, unit.caller, automation)
    [view] = await views.shown(unit.conn, unit.caller.workspace_id, [found])
    trigger = next((each for each in view["triggers"] if each["id"] == trigger_id), None)
    if not trigger:  # a repeat of what made it comes after it was taken away
        raise NotFound("There is no such trigger.")
    return TriggerOut.model_validate({**trigger, "secret": secret})


@router.post("", status_code=201)
async def add_trigger(unit: InUnit, shared: Shared, once: Once, automation: str, body: TriggerIn) -> TriggerOut:
    """Give an automation one more trigger. A webhook's secret is in this answer and never shown again."""
    conn, caller, form = unit.conn, unit.caller, body.form("")
    trigger_id = await once(body, lambda: automations.add_trigger(conn, caller, automation, form))
    unit.wake(TRIGGERS)
    secret = None
    if "webhook" in (body.model_extra or {}):
        secret = await triggers.first_secret(conn, shared.vault, caller.workspace_id, trigger_id)
    return await _shown(unit, automation, trigger_id, secret)


@router.patch("/{trigger_id}")
async def change_trigger(
    unit: InUnit, shared: Shared, automation: str, trigger_id: UUID, body: TriggerPatch
) -> TriggerOut:
    """Change one trigger: enable or disable it, or give it another schedule or zone, which counts from now."""
    await automations.change_trigger(unit.conn, unit.caller, automation, trigger_id, body.changes())
    unit.wake(TRIGGERS)
    secret = None
    if "webhook" in (body.model_extra or {}):
        secret = await triggers.first_secret(unit.conn, shared.vault, unit.caller.workspace_id, trigger_id)
        unit.show_once(secret)
    return await _shown(unit, automation, trigger_id, secret)


@router.delete("/{trigger_id}", status_code=204)
async def remove_trigger(unit: InUnit, automation: str, trigger_id: UUID) -> None:
    """Take one trigger away. Its runs stay in the ledger."""
    await automations.remove_trigger(unit.conn, unit.caller, automation, trigger_id)


@router.post("/{trigger_id}/secret", status_code=201)
async def renew_secret(unit: InUnit, shared: Shared, once: Once, automation: str, trigger_id: UUID) -> TriggerOut:
    """A new secret for a webhook, shown this once. The one before stays valid for 24 hours."""
    found = await automations.find(unit.conn, unit.caller, automation, lock=True)
    unit.caller.must_own(found["owner_id"], "renew this secret")
    trigger = await triggers.find(unit.conn, found, trigger_id)
    if trigger["kind"] != "webhook":
        raise Invalid("Only a webhook has a secret.", code="not_a_webhook", field="trigger_id")
    secret = ""

    async def renew() -> UUID:
        nonlocal secret
        secret = await triggers.new_secret(unit.conn, shared.vault, unit.caller.workspace_id, trigger_id)
        return trigger_id

    return await _shown(unit, automation, await once.shown_once(None, renew), secret)
