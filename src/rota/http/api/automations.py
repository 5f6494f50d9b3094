"""Automations: saved prompts with triggers and policies."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Response

from rota.db import agents as revision_rows
from rota.db import automations as rows
from rota.db import runs
from rota.db.listener import RUNS, TRIGGERS
from rota.db.pool import Connection
from rota.http.api.agents import DryRun
from rota.http.api.paging import DEFAULT_LIMIT, Cursor, Limit, Owner
from rota.http.api.repeats import IdempotencyKey
from rota.http.context import InUnit, Shared, Unit, Web
from rota.http.repeating import Repeatable
from rota.http.routes import API
from rota.http.shapes.agents import RevisionOut
from rota.http.shapes.automations import AutomationIn, AutomationOut, AutomationPatch, RunNowIn
from rota.http.shapes.grants import RenewGrantIn
from rota.http.shapes.pages import Page, cursor_of, page_of, read_cursor, read_number_cursor
from rota.http.shapes.runs import RunOut  # fmt: skip
from rota.model.caller import Caller
from rota.model.ids import AutomationId
from rota.roster import automations, grants, members, running, views
from rota.roster import triggers as trigger_forms

router = APIRouter(prefix=API + "/automations", tags=["automations"], route_class=Repeatable)

STATUS_VERBS = {"active": "resume", "paused": "pause"}
SET_STATUS = {"active": automations.resume, "paused": automations.pause}
LARGEST_REVISION = 2**31 - 1


async def _shown(unit: Unit, automation_id: AutomationId) -> AutomationOut:
    found = await automations.find(unit.conn, unit.caller, str(automation_id), deleted=True)
    [view] = await views.shown(unit.conn, unit.caller.workspace_id, [found])
    return AutomationOut.model_validate(view)


@router.get("")
async def list_automations(
    unit: InUnit, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, deleted: bool = False, owner: Owner = None
) -> Page[AutomationOut]:
    """Automations, newest first; with `deleted=true` also those that can be restored."""
    found = await rows.page(
        unit.conn,
        unit.caller.workspace_id,
        before=read_cursor(cursor),
        limit=limit + 1,
        deleted=deleted,
        owner_id=await members.find_owner(unit.conn, unit.caller, owner),
    )
    return page_of(await views.shown(unit.conn, unit.caller.workspace_id, found), limit, AutomationOut)


@router.post("", status_code=201, responses={200: {"model": AutomationOut, "description": "With `dry_run`"}})
async def create_automation(
    unit: InUnit,
    shared: Shared,
    response: Response,
    body: AutomationIn,
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> AutomationOut:
    """Save an automation with its triggers; its grant is made with it. Secrets of webhooks are in this answer only."""
    if dry_run:
        unit.only_try(response)
    values: dict[str, Any] = {name: getattr(body, name) for name in type(body).model_fields}
    forms = body.forms()
    request = {"save": "automation", **values, "schedule": None, "triggers": forms}
    automation_id = await running.once_for_key(
        unit.conn,
        unit.caller,
        idempotency_key,
        request,
        lambda: automations.create(unit.conn, unit.caller, values, forms),
    )
    unit.about(automation_id)
    unit.wake(TRIGGERS)
    unit.wake(RUNS, unit.caller.workspace_id)
    return await _with_secrets(unit, shared, await _shown(unit, automation_id))


async def _with_secrets(unit: Unit, shared: Web, shown: AutomationOut) -> AutomationOut:
    """Webhooks that have no secret yet get one, shown this once."""
    for trigger in shown.triggers:
        if trigger.kind == "webhook" and not unit.trial:
            trigger.secret = await trigger_forms.first_secret(
                unit.conn, shared.vault, unit.caller.workspace_id, trigger.id
            )
            unit.show_once(trigger.secret)
    return shown


@router.get("/{automation}")
async def get_automation(unit: InUnit, automation: str) -> AutomationOut:
    """One automation by id or slug, with its next three fires. A deleted one is found by its id."""
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True)
    return await _shown(unit, AutomationId(found["id"]))


@router.patch("/{automation}")
async def change_automation(
    unit: InUnit, shared: Shared, response: Response, automation: str, body: AutomationPatch, dry_run: DryRun = False
) -> AutomationOut:
    """Save a change as a new revision. The next fire counts from now; runs already fired keep their revision. `status`
    (or `enabled`) pauses and resumes as the verbs do, and is no revision."""
    if dry_run:
        unit.only_try(response)
    values, forms, status = body.changes(), body.forms(), body.wanted_status()
    if status and not values and forms is None:
        unit.call(STATUS_VERBS[status])
    automation_id = await automations.change(
        unit.conn, unit.caller, automation, values, forms, accept_grant=body.accept_grant
    )
    if status:
        await SET_STATUS[status](unit.conn, unit.caller, str(automation_id))
        unit.wake(RUNS, unit.caller.workspace_id)  # runs that waited behind one that is skipped now may go on
    unit.wake(TRIGGERS)
    return await _with_secrets(unit, shared, await _shown(unit, automation_id))


@router.delete("/{automation}", status_code=204)
async def delete_automation(unit: InUnit, automation: str) -> None:
    """Stop it for good; its history stays readable and it can be restored."""
    await automations.delete(unit.conn, unit.caller, automation)
    unit.wake(RUNS, unit.caller.workspace_id)


Change = Callable[[Connection, Caller, str], Awaitable[AutomationId]]


async def _changed(unit: Unit, automation: str, change: Change) -> AutomationOut:
    automation_id = await change(unit.conn, unit.caller, automation)
    unit.wake(TRIGGERS)
    unit.wake(RUNS, unit.caller.workspace_id)  # what waited behind a run that is skipped now goes on
    return await _shown(unit, automation_id)


@router.post("/{automation}/pause")
async def pause_automation(unit: InUnit, automation: str) -> AutomationOut:
    """Fire nothing until it is resumed. What waits is skipped, what runs finishes."""
    return await _changed(unit, automation, automations.pause)


@router.post("/{automation}/resume")
async def resume_automation(unit: InUnit, automation: str) -> AutomationOut:
    """Fire again, counting from now."""
    return await _changed(unit, automation, automations.resume)


@router.post("/{automation}/restore")
async def restore_automation(unit: InUnit, automation: str) -> AutomationOut:
    """Take back a deletion, with a new grant; next fire from now."""
    return await _changed(unit, automation, automations.restore)


@router.post("/{automation}/renew-grant")
async def renew_grant(unit: InUnit, automation: str, body: RenewGrantIn | None = None) -> AutomationOut:
    """Give it a new grant of yours, for good or as long as `lasts` says, which charges the same account or the one that
    an admin names as `account`. The grant before stays in the history."""
    automation_id = await grants.renew(unit.conn, unit.caller, automation, **(body.given() if body else {}))
    return await _shown(unit, automation_id)


@router.post("/{automation}/run", status_code=201)
async def run_automation(
    unit: InUnit, automation: str, body: RunNowIn | None = None, idempotency_key: IdempotencyKey = None
) -> RunOut:
    """Run it now, also while it is paused. Answers 409 with the run's id while one is queued."""
    conn, caller, payload = unit.conn, unit.caller, body.payload if body else None
    found = await running.find_to_run(conn, caller, automation, idempotency_key)
    unit.about(found.held.id)
    run_id = await running.run_once_for_key(conn, caller, found, payload, idempotency_key)
    unit.wake(RUNS, unit.caller.workspace_id)
    return RunOut.model_validate(await runs.find(conn, caller.workspace_id, run_id))


@router.get("/{automation}/runs")
async def list_automation_runs(
    unit: InUnit, automation: str, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[RunOut]:
    """The ledger: every slot is here, as a run, as a skip with its reason, or counted in a later row's `missed`."""
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True)
    page = await runs.page(
        unit.conn,
        unit.caller.workspace_id,
        before=read_cursor(cursor),
        limit=limit + 1,
        automation_id=found["id"],
    )
    return page_of(page, limit, RunOut)


@router.get("/{automation}/revisions")
async def list_revisions(
    unit: InUnit, automation: str, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[RevisionOut]:
    """What was saved and when, newest first, each with what changed from the one before."""
    found = await automations.find(unit.conn, unit.caller, automation, deleted=True)
    specs = await revision_rows.revisions(
        unit.conn,
        unit.caller.workspace_id,
        found["id"],
        before=read_number_cursor(cursor, largest=LARGEST_REVISION),
        limit=limit + 1,
    )
    older = [*(each["spec"] for each in specs[1:]), {}]
    told = [{**new, "changed": _difference(old, new["spec"])} for new, old in zip(specs, older, strict=False)]
    shown = [RevisionOut.model_validate(each) for each in told[:limit]]
    return Page(items=shown, next_cursor=cursor_of(shown[-1].revision) if len(specs) > limit else None)


def _difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {name: {"from": old.get(name), "to": new.get(name)} for name in names} if old else {}
